/** Help with the language of searches: what may be written next. The server alone understands it. */

export const FIELDS: [name: string, means: string][] = [
  ['task:', 'charge_card, send_*'],
  ['error:', 'the class of its last error, or words of its message'],
  ['state:', 'failed, or several: failed,retrying'],
  ['queue:', 'its queue'],
  ['tag:', 'one of its tags'],
  ['args.', 'an argument: args.customer.id:42'],
  ['finished:', 'when it ended: <1h, >2d, >=2026-01-31'],
  ['added:', 'when it was added'],
  ['due:', 'when it is due: <1h is within the next hour'],
  ['started:', 'when its last run began'],
  ['took:', 'how long its last run took: >5s'],
  ['group:', 'its group'],
  ['worker:', 'the worker that runs or ran it'],
  ['schedule:', 'the schedule that made it'],
  ['attempts:', 'failed runs: >2'],
  ['priority:', '>=5'],
  ['fingerprint:', 'errors that differ only in numbers and names'],
  ['reason:', 'why it failed or was cancelled'],
  ['id:', 'its id'],
]

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
