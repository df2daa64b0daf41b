import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { JobMetric } from '../src/lib/api/types.ts'
import { changes } from '../src/lib/deploys.ts'

const row = (task: string, total: number, success_rate: number, p95_ms: number): JobMetric =>
  ({ queue: 'mail', job_class: task, total, success_rate, p95_ms, wait_p95_ms: 5 }) as JobMetric

test('what a deploy made worse comes first', () => {
  const before = [row('send', 900, 1, 100), row('charge', 50, 0.99, 80), row('gone', 5, 1, 1)]
  const after = [row('send', 1000, 1, 101), row('charge', 40, 0.8, 300)]
  const found = changes(before, after)
  assert.deepEqual(
    found.map((one) => one.task),
    ['charge', 'send', 'gone'],
  )
  const [charge, send, gone] = found
  assert.ok(charge?.success.worse && charge.p95.worse && !charge.wait.worse)
  assert.ok(send && !send.p95.worse && !send.p95.better && !send.success.worse)
  assert.deepEqual([gone?.runs.before, gone?.runs.after, gone?.p95.after], [5, 0, null])
})
