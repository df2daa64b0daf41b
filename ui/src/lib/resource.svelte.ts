/** What a view has read from the server, kept while it is read again: figures change, nothing jumps. */

import { ApiError } from './api/http'
import { live } from './live.svelte'

type Load<T> = (signal: AbortSignal) => Promise<T>

interface Options {
  /** Read again when the server reports that something changed. */
  live?: boolean | (() => boolean)
  /** Milliseconds between two reads because of such changes, at least. */
  pause?: number
}

export class Resource<T> {
  data = $state.raw<T | undefined>(undefined)
  error = $state.raw<ApiError | undefined>(undefined)
  loading = $state(true)
  #load: Load<T> | null = null
  #running: AbortController | null = null
  #again = false

  /** Read with another question: the answer to the old one is not waited for. */
  ask(load: Load<T>, keep: boolean): void {
    this.#load = load
    if (!keep) this.data = undefined
    this.#running?.abort()
    this.#running = null
    void this.refresh()
  }

  /** Read again. What is being read may have begun before a change: then it is read once more after it. */
  async refresh(): Promise<void> {
    if (!this.#load) return
    if (this.#running) {
      this.#again = true
      return
    }
    this.#again = false
    const running = (this.#running = new AbortController())
    this.loading = true
    try {
      const data = await this.#load(running.signal)
      if (running.signal.aborted) return
      this.data = data
      this.error = undefined
    } catch (error) {
      if (running.signal.aborted) return
      this.error = ApiError.from(error)
    } finally {
      if (this.#running === running) {
        this.#running = null
        this.loading = false
        if (this.#again) void this.refresh()
      }
    }
  }

  stop(): void {
    this.#running?.abort()
    this.#running = null
    this.#load = null
  }
}

/** Nothing is read while nothing changes: an idle page sends no request beside its stream. */
const LIVE_PAUSE = 1000

/**
 * Read what `make` asks for, and again when the reactive values that it reads change.
 * `make` returns the reading itself; call this while a component is set up.
 */
export function read<T>(make: () => Load<T>, options: Options = {}): Resource<T> {
  const resource = new Resource<T>()
  $effect(() => {
    const load = make()
    resource.ask(load, true)
  })
  const follows = () => !document.hidden && (typeof options.live === 'function' ? options.live() : options.live === true)
  $effect(() => {
    let due: ReturnType<typeof setTimeout> | null = null
    const off = options.live
      ? live.onChange((first) => {
          if (due || !follows()) return
          due = setTimeout(
            () => {
              due = null
              if (follows()) void resource.refresh() // a list may have been paused meanwhile
            },
            first ? LIVE_PAUSE : (options.pause ?? LIVE_PAUSE),
          )
        })
      : () => {}
    const shown = () => document.hidden || void resource.refresh()
    document.addEventListener('visibilitychange', shown)
    return () => {
      if (due) clearTimeout(due)
      off()
      document.removeEventListener('visibilitychange', shown)
      resource.stop()
    }
  })
  return resource
}
