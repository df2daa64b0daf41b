/** What people do to jobs: one place for the questions before, the moment to take it back, and the notes after. */

import { api } from './api/client'
import { ApiError } from './api/http'
import type { BulkAction, Filter, Item, Ref } from './api/types'
import { dialogs } from './dialogs.svelte'
import { isPending, type JobAction, type Offer } from './offers'
import { text } from './texts'
import { toasts } from './toasts.svelte'
import { undo } from './undo.svelte'

/** Do something and say how it went; answers whether it worked. */
export async function attempt(done: string, run: () => Promise<unknown>): Promise<boolean> {
  try {
    await run()
    toasts.show('good', done)
    return true
  } catch (error) {
    const problem = ApiError.from(error)
    toasts.show('bad', problem.message, problem.hint)
    return false
  }
}

export const keyOf = (job: Ref): string => `${job.queue}/${job.id}`

/** Whether a handler is asked to stop, which cannot be taken back. */
const stops = (action: BulkAction, job: Pick<Item, 'can'>): boolean => action === 'cancel' && !isPending(job)

/** Whether the page can take it back: a deletion, and the cancelling of what does not run. */
const held = (action: BulkAction, running: boolean): boolean => action === 'delete' || (action === 'cancel' && !running)

/** The request behind an action. */
function send(ref: Ref, action: JobAction): Promise<unknown> {
  if (action.name === 'delete') return api.remove(ref)
  if (action.name === 'kill') return api.kill(ref)
  return api.act(ref, action.name)
}

/** Ask, hold back what can be taken back, do it, say so. */
export async function actOn(job: Pick<Item, 'queue' | 'id' | 'task' | 'can'>, action: JobAction): Promise<boolean> {
  const running = stops(action.name, job)
  const words = text.action[action.name]
  if (action.danger) {
    const ask = running ? text.cancelRunning : words.ask
    const yes = await dialogs.confirm({ title: ask.title, text: `${job.task} · ${job.id}. ${ask.text}`, action: ask.action, danger: true })
    if (!yes) return false
  }
  if (held(action.name, running) && !(await undo.hold(words.held(text.counted.jobs(1)), [keyOf(job)]))) return false
  return attempt(running ? text.cancelRunning.done : words.done, () => send({ queue: job.queue, id: job.id }, action))
}

/** Run its flow again from a finished job on; held back for a moment, since what ran after it loses its result. */
export async function retryFlow(job: Pick<Item, 'queue' | 'id'>): Promise<boolean> {
  const words = text.flows.retry
  if (!(await undo.hold(words.held, [keyOf(job)]))) return false
  return attempt(words.done, () => api.retryFlow({ queue: job.queue, id: job.id }))
}

export interface Chosen {
  action: Offer
  jobs: Item[]
  /** How many more of the chosen are left as they are. */
  rest: number
  /** Of a whole filter instead of rows: how many, when that is known. */
  all?: { many: number | null }
}

/** The question before a change of many, with its counts; false: not now. */
export async function askForMany({ action, jobs, rest, all }: Chosen): Promise<boolean> {
  const words = text.action[action.name]
  const many = all ? all.many : jobs.length
  const what = many === null ? text.bulk.allMatching : text.counted.jobs(many)
  const states = new Map<string, number>()
  for (const job of all ? [] : jobs) states.set(job.state, (states.get(job.state) ?? 0) + 1)
  const running = jobs.some((job) => stops(action.name, job))
  const undone = held(action.name, running)
  const parts = [
    [...states].map(([state, count]) => `${count} ${state}`).join(', '),
    rest ? text.bulk.rest(text.counted.chosenJobs(rest)) : '',
    words.many,
    undone ? text.bulk.undoable : action.danger ? text.bulk.final : text.bulk.steps,
  ]
  const sentences = parts.filter(Boolean).map((part) => (part.endsWith('.') ? part : part + '.'))
  const yes = await dialogs.confirm({
    title: `${words.bulk} ${what}?`,
    text: sentences.join(' '),
    action: words.bulk,
    danger: action.danger,
  })
  if (!yes) return false
  return !undone || undo.hold(words.held(what), jobs.map(keyOf))
}

/** Jobs that a dry run counts at most, in steps of a thousand. */
const COUNTED = 20

/** How many jobs of a filter an action would change; null when they are too many to count here. */
export async function dryRun(action: BulkAction, filter: Filter): Promise<number | null> {
  let cursor: string | null = null
  let many = 0
  for (let step = 0; step < COUNTED; step++) {
    const answer = await api.bulk({ action, filter, cursor, limit: 1000, dry_run: true })
    many += answer.done
    cursor = answer.next_cursor
    if (cursor === null) return many
  }
  return null
}
