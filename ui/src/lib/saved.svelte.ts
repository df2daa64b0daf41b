/** Searches with a name, kept by this browser. What one asks for is its address, so that it can be shared as it is. */

import { router } from './router.svelte'
import { addressOf, parseViews, type View } from './views'

const KEY = 'windlass.views'
const MOST = 50

class Saved {
  list = $state.raw<View[]>(this.#stored())

  #stored(): View[] {
    try {
      return parseViews(localStorage.getItem(KEY))
    } catch {
      return [] // storage may be forbidden
    }
  }

  get here(): View | undefined {
    const address = addressOf(router.path, router.query)
    return this.list.find((view) => view.address === address)
  }

  /** One of the same name is replaced. */
  save(name: string): void {
    const address = addressOf(router.path, router.query)
    this.#keep([...this.list.filter((view) => view.name !== name), { name, address }].slice(-MOST))
  }

  remove(name: string): void {
    this.#keep(this.list.filter((view) => view.name !== name))
  }

  #keep(list: View[]): void {
    this.list = list
    try {
      localStorage.setItem(KEY, JSON.stringify(list))
    } catch {
      // it holds for this page then
    }
  }
}

export const saved = new Saved()
