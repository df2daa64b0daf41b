/** Ticks of the live stream carry only what changed; together with the one before they are whole. */

import type { Tick } from './api/types'

/** The whole tick: queues and workers that did not change come from the one before. */
export function merge(before: Tick | null, change: Tick): Tick {
  if (!before) return change
  return {
    ...change,
    queues: merged(before.queues, change.queues, change.names, (queue) => queue.name),
    workers: merged(before.workers, change.workers, change.worker_ids, (worker) => worker.id),
  }
}

function merged<T>(before: T[], changed: T[], names: string[] | null | undefined, nameOf: (one: T) => string): T[] {
  const known = new Map(before.map((one) => [nameOf(one), one]))
  for (const one of changed) known.set(nameOf(one), one)
  return (names ?? before.map(nameOf)).flatMap((name) => known.get(name) ?? [])
}

/** What each worker used, tick by tick, oldest first. */
export function loadsOf(ticks: Tick[]): Map<string, Tick['workers']> {
  const found = new Map<string, Tick['workers']>()
  for (const tick of ticks)
    for (const worker of tick.workers) {
      const past = found.get(worker.id)
      if (past) past.push(worker)
      else found.set(worker.id, [worker])
    }
  return found
}
