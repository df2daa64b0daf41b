import { untrack } from 'svelte'

/** Keyboard shortcuts: single keys, and "g" followed by another to go somewhere. */

export interface Shortcut {
  keys: string
  text: string
  group: string
  run: (event: KeyboardEvent) => void
}

const TWO_KEYS_MS = 1200

class Keys {
  list = $state.raw<Shortcut[]>([])
  #first = ''
  #at = 0

  /** Add some; returns what takes them away again. Safe in an effect: it does not depend on the list. */
  add(shortcuts: Shortcut[]): () => void {
    this.list = [...untrack(() => this.list), ...shortcuts]
    return () => (this.list = untrack(() => this.list).filter((known) => !shortcuts.includes(known)))
  }

  handle(event: KeyboardEvent): void {
    if (event.metaKey || event.ctrlKey || event.altKey || event.defaultPrevented) return
    const target = event.target as HTMLElement
    if (target.closest('input:not([type=checkbox]), textarea, select, [contenteditable], dialog[open]')) return
    // What has the focus takes the keys that press it.
    if ((event.key === 'Enter' || event.key === ' ') && target.closest('a, button, summary, input')) return
    const pressed = this.#first && event.timeStamp - this.#at < TWO_KEYS_MS ? `${this.#first} ${event.key}` : event.key
    this.#first = ''
    // The newest wins: a view may take a key over from the page around it.
    const found = this.list.findLast((known) => known.keys.split(' / ').includes(pressed))
    if (found) {
      event.preventDefault()
      found.run(event)
    } else if (this.list.some((known) => known.keys.startsWith(event.key + ' ') && !known.keys.includes('/'))) {
      this.#first = event.key
      this.#at = event.timeStamp
    }
  }
}

export const keys = new Keys()
