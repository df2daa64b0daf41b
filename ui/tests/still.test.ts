import assert from 'node:assert/strict'
import { test } from 'node:test'
import { holdStill, rowsOf } from '../src/lib/still.ts'

const key = (item: string): string => item
const shown = (...items: string[]) => rowsOf(items)
const names = (rows: { item: string; gone: boolean }[]): string => rows.map((row) => row.item + (row.gone ? '-' : '')).join(' ')

test('new rows in front are counted, not shown', () => {
  const held = holdStill(shown('a', 'b', 'c'), ['y', 'z', 'a', 'b', 'c'], key, 10)
  assert.equal(names(held.rows), 'a b c')
  assert.equal(held.fresh, 2)
})

test('new rows at the end are shown while there is room', () => {
  const held = holdStill(shown('a', 'b'), ['a', 'b', 'c', 'd'], key, 3)
  assert.equal(names(held.rows), 'a b c')
  assert.equal(held.fresh, 1)
})

test('a row that left is marked and keeps its place', () => {
  const held = holdStill(shown('a', 'b', 'c'), ['a', 'c'], key, 10)
  assert.equal(names(held.rows), 'a b- c')
  assert.equal(held.fresh, 0)
})

test('a row that was pushed to the next page has not left', () => {
  const held = holdStill(shown('a', 'b', 'c'), ['x', 'a', 'b'], key, 3)
  assert.equal(names(held.rows), 'a b c')
  assert.equal(held.fresh, 1)
})

test('a row that is back is there again', () => {
  const once = holdStill(shown('a', 'b'), ['a'], key, 10)
  assert.equal(names(holdStill(once.rows, ['a', 'b'], key, 10).rows), 'a b')
})

test('what is shown is the newest record', () => {
  const before = rowsOf([{ id: 1, state: 'waiting' }])
  const held = holdStill(before, [{ id: 1, state: 'active' }], (item) => String(item.id), 10)
  assert.equal(held.rows[0]?.item.state, 'active')
})
