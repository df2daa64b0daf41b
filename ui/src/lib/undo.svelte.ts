/** Changes that are held back for a moment, so that they can be taken back. The page holds them, not the server. */

import { clock } from './clock.svelte'

export const HOLD_MS = 5000

interface Held {
  id: number
  text: string
  /** The jobs that it is about: `queue/id`. */
  keys: Set<string>
  until: number
  settle: (go: boolean) => void
}

let last = 0

class Undo {
  list = $state.raw<Held[]>([])

  constructor() {
    // A page that is left has no time to wait: what was asked for is sent now.
    addEventListener('pagehide', () => this.list.forEach((held) => held.settle(true)))
  }

  /** Wait; answers whether to continue. */
  hold(text: string, keys: string[] = []): Promise<boolean> {
    return new Promise((resolve) => {
      const id = ++last
      const settle = (go: boolean): void => {
        clearTimeout(timer)
        this.list = this.list.filter((held) => held.id !== id)
        resolve(go)
      }
      const timer = setTimeout(() => settle(true), HOLD_MS)
      this.list = [...this.list, { id, text, keys: new Set(keys), until: clock.now + HOLD_MS, settle }]
    })
  }

  /** Take the newest back. */
  last(): void {
    this.list.at(-1)?.settle(false)
  }

  /** Whether a change of this job is held back. */
  holds(key: string): boolean {
    return this.list.some((held) => held.keys.has(key))
  }
}

export const undo = new Undo()
