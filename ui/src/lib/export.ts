/** The address of a file with every job of a list. */

import type { Filter } from './api/types'

/** A word of the language of searches. */
const quoted = (value: string): string => (/[\s"]/.test(value) ? `"${value.replace(/(["\\])/g, '\\$1')}"` : value)

/** A filter as the export takes it: what has no parameter of its own is said in the language of searches. */
export function exportQuery(filter: Filter, format: 'jsonl' | 'csv'): Record<string, string | number | string[] | null | undefined> {
  const terms = [
    filter.search ?? '',
    ...(['task', 'tag', 'error'] as const).flatMap((name) => (filter[name] ? [`${name}:${quoted(filter[name])}`] : [])),
    ...Object.entries(filter.args ?? {}).map(
      ([name, value]) => `args.${name}:${quoted(typeof value === 'string' ? value : JSON.stringify(value))}`,
    ),
  ].filter(Boolean)
  const { queue, state, q, from_ms, to_ms } = filter
  return { format, queue, state, q, from_ms, to_ms, search: terms.join(' ') || undefined }
}
