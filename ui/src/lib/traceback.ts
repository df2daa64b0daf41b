/** Python's tracebacks, with the frame where it happened first. */

import { text as catalogue } from './texts'

const HEADER = 'Traceback (most recent call last):'

interface Part {
  /** The line between this error and the one before, such as "During handling of..."; empty for the first. */
  link: string
  frames: string[][]
  error: string[]
}

/** The errors of a traceback in the order in which they are written; null when it is none that can be turned. */
export function parse(text: string): Part[] | null {
  const parts: Part[] = []
  let part: Part | null = null
  let link = ''
  for (const line of text.replace(/\n+$/, '').split('\n')) {
    if (line === HEADER) {
      part = { link, frames: [], error: [] }
      parts.push(part)
      link = ''
    } else if (!part) {
      if (line.trim()) return null
    } else if (/^ {2}File "/.test(line)) {
      if (part.error.length) return null
      part.frames.push([line])
    } else if (part.frames.length && !part.error.length && (line.startsWith('    ') || line.startsWith('  ['))) {
      part.frames.at(-1)?.push(line)
    } else if (/^(During handling of the above|The above exception was the direct cause)/.test(line)) {
      link = line
    } else if (line.trim() || part.error.length) {
      if (line.trim()) part.error.push(line)
    }
  }
  return parts.length && parts.every((one) => one.error.length) ? parts : null
}

/** The same text with the last error first and the deepest frame first in each; unchanged when it cannot be turned. */
export function deepestFirst(text: string): string {
  const parts = parse(text)
  if (!parts) return text
  const lines: string[] = []
  for (const [at, part] of parts.toReversed().entries()) {
    if (at) lines.push('', catalogue.job.errorBefore)
    lines.push(...part.error, ...part.frames.toReversed().flat())
  }
  return lines.join('\n')
}
