/** Addresses of views. Everything that a view shows is in its address: path and query hold all filters. */

const base = new URL(document.baseURI).pathname // ends with a slash: the prefix of the mount

class Router {
  path = $state(here())
  query = $state.raw(new URLSearchParams(location.search))

  constructor() {
    addEventListener('popstate', () => this.#read())
  }

  #read(): void {
    this.path = here()
    this.query = new URLSearchParams(location.search)
  }

  /** Go to a view; `path` begins with a slash and may carry a query. */
  go(path: string, options: { replace?: boolean; keepScroll?: boolean } = {}): void {
    const target = href(path)
    if (target === location.pathname + location.search) return
    history[options.replace ? 'replaceState' : 'pushState'](null, '', target)
    this.#read()
    if (!options.keepScroll) scrollTo(0, 0)
  }

  /** Change some parameters of this view's query; null or '' takes one away. */
  set(changes: Record<string, string | string[] | null | undefined>, options: { replace?: boolean } = {}): void {
    const next = new URLSearchParams(this.query)
    for (const [name, value] of Object.entries(changes)) {
      next.delete(name)
      for (const item of Array.isArray(value) ? value : [value]) if (item) next.append(name, item)
    }
    const text = next.toString()
    this.go(this.path + (text ? '?' + text : ''), { ...options, keepScroll: true })
  }

  get(name: string): string {
    return this.query.get(name) ?? ''
  }

  all(name: string): string[] {
    return this.query.getAll(name)
  }
}

function here(): string {
  const path = location.pathname
  return '/' + (path.startsWith(base) ? path.slice(base.length) : path.replace(/^\//, ''))
}

/** The full address of a view, under whatever prefix the dashboard is mounted. */
export function href(path: string): string {
  return base + path.replace(/^\//, '')
}

/** The same view of another store of this dashboard, whose pages are beside these; what is about one thing of this store
 * leads to the overview. */
export function storeHref(name: string, path: string): string {
  const view = path.slice(1)
  return base.replace(/[^/]+\/$/, '') + encodeURIComponent(name) + '/' + (view.includes('/') ? '' : view)
}

export const jobPath = (queue: string, id: string): string => `/jobs/${encodeURIComponent(queue)}/${encodeURIComponent(id)}`
export const flowPath = (queue: string, id: string): string => `/flows/${encodeURIComponent(queue)}/${encodeURIComponent(id)}`
export const queuePath = (queue: string): string => `/job-queues/${encodeURIComponent(queue)}`

/** Plain clicks on links into the dashboard do not load the page again. */
export function followLinks(event: MouseEvent): void {
  if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return
  const link = (event.target as Element | null)?.closest('a')
  if (!link || link.target || link.hasAttribute('download') || link.origin !== location.origin) return
  if (!link.pathname.startsWith(base) || link.pathname.startsWith(base + 'api')) return
  event.preventDefault()
  router.go('/' + link.pathname.slice(base.length) + link.search)
}

export const router = new Router()
