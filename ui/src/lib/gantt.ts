/** The runs of a flow on one axis of time. */

import type { FlowNode } from './api/types'

export interface Span {
  node: FlowNode
  /** From 0 to 1. */
  left: number
  width: number
}

export interface Gantt {
  spans: Span[]
  /** Length of the axis in milliseconds. */
  length: number
  /** Jobs that have not started. */
  rest: number
}

/** In the order in which they started; what runs reaches to `now`. */
export function gantt(nodes: FlowNode[], now: number): Gantt {
  const ran = nodes.flatMap((node) => (node.started_ms === null ? [] : [{ node, from: node.started_ms, to: node.finished_ms ?? now }]))
  ran.sort((one, other) => one.from - other.from || one.to - other.to)
  const first = Math.min(...ran.map((one) => one.from))
  const length = Math.max(1, Math.max(...ran.map((one) => one.to)) - first)
  const spans = ran.map(({ node, from, to }) => ({ node, left: (from - first) / length, width: Math.max(0, to - from) / length }))
  return { spans, length: ran.length ? length : 0, rest: nodes.length - ran.length }
}
