import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { Detail, Flow, FlowNode, Tick, Timeline } from '../src/lib/api/types.ts'
import { lone, split, unfinished } from '../src/lib/buckets.ts'
import { duration, relative } from '../src/lib/format.ts'
import { gantt } from '../src/lib/gantt.ts'
import { arrange } from '../src/lib/layout.ts'
import { actionsFor, isPending, offersFor } from '../src/lib/offers.ts'
import { orderOf } from '../src/lib/order.ts'
import { describe, share } from '../src/lib/progress.ts'
import { suggest } from '../src/lib/query.ts'
import { story } from '../src/lib/story.ts'
import { loadsOf, merge } from '../src/lib/ticks.ts'

test('offers are what the server allows, each with its number', () => {
  const jobs = [{ can: ['retry', 'delete', 'again'] }, { can: ['cancel', 'delete'] }, { can: ['delete'] }]
  assert.deepEqual(
    offersFor(jobs).map(({ name, many }) => [name, many]),
    [
      ['retry', 1],
      ['cancel', 1],
      ['delete', 3],
    ],
  )
  assert.deepEqual(offersFor([{ can: [] }]), [])
})

test('to retry now and to run now is offered once', () => {
  const waits = { can: ['retry', 'trigger', 'kill', 'cancel', 'delete'] }
  assert.deepEqual(
    actionsFor(waits).map((action) => action.name),
    ['retry', 'kill', 'cancel', 'delete'],
  )
  assert.deepEqual(
    offersFor([waits]).map((offer) => offer.name),
    ['retry', 'kill', 'cancel', 'delete'],
  )
})

test('a bucket that is not over is drawn apart', () => {
  assert.equal(unfinished([0, 60, 120], 60, 150), 1)
  assert.equal(unfinished([0, 60, 120], 60, 180), 0)
  assert.deepEqual(split([1, 2, 3], 1), { solid: [1, 2, null], dashed: [null, 2, 3] })
  assert.deepEqual(split([1, 2, 3], 0), { solid: [1, 2, 3], dashed: [null, null, null] })
})

test('a value that stands alone is drawn as a point', () => {
  assert.deepEqual(lone([null, 7, null]), [1])
  assert.equal(lone([null, 7, 8]), null, 'there is a line')
  assert.equal(lone([null, undefined]), null)
})

test('a tick of changes is whole together with the one before', () => {
  const queue = (name: string, size: number) => ({ name, size, paused: false, counts: {}, latency_ms: 0, processed: 0, failed: 0 })
  const load = (id: string, busy: number) => ({ id, busy, rss_kb: 1, cpu_percent: 0 })
  const first = {
    queues: [queue('a', 1), queue('b', 2)],
    names: ['a', 'b'],
    workers: [load('x', 1), load('y', 2)],
    worker_ids: ['x', 'y'],
  } as unknown as Tick
  const second = merge(first, { queues: [queue('b', 3)], names: null, workers: [load('x', 5)], worker_ids: null } as unknown as Tick)
  assert.deepEqual(
    second.queues.map((one) => one.size),
    [1, 3],
  )
  const third = merge(second, { queues: [queue('c', 9)], names: ['b', 'c'], workers: [], worker_ids: ['y'] } as unknown as Tick)
  assert.deepEqual(
    third.queues.map((one) => one.name),
    ['b', 'c'],
  )
  const loads = loadsOf([first, second, third])
  assert.deepEqual(
    loads.get('x')?.map((one) => one.busy),
    [1, 5],
    'a worker that ended is in no later tick',
  )
  assert.deepEqual(
    loads.get('y')?.map((one) => one.busy),
    [2, 2, 2],
    'what did not change is as before',
  )
})

test('a job has yet to run while the server lets it be changed', () => {
  assert.ok(isPending({ can: ['cancel', 'delete', 'change'] }))
  assert.ok(!isPending({ can: ['cancel', 'signal'] }))
  assert.ok(!isPending({ can: ['retry', 'delete', 'again'] }))
})

test('lists begin with what comes next, or happened last', () => {
  assert.deepEqual(orderOf('retrying'), { sort: 'due', order: 'oldest' })
  assert.deepEqual(orderOf('failed'), { sort: 'finished', order: 'newest' })
  assert.deepEqual(orderOf('waiting'), { sort: 'added', order: 'oldest' })
  assert.deepEqual(orderOf(''), { sort: 'added', order: 'newest' })
  assert.deepEqual(orderOf('failed', 'oldest'), { sort: 'finished', order: 'oldest' }, 'as the address says')
  assert.deepEqual(orderOf('failed', 'sideways'), { sort: 'finished', order: 'newest' })
})

