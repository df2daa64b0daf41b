/** Progress is whatever a handler reports: a number, a share, or an object with how much of how many. */

import { text as catalogue } from './texts'

/** From 0 to 1, or null when nothing of that kind was reported. */
export function share(progress: unknown): number | null {
  if (typeof progress === 'number') return clamp(progress > 1 ? progress / 100 : progress)
  if (progress && typeof progress === 'object') {
    const known = progress as Record<string, unknown>
    const part = known.current ?? known.done ?? known.value
    const whole = known.total ?? known.of
    if (typeof part === 'number' && typeof whole === 'number' && whole > 0) return clamp(part / whole)
    if (typeof known.percent === 'number') return clamp(known.percent / 100)
  }
  return null
}

function clamp(value: number): number {
  return Math.max(0, Math.min(1, value))
}

/** What to write beside the bar. */
export function describe(progress: unknown): string {
  const part = share(progress)
  const text = part === null ? '' : `${Math.round(part * 100)}%`
  if (progress && typeof progress === 'object') {
    const known = progress as Record<string, unknown>
    const message = typeof known.message === 'string' ? known.message : ''
    const fraction = typeof known.current === 'number' && typeof known.total === 'number' ? catalogue.part(known.current, known.total) : ''
    return [text, fraction, message].filter(Boolean).join(' · ') || JSON.stringify(progress)
  }
  return text || (progress == null ? '' : String(progress))
}
