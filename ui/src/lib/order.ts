/** The order of a list: what comes next first, or what happened last. */

import type { Listing } from './api/client'

const LATER = ['scheduled', 'retrying']
const ENDED = ['completed', 'failed', 'cancelled']

/** For a list of one state, or of several (''). */
export function orderOf(state: string): Pick<Listing, 'sort' | 'order'> {
  if (state === 'waiting') return { sort: 'added', order: 'oldest' } // as they will run
  if (LATER.includes(state)) return { sort: 'due', order: 'oldest' }
  if (ENDED.includes(state)) return { sort: 'finished', order: 'newest' }
  return { sort: 'added', order: 'newest' }
}
