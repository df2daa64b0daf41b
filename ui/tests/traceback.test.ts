import assert from 'node:assert/strict'
import { test } from 'node:test'
import { deepestFirst, parse } from '../src/lib/traceback.ts'

const PLAIN = `Traceback (most recent call last):
  File "shop/worker.py", line 84, in run
    receipt = await gateway.charge(order)
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "shop/gateway.py", line 31, in charge
    raise PaymentRefused(order)
shop.PaymentRefused: card 4242 was refused
by the bank
`

test('the error and the deepest frame come first', () => {
  const lines = deepestFirst(PLAIN).split('\n')
  assert.deepEqual(lines.slice(0, 4), [
    'shop.PaymentRefused: card 4242 was refused',
    'by the bank',
    '  File "shop/gateway.py", line 31, in charge',
    '    raise PaymentRefused(order)',
  ])
  assert.equal(lines[4], '  File "shop/worker.py", line 84, in run')
})

test('the last error of a chain comes first', () => {
  const chain = `${PLAIN}\nDuring handling of the above exception, another exception occurred:\n\nTraceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nValueError: no\n`
  const turned = deepestFirst(chain)
  assert.ok(turned.startsWith('ValueError: no\n  File "a.py"'))
  assert.ok(turned.indexOf('Earlier error:') < turned.indexOf('shop.PaymentRefused'))
})

test('what is no traceback stays as it is', () => {
  assert.equal(parse('killed by signal 9'), null)
  assert.equal(deepestFirst('killed by signal 9'), 'killed by signal 9')
  const group = '  + Exception Group Traceback (most recent call last):\n  |   File "a.py", line 1\n'
  assert.equal(deepestFirst(group), group)
})
