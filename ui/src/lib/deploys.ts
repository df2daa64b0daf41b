/** What changed from one deploy to the next, task by task. */

import type { JobMetric } from './api/types'

export interface Change {
  before: number | null
  after: number | null
  better: boolean
  worse: boolean
}

export interface Compared {
  queue: string
  task: string
  runs: Change
  success: Change
  p95: Change
  wait: Change
}

/** Times that differ by less than this share are the same; so are rates of success that differ by less than a point. */
const SHARE = 0.2
const POINT = 0.01

function slower(before: number | null, after: number | null): Change {
  const known = before !== null && after !== null
  return {
    before,
    after,
    worse: known && after > before * (1 + SHARE) && after - before >= 1,
    better: known && before > after * (1 + SHARE) && before - after >= 1,
  }
}

function rarer(before: number | null, after: number | null): Change {
  const known = before !== null && after !== null
  return { before, after, worse: known && before - after > POINT, better: known && after - before > POINT }
}

/** What became worse first, then what runs most. */
export function changes(before: JobMetric[], after: JobMetric[]): Compared[] {
  const key = (row: JobMetric): string => `${row.queue}\n${row.job_class}`
  const old = new Map(before.map((row) => [key(row), row]))
  const now = new Map(after.map((row) => [key(row), row]))
  const rows = [...new Set([...now.keys(), ...old.keys()])].map((name): Compared => {
    const [one, other] = [old.get(name), now.get(name)]
    const [queue = '', task = ''] = name.split('\n')
    return {
      queue,
      task,
      runs: { before: one?.total ?? 0, after: other?.total ?? 0, better: false, worse: false },
      success: rarer(one?.success_rate ?? null, other?.success_rate ?? null),
      p95: slower(one?.p95_ms ?? null, other?.p95_ms ?? null),
      wait: slower(one?.wait_p95_ms ?? null, other?.wait_p95_ms ?? null),
    }
  })
  const bad = (row: Compared): number => Number(row.success.worse) * 2 + Number(row.p95.worse)
  return rows.sort((one, other) => bad(other) - bad(one) || (other.runs.after ?? 0) - (one.runs.after ?? 0))
}
