/** Where the jobs of a flow stand: in layers, each job to the right of all that it waits for. */

import type { Flow, FlowNode } from './api/types'

/** One box: a job, or many jobs of one task with the same neighbours. */
export interface Box {
  key: string
  jobs: FlowNode[]
  layer: number
  x: number
  y: number
  asked: boolean
}
export interface Arrow {
  key: string
  from: Box
  to: Box
  status: string
}
export interface Layout {
  boxes: Box[]
  arrows: Arrow[]
  width: number
  height: number
}

export const BOX = { width: 204, height: 58, gapX: 68, gapY: 18, margin: 20 }
/** This many alike become one box, unless all are asked for. */
const ALIKE = 8

/** How jobs are put together: those alike with the same neighbours, all of a task, or none. */
export type Together = 'alike' | 'task' | 'none'

export function arrange(flow: Flow, together: Together): Layout {
  const boxes = gather(flow, together)
  const of = new Map<number, Box>()
  for (const box of boxes) for (const job of box.jobs) of.set(flow.nodes.indexOf(job), box)
  const arrows = new Map<string, Arrow>()
  for (const edge of flow.edges) {
    const from = of.get(edge.child)
    const to = of.get(edge.dependent)
    if (!from || !to || from === to) continue
    const key = `${from.key}>${to.key}`
    const known = arrows.get(key)
    if (!known) arrows.set(key, { key, from, to, status: edge.status })
    else if (edge.status === 'open') known.status = 'open'
  }
  const list = [...arrows.values()]
  layers(boxes, list)
  return { boxes, arrows: list, ...place(boxes, list) }
}

function gather(flow: Flow, together: Together): Box[] {
  const above: number[][] = flow.nodes.map(() => [])
  const below: number[][] = flow.nodes.map(() => [])
  for (const edge of flow.edges) {
    above[edge.child]?.push(edge.dependent)
    below[edge.dependent]?.push(edge.child)
  }
  const groups = new Map<string, number[]>()
  flow.nodes.forEach((node, number) => {
    const neighbours = [above[number]?.sort(), below[number]?.sort()]
    const apart = together === 'none' || (together === 'alike' && number === flow.asked)
    const key = apart ? String(number) : JSON.stringify([node.queue, node.task, together === 'task' ? null : neighbours])
    groups.set(key, [...(groups.get(key) ?? []), number])
  })
  const boxes: Box[] = []
  for (const members of groups.values()) {
    const parts = members.length > (together === 'task' ? 1 : ALIKE) ? [members] : members.map((number) => [number])
    for (const part of parts) {
      boxes.push({
        key: String(part[0]),
        jobs: part.flatMap((number) => flow.nodes[number] ?? []),
        layer: 0,
        x: 0,
        y: 0,
        asked: part.includes(flow.asked),
      })
    }
  }
  return boxes
}

/** Longest way from what waits for nothing; a ring (which a store would refuse) ends the climb. */
function layers(boxes: Box[], arrows: Arrow[]): void {
  for (let round = 0; round < boxes.length; round++) {
    let moved = false
    for (const { from, to } of arrows) {
      if (to.layer <= from.layer) {
        to.layer = from.layer + 1
        moved = true
      }
    }
    if (!moved) break
  }
  // What waits for nothing stands right before the first that waits for it.
  for (const box of boxes) {
    if (arrows.some((arrow) => arrow.to === box)) continue
    const next = arrows.filter((arrow) => arrow.from === box).map((arrow) => arrow.to.layer)
    if (next.length) box.layer = Math.min(...next) - 1
  }
}

function place(boxes: Box[], arrows: Arrow[]): { width: number; height: number } {
  const count = Math.max(...boxes.map((box) => box.layer)) + 1
  const columns: Box[][] = Array.from({ length: count }, (_, layer) => boxes.filter((box) => box.layer === layer))
  const most = Math.max(...columns.map((column) => column.length))
  const step = BOX.height + BOX.gapY
  const height = most * step - BOX.gapY + 2 * BOX.margin
  const spread = (): void =>
    columns.forEach((column, layer) =>
      column.forEach((box, row) => {
        box.x = BOX.margin + layer * (BOX.width + BOX.gapX)
        box.y = BOX.margin + (height - 2 * BOX.margin - (column.length * step - BOX.gapY)) / 2 + row * step
      }),
    )
  spread()
  // Sort each column by the middle of its neighbours, to and fro: fewer lines cross.
  for (let round = 0; round < 6; round++) {
    const forward = round % 2 === 0
    for (const column of forward ? columns : [...columns].reverse()) {
      const middle = new Map(
        column.map((box) => [
          box,
          mean(
            arrows.filter((a) => (forward ? a.to : a.from) === box).map((a) => (forward ? a.from : a.to).y),
            box.y,
          ),
        ]),
      )
      column.sort((one, other) => (middle.get(one) ?? 0) - (middle.get(other) ?? 0))
    }
    spread()
  }
  return { width: count * (BOX.width + BOX.gapX) - BOX.gapX + 2 * BOX.margin, height }
}

function mean(values: number[], otherwise: number): number {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : otherwise
}
