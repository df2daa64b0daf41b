/** The filters of a list, as the address holds them. */

import type { Filter } from './api/types'
import { router } from './router.svelte'
import { isState } from './states'
import { text as catalogue } from './texts'

const HOUR = 3_600_000
const since = catalogue.pages.filters.since
export const SINCE: [string, string, number][] = [
  ['1h', since.hour, HOUR],
  ['24h', since.day, 24 * HOUR],
  ['7d', since.week, 7 * 24 * HOUR],
  ['30d', since.days30, 30 * 24 * HOUR],
]

/** `name=value` pairs; a value that is JSON counts as what it says, any other as text. */
export function parseArgs(text: string): Record<string, unknown> | undefined {
  const found: Record<string, unknown> = {}
  for (const piece of text.split(',')) {
    const [name = '', ...rest] = piece.split('=')
    if (!name.trim() || !rest.length) continue
    const value = rest.join('=').trim()
    try {
      found[name.trim()] = JSON.parse(value) as unknown
    } catch {
      found[name.trim()] = value
    }
  }
  return Object.keys(found).length ? found : undefined
}

/** What the address asks for. */
export function filterOf(fixed: Filter = {}): Filter {
  const chosen = SINCE.find(([key]) => key === router.get('since'))
  // Whole minutes: the same address asks the same question for a while.
  const from = chosen ? Math.floor((Date.now() - chosen[2]) / 60_000) * 60_000 : undefined
  const filter: Filter = {
    queue: router.all('queue'),
    state: router.all('state').filter(isState),
    task: router.get('task') || undefined,
    tag: router.get('tag') || undefined,
    error: router.get('error') || undefined,
    q: router.get('q') || undefined,
    search: router.get('search') || undefined,
    args: parseArgs(router.get('args')),
    from_ms: from,
    ...fixed,
  }
  return Object.fromEntries(Object.entries(filter).filter(([, value]) => value !== undefined && !(Array.isArray(value) && !value.length)))
}

export const FILTER_NAMES = ['queue', 'state', 'task', 'tag', 'error', 'q', 'search', 'args', 'since']

export function filtered(except: string[] = []): boolean {
  return FILTER_NAMES.some((name) => !except.includes(name) && router.query.has(name))
}

export function clearFilters(): void {
  router.set(Object.fromEntries([...FILTER_NAMES, 'cursor'].map((name) => [name, null])))
}
