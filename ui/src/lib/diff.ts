/** The difference of two texts, line by line: what two attempts have in common, and what not. */

export interface Piece {
  kind: 'same' | 'gone' | 'new'
  text: string
}

/** Texts longer than this are not compared line by line: it takes the product of their lengths. */
const MOST_LINES = 600

export function diff(before: string, after: string): Piece[] {
  const one = before.replace(/\n$/, '').split('\n').slice(0, MOST_LINES)
  const other = after.replace(/\n$/, '').split('\n').slice(0, MOST_LINES)
  // longest[i][j]: how many lines one[i..] and other[j..] have in common, in order.
  const longest = Array.from({ length: one.length + 1 }, () => new Array<number>(other.length + 1).fill(0))
  const at = (i: number, j: number): number => longest[i]?.[j] ?? 0
  for (let i = one.length - 1; i >= 0; i--) {
    const row = longest[i] ?? []
    for (let j = other.length - 1; j >= 0; j--) row[j] = one[i] === other[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1))
  }
  const pieces: Piece[] = []
  let [i, j] = [0, 0]
  while (i < one.length || j < other.length) {
    if (i < one.length && j < other.length && one[i] === other[j]) {
      pieces.push({ kind: 'same', text: one[i] ?? '' })
      i += 1
      j += 1
    } else if (i < one.length && (j >= other.length || at(i + 1, j) >= at(i, j + 1))) {
      pieces.push({ kind: 'gone', text: one[i] ?? '' })
      i += 1
    } else {
      pieces.push({ kind: 'new', text: other[j] ?? '' })
      j += 1
    }
  }
  return pieces
}
