/** Ticks of the live stream carry only what changed; together with the one before they are whole. */

import type { Tick } from './api/types'

/** The whole tick: queues that did not change come from the one before. */
export function merge(before: Tick | null, change: Tick): Tick {
  if (!before) return change
  const queues = new Map(before.queues.map((queue) => [queue.name, queue]))
  for (const queue of change.queues) queues.set(queue.name, queue)
  const names = change.names ?? before.queues.map((queue) => queue.name)
  return { ...change, queues: names.flatMap((name) => queues.get(name) ?? []) }
}
