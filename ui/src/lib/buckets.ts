/** Buckets of a chart: the last one may not be over, and must not look like a fall. */

/** How many buckets at the end of `at` (their starts, growing) are not over at `now`. */
export function unfinished(at: number[], unit: number, now: number): number {
  return at.filter((start) => start + unit > now).length
}

export interface Parts {
  /** What is over; null where it is not. */
  solid: (number | null)[]
  /** From the last bucket that is over to the end: drawn dashed. */
  dashed: (number | null)[]
}

/** Split the values of a line where the unfinished part begins. */
export function split(values: (number | null)[], open: number): Parts {
  const edge = values.length - open
  return {
    solid: values.map((value, at) => (at < edge ? value : null)),
    dashed: values.map((value, at) => (open && at >= edge - 1 ? value : null)),
  }
}

/** Where a line has only one value, and so nothing to draw a line to: it is drawn as a point. */
export function lone(values: ArrayLike<number | null | undefined>): number[] | null {
  const there = Array.from(values).flatMap((value, at) => (value == null ? [] : [at]))
  return there.length === 1 ? there : null
}
