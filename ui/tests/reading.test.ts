import assert from 'node:assert/strict'
import { test } from 'node:test'
import { diff } from '../src/lib/diff.ts'
import { traceLink } from '../src/lib/trace.ts'
import { addressOf, parseViews } from '../src/lib/views.ts'

test('a difference keeps what both texts have', () => {
  assert.deepEqual(
    diff('one\ntwo\nthree\n', 'one\n2\nthree\nfour').map((piece) => `${piece.kind} ${piece.text}`),
    ['same one', 'gone two', 'new 2', 'same three', 'new four'],
  )
  assert.ok(diff('a\nb', 'a\nb').every((piece) => piece.kind === 'same'))
})

test('the link to a trace has what the template names, or is not there', () => {
  const trace = { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' }
  const job = { queue: 'mail', id: 'a b', task: 'send', trace }
  assert.equal(traceLink('https://t/{trace_id}?s={span_id}', job), 'https://t/0af7651916cd43dd8448eb211c80319c?s=b7ad6b7169203331')
  assert.equal(traceLink('https://t/{queue}/{id}', job), 'https://t/mail/a%20b')
  assert.equal(traceLink('https://t/{trace_id}', { ...job, trace: {} }), null)
  assert.equal(traceLink('javascript:{id}', job), null)
  assert.equal(traceLink('', job), null)
})

test('a saved view is its address without the place in the list', () => {
  assert.equal(addressOf('/search', new URLSearchParams('search=task:a&cursor=xyz')), '/search?search=task%3Aa')
  assert.equal(addressOf('/retries', new URLSearchParams('cursor=xyz')), '/retries')
})

test('what another program stored as views is left out', () => {
  const good = { name: 'mine', address: '/search?q=1' }
  assert.deepEqual(parseViews(JSON.stringify([good, { name: 1 }, null, { name: 'x', address: '//elsewhere' }])), [good])
  assert.deepEqual(parseViews('{'), [])
  assert.deepEqual(parseViews('{}'), [])
  assert.deepEqual(parseViews(null), [])
})
