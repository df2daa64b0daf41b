import type { JobState } from './api/types'

/** Every state of a job, in the order of its life. */
export const STATES: JobState[] = [
  'waiting',
  'active',
  'scheduled',
  'retrying',
  'blocked',
  'parked',
  'suspended',
  'completed',
  'failed',
  'cancelled',
]

// What the API does not say of a state, but wants to be told: lists name how they are sorted, changes of many name their states.
/** They run at a time that is known. */
export const LATER: JobState[] = ['scheduled', 'retrying']
/** They run no more. */
export const ENDED: JobState[] = ['completed', 'failed', 'cancelled']
/** Their last attempt failed. */
export const FAILING: JobState[] = ['failed', 'retrying']

export const isState = (text: string): text is JobState => (STATES as string[]).includes(text)
