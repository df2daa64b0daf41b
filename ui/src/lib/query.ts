/** Help with the language of searches: what may be written next. The server alone understands it. */

import { text as catalogue } from './texts'

/** The fields and what they mean; `args` is followed by the path of an argument. */
export const FIELDS: [name: string, means: string][] = Object.entries(catalogue.search.fields).map(([name, means]) => [
  name === 'args' ? 'args.' : `${name}:`,
  means,
])

export interface Known {
  tasks: Map<string, number>
  queues: Map<string, number>
  states: Map<string, number>
}

export interface Suggestion {
  /** The whole text with this taken. */
  text: string
  label: string
  note: string
}

const TIMES = ['<1h', '<24h', '<7d', '>7d']

/** What may come at the end of a text: names of fields, or values of the one that is begun. */
export function suggest(text: string, known: Known, most = 8): Suggestion[] {
  const start = text.search(/\S*$/)
  const word = text.slice(start)
  const before = text.slice(0, start)
  const colon = word.indexOf(':')
  if (colon < 0) {
    return FIELDS.filter(([name]) => name.startsWith(word.toLowerCase()) && name !== word)
      .slice(0, most)
      .map(([name, note]) => ({ text: before + name, label: name, note }))
  }
  const field = word.slice(0, colon)
  const typed = word.slice(colon + 1).toLowerCase()
  const values: [string, string][] = ['finished', 'added', 'started', 'due'].includes(field)
    ? TIMES.map((value) => [value, ''])
    : [...({ task: known.tasks, queue: known.queues, state: known.states }[field] ?? [])].map(([value, many]) => [value, String(many)])
  return values
    .filter(([value]) => value.toLowerCase().includes(typed) && value.toLowerCase() !== typed)
    .sort((one, other) => Number(other[1]) - Number(one[1]))
    .slice(0, most)
    .map(([value, note]) => ({
      text: `${before}${field}:${/\s/.test(value) ? JSON.stringify(value) : value} `,
      label: `${field}:${value}`,
      note,
    }))
}
