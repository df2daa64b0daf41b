/** What can be done to jobs: what the server says, in the order in which it is offered. */

import type { BulkAction, Item } from './api/types'

export interface JobAction {
  name: BulkAction
  icon: 'retries' | 'play' | 'kill' | 'dead' | 'trash'
  danger?: boolean
}

/** Most wanted first. */
const ACTIONS: JobAction[] = [
  { name: 'retry', icon: 'retries' },
  { name: 'trigger', icon: 'play' },
  { name: 'kill', icon: 'dead', danger: true },
  { name: 'cancel', icon: 'kill', danger: true },
  { name: 'delete', icon: 'trash', danger: true },
]

type Able = Pick<Item, 'can'>

/** What the server lets be done to a job. To retry now and to run now are the same for one that waits for a retry. */
export function actionsFor(job: Able): JobAction[] {
  return ACTIONS.filter(({ name }) => job.can.includes(name) && !(name === 'trigger' && job.can.includes('retry')))
}

/** Whether it has yet to run: the server lets no other job be changed. */
export const isPending = (job: Able): boolean => job.can.includes('change')

export interface Offer extends JobAction {
  /** How many of the chosen it applies to. */
  many: number
}

/** What can be done to some of these jobs, and to how many. */
export function offersFor(jobs: Able[]): Offer[] {
  return ACTIONS.map((action) => ({ ...action, many: jobs.filter((job) => job.can.includes(action.name)).length })).filter(
    (offer, _, all) =>
      offer.many && !(offer.name === 'trigger' && all.some((other) => other.name === 'retry' && other.many === offer.many)),
  )
}
