/** The order of a list: what comes next first, or what happened last. */

import type { Listing } from './api/client'
import type { JobState } from './api/types'
import { ENDED, LATER } from './states'

type Order = Required<Pick<Listing, 'sort' | 'order'>>

/** For a list of one state, or of several (''); `wanted`: as the address says. */
export function orderOf(state: JobState | '', wanted = ''): Order {
  const usual = usualOrder(state)
  return wanted === 'newest' || wanted === 'oldest' ? { ...usual, order: wanted } : usual
}

/** Whether the time that the list shows is the one that it is sorted by. */
export const isSortedByTime = (state: JobState | ''): boolean => state !== 'active'

function usualOrder(state: JobState | ''): Order {
  if (state === 'waiting') return { sort: 'added', order: 'oldest' } // as they will run
  if (state && LATER.includes(state)) return { sort: 'due', order: 'oldest' }
  if (state && ENDED.includes(state)) return { sort: 'finished', order: 'newest' }
  return { sort: 'added', order: 'newest' }
}
