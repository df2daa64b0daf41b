/** Requests to the server that this page came from. */

import { text } from '../texts'

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint = '',
  ) {
    super(message)
  }

  static from(error: unknown): ApiError {
    if (error instanceof ApiError) return error
    return new ApiError(0, text.server.silent, text.server.silentHint)
  }
}

export type Query = Record<string, string | number | boolean | string[] | null | undefined>

export function address(path: string, query: Query = {}): string {
  const url = new URL('api/' + path.replace(/^\//, ''), document.baseURI)
  for (const [name, value] of Object.entries(query)) {
    for (const item of Array.isArray(value) ? value : [value]) {
      if (item !== null && item !== undefined && item !== '') url.searchParams.append(name, String(item))
    }
  }
  return url.href
}

/** A user must sign in first: set by the part that shows the form. */
export const onUnauthorized = { call: () => {} }

async function send(method: string, url: string, body?: unknown, signal?: AbortSignal): Promise<Response> {
  const headers: Record<string, string> = { Accept: 'application/json' }
  if (method !== 'GET') headers['X-Windlass-CSRF'] = '1'
  if (body !== undefined) headers['Content-Type'] = 'application/json'
  const content = body === undefined ? undefined : JSON.stringify(body)
  const answer = await fetch(url, {
    method,
    headers,
    signal,
    body: content,
    // A change is sent even when the page is left; browsers allow that for small ones.
    keepalive: method !== 'GET' && (content?.length ?? 0) < 50_000,
    credentials: 'same-origin',
    cache: 'no-store',
  })
  if (answer.ok) return answer
  if (answer.status === 401) onUnauthorized.call()
  throw await problem(answer)
}

async function problem(answer: Response): Promise<ApiError> {
  let detail = text.server.answered(answer.status, answer.statusText)
  let hint = ''
  try {
    const body = (await answer.json()) as { detail?: unknown; advice?: unknown }
    if (typeof body.detail === 'string' && body.detail) detail = body.detail
    if (typeof body.advice === 'string') hint = body.advice
  } catch {
    // not JSON: the status alone must do
  }
  return new ApiError(answer.status, detail, hint)
}

export async function get<T>(path: string, query: Query = {}, signal?: AbortSignal): Promise<T> {
  return (await (await send('GET', address(path, query), undefined, signal)).json()) as T
}

export async function change<T = void>(
  method: 'POST' | 'PUT' | 'PATCH' | 'DELETE',
  path: string,
  body?: unknown,
  query: Query = {},
): Promise<T> {
  const answer = await send(method, address(path, query), body)
  const content = await answer.text()
  return (content ? JSON.parse(content) : undefined) as T
}

/** A part of a path that holds a queue's name or a job's id. */
export const part = encodeURIComponent

/** A part of a path that may hold anything: servers in between must not take slashes and dots for their own. */
export function named(text: string): string {
  return encodeURIComponent(text.replaceAll('~', '~0').replaceAll('/', '~1').replaceAll('.', '~2'))
}
