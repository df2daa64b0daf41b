import assert from 'node:assert/strict'
import { test } from 'node:test'
import { exportQuery } from '../src/lib/export.ts'

test('an export asks for the jobs of the list', () => {
  const filter = {
    queue: ['mail'],
    state: ['failed' as const],
    task: 'send_*',
    tag: 'a b',
    args: { customer: 7, name: 'Ada "A" L' },
    search: 'took:>5s',
  }
  assert.deepEqual(exportQuery(filter, 'csv'), {
    format: 'csv',
    queue: ['mail'],
    state: ['failed'],
    q: undefined,
    from_ms: undefined,
    to_ms: undefined,
    search: 'took:>5s task:send_* tag:"a b" args.customer:7 args.name:"Ada \\"A\\" L"',
  })
  assert.equal(exportQuery({}, 'jsonl').search, undefined)
})
