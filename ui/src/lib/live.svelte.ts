/** Figures that the server sends about once a second, and the news that something changed. */

import { address } from './api/http'
import type { Tick } from './api/types'
import { clock } from './clock.svelte'
import { merge } from './ticks'

/** Ticks kept for the moving charts: five minutes. */
const KEPT = 300

class Live {
  connected = $state(false)
  /** The stream was open before and is not now. */
  lost = $state(false)
  tick = $state.raw<Tick | null>(null)
  ticks = $state.raw<Tick[]>([])
  #source: EventSource | null = null
  #listeners = new Set<(first: boolean) => void>()
  #mark = ''
  #wanted = false

  start(): void {
    this.#wanted = true
    if (this.#source) return
    const source = (this.#source = new EventSource(address('live', { changes: true })))
    source.addEventListener('open', () => {
      this.connected = true
      this.lost = false
    })
    source.addEventListener('error', () => {
      this.connected = false
      this.lost = true
      // A refused stream is not tried again by the browser itself.
      if (source.readyState === EventSource.CLOSED) {
        this.#source = null
        setTimeout(() => this.#wanted && this.start(), 5000)
      }
    })
    source.addEventListener('tick', (event) => this.#take(JSON.parse((event as MessageEvent<string>).data) as Tick))
  }

  stop(): void {
    this.#wanted = false
    this.#source?.close()
    this.#source = null
    this.connected = false
  }

  #take(change: Tick): void {
    const tick = merge(this.tick, change)
    this.connected = true
    this.lost = false
    clock.learn(tick.at_ms)
    this.tick = tick
    this.ticks = [...this.ticks.slice(1 - KEPT), tick]
    const mark = JSON.stringify([
      tick.counts,
      tick.queues.map((queue) => [queue.name, queue.paused]),
      tick.processed_total,
      tick.active_processes,
      tick.busy_workers,
      tick.quiet_workers,
    ])
    if (mark !== this.#mark) {
      const first = !this.#mark
      this.#mark = mark
      for (const listener of this.#listeners) listener(first)
    }
  }

  /** Call when counts have changed, or are known for the first time; returns what ends that. */
  onChange(listener: (first: boolean) => void): () => void {
    this.#listeners.add(listener)
    return () => this.#listeners.delete(listener)
  }
}

export const live = new Live()
