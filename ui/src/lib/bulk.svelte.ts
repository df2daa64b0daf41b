/** Changes of many jobs, step by step, with their progress. They continue while other views are open, one after the other. */

import { api } from './api/client'
import { ApiError } from './api/http'
import type { BulkAction, Filter, Ref } from './api/types'
import { text } from './texts'
import { toasts } from './toasts.svelte'

/** Jobs per request: small enough that the bar moves, large enough that it is quick. */
const STEP = 250

export interface BulkRun {
  action: BulkAction
  refs?: Ref[]
  filter?: Filter
  total: number | null
}

class Bulk {
  running = $state(false)
  stopping = $state(false)
  label = $state('')
  done = $state(0)
  failed = $state(0)
  /** How many there are in all; null when that is known only at the end. */
  total = $state<number | null>(null)
  #before: Promise<void> = Promise.resolve()

  /** Do it after those that were asked for before. */
  run(options: BulkRun): Promise<void> {
    this.#before = this.#before.then(() => this.#one(options))
    return this.#before
  }

  async #one(options: BulkRun): Promise<void> {
    const words = text.action[options.action]
    const what = options.total === null ? text.bulk.allMatching : text.counted.jobs(options.total)
    Object.assign(this, { running: true, stopping: false, label: `${words.bulk}: ${what}`, done: 0, failed: 0, total: options.total })
    try {
      if (options.refs) await this.#refs(options.action, options.refs)
      else await this.#filter(options.action, options.filter ?? {})
      const rest = this.failed ? text.bulk.failed(text.counted.jobs(this.failed)) : ''
      toasts.show(this.failed ? 'plain' : 'good', text.bulk.done(text.counted.jobs(this.done), words.verb, this.stopping), rest)
    } catch (error) {
      const problem = ApiError.from(error)
      toasts.show('bad', `${problem.message} ${text.bulk.before(text.counted.jobsWere(this.done), words.verb)}`, problem.hint)
    } finally {
      this.running = false
    }
  }

  stop(): void {
    this.stopping = true
  }

  async #refs(action: BulkAction, refs: Ref[]): Promise<void> {
    for (let at = 0; at < refs.length && !this.stopping; at += STEP) {
      const answer = await api.bulk({ action, refs: refs.slice(at, at + STEP) })
      this.done += answer.done
      this.failed += answer.failed
    }
  }

  async #filter(action: BulkAction, filter: Filter): Promise<void> {
    let cursor: string | null = null
    do {
      const answer = await api.bulk({ action, filter, cursor, limit: STEP })
      this.done += answer.done
      this.failed += answer.failed
      if (this.total === null && answer.remaining !== null) this.total = this.done + this.failed + answer.remaining
      cursor = answer.next_cursor
    } while (cursor !== null && !this.stopping)
  }
}

export const bulk = new Bulk()