test('a query is completed by fields, then by values with their counts', () => {
  const known = {
    tasks: new Map([
      ['charge_card', 7],
      ['send mail', 9],
    ]),
    queues: new Map(),
    states: new Map([['failed', 3]]),
  }
  assert.deepEqual(
    suggest('tag:vip ta', known).map((offer) => offer.label),
    ['task:', 'tag:'],
  )
  assert.deepEqual(
    suggest('task:', known).map((offer) => offer.text),
    ['task:"send mail" ', 'task:charge_card '],
  )
  assert.equal(suggest('state:fa', known)[0]?.note, '3')
  assert.deepEqual(suggest('task:charge_card', known), [])
})

test('a story tells attempts apart after a retry by hand, and begins with the newest', () => {
  const run = (attempt: number, delivery: number, finished_ms: number, outcome: string) => ({
    attempt,
    delivery,
    finished_ms,
    outcome,
    run_id: '',
    worker: 'w',
    ready_ms: 0,
    started_ms: 0,
    wait_ms: 1,
    duration_ms: 2,
    error_class: 'E',
    message: 'm',
    queue_time: delivery === 2 ? { scheduled_ms: 10_000, parked_ms: 0, blocked_ms: 0, in_line_ms: 2_000 } : null,
  })
  const job = {
    state: 'completed',
    enqueued_ms: 1,
    manual_retries: 1,
    errors: [{ attempt: 1, at_ms: 5, error_class: 'E', message: 'm', traceback: '', fingerprint: '' }],
  } as unknown as Detail
  const told = story(
    job,
    { attempts: [run(1, 1, 5, 'failed'), run(1, 2, 9, 'completed')], events: [], complete: true } as Timeline,
    10,
    String,
  )
  assert.deepEqual(
    told.map((entry) => entry.title),
    ['Attempt 1, run 2: completed', 'Attempt 1, run 1: failed for good', 'Added'],
  )
  assert.equal(told[1]?.error?.at_ms, 5)
  assert.deepEqual(
    told.map((entry) => entry.causes),
    ['before it: 10 s scheduled, 2 s in line', '', undefined],
  )
})

test('progress of any kind is drawn', () => {
  assert.equal(share(50), 0.5)
  assert.equal(share({ current: 1, total: 4 }), 0.25)
  assert.equal(describe({ current: 1, total: 4 }), '25% · 1 of 4')
  assert.equal(share('half'), null)
})

test('times are written as people read them', () => {
  assert.equal(duration(250_000), '4 m 10 s')
  assert.equal(relative(1_000, 61_000), '1 m ago')
  assert.equal(relative(3_700_000, 0), 'in 1 h 2 m')
})

test('jobs of a flow stand together by task, or each alone', () => {
  const node = (id: string, task: string) => ({ queue: 'q', id, task, state: 'completed' }) as unknown as FlowNode
  const flow = {
    nodes: [node('1', 'a'), node('2', 'a'), node('3', 'b')],
    edges: [
      { child: 0, dependent: 1, status: 'done' },
      { child: 1, dependent: 2, status: 'open' },
    ],
    asked: 2,
    root: 2,
  } as unknown as Flow
  assert.equal(arrange(flow, 'none').boxes.length, 3)
  const byTask = arrange(flow, 'task')
  assert.deepEqual(
    byTask.boxes.map((box) => box.jobs.length),
    [2, 1],
  )
  assert.equal(byTask.arrows.length, 1)
})

test('runs lie on one axis in the order in which they started', () => {
  const node = (id: string, started_ms: number | null, finished_ms: number | null) =>
    ({ id, started_ms, finished_ms }) as unknown as FlowNode
  const chart = gantt([node('late', 50, null), node('first', 0, 25), node('waits', null, null)], 100)
  assert.deepEqual(
    chart.spans.map((span) => [span.node.id, span.left, span.width]),
    [
      ['first', 0, 0.25],
      ['late', 0.5, 0.5],
    ],
  )
  assert.deepEqual([chart.length, chart.rest], [100, 1])
  assert.deepEqual(gantt([], 5), { spans: [], length: 0, rest: 0 })
})
