/** The order of a list: what comes next first, or what happened last. */

import type { Listing } from './api/client'
import type { JobState } from './api/types'
import { ENDED, LATER } from './states'

/** For a list of one state, or of several (''). */
export function orderOf(state: JobState | ''): Pick<Listing, 'sort' | 'order'> {
  if (state === 'waiting') return { sort: 'added', order: 'oldest' } // as they will run
  if (state && LATER.includes(state)) return { sort: 'due', order: 'oldest' }
  if (state && ENDED.includes(state)) return { sort: 'finished', order: 'newest' }
  return { sort: 'added', order: 'newest' }
}
