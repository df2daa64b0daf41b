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

export const isState = (text: string): text is JobState => (STATES as string[]).includes(text)
