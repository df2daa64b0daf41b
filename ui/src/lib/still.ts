/**
 * Lists that hold still: rows keep their place while the list behind them changes.
 *
 * A row that is there stays where it is and shows its newest record. One that is not in the answer any more
 * is marked as gone. New rows are counted, not shown, unless they come after all the others.
 */

export interface Row<T> {
  item: T
  /** It is in this list no longer. */
  gone: boolean
}

export interface Held<T> {
  rows: Row<T>[]
  /** How many rows of the answer are not shown. */
  fresh: number
}

export const rowsOf = <T>(items: T[]): Row<T>[] => items.map((item) => ({ item, gone: false }))

/**
 * What to show when `answer` has come and `shown` must not move.
 * `limit` is the size of a page; an answer of that size may have pushed rows to the next one.
 */
export function holdStill<T>(shown: Row<T>[], answer: T[], key: (item: T) => string, limit: number): Held<T> {
  const known = new Set(shown.map((row) => key(row.item)))
  const now = new Map(answer.map((item) => [key(item), item]))
  const last = shown.findLastIndex((row) => now.has(key(row.item)))
  const full = answer.length >= limit
  const rows = shown.map((row, at) => {
    const item = now.get(key(row.item))
    if (item !== undefined) return { item, gone: false }
    const pushed = full && at > last && !row.gone
    return { item: row.item, gone: !pushed }
  })
  const end = answer.findLastIndex((item) => known.has(key(item)))
  const after = end < 0 ? [] : answer.slice(end + 1, end + 1 + Math.max(0, limit - rows.length))
  rows.push(...rowsOf(after))
  return { rows, fresh: answer.filter((item) => !known.has(key(item))).length - after.length }
}
