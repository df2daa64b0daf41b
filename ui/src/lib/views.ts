/** Views that were saved under a name: what is stored, and the address that one is. */

export interface View {
  name: string
  /** Path and query, without the place in the list. */
  address: string
}

/** The views of a stored text; none when it holds something else. */
export function parseViews(stored: string | null): View[] {
  try {
    const value: unknown = JSON.parse(stored ?? '[]')
    if (!Array.isArray(value)) return []
    return value.filter(
      (one): one is View => typeof one?.name === 'string' && typeof one.address === 'string' && /^\/(?!\/)/.test(one.address),
    )
  } catch {
    return []
  }
}

/** The address of what is looked at, without the page of the list. */
export function addressOf(path: string, query: URLSearchParams): string {
  const kept = new URLSearchParams(query)
  kept.delete('cursor')
  const text = kept.toString()
  return path + (text ? '?' + text : '')
}
