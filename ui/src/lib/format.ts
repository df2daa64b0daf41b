/** Numbers, sizes and times as people read them. */

const whole = new Intl.NumberFormat('en-US')

export function count(value: number | null | undefined): string {
  return value == null ? '–' : whole.format(Math.round(value))
}

/** 12 345 -> 12.3k; what is below 10 000 stays exact. */
export function compact(value: number | null | undefined): string {
  if (value == null) return '–'
  const size = Math.abs(value)
  if (size < 10_000) return whole.format(Math.round(value))
  for (const [unit, name] of [
    [1e9, 'B'],
    [1e6, 'M'],
    [1e3, 'k'],
  ] as const) {
    if (size >= unit) return trim(value / unit) + name
  }
  return whole.format(value)
}

/** A rate: one decimal while it is small. */
export function rate(value: number | null | undefined): string {
  if (value == null) return '–'
  if (value === 0) return '0'
  return value < 10 ? value.toFixed(value < 0.1 ? 2 : 1) : compact(value)
}

function trim(value: number): string {
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, '')
}

export function percent(value: number | null | undefined): string {
  if (value == null || Number.isNaN(value)) return '–'
  if (value === 1) return '100%'
  return (value * 100).toFixed(value >= 0.9995 ? 2 : 1) + '%'
}

export function bytes(value: number | null | undefined): string {
  if (value == null) return '–'
  let size = value
  for (const unit of ['B', 'KB', 'MB', 'GB']) {
    if (size < 1024 || unit === 'GB') return (unit === 'B' ? size.toFixed(0) : trim(size)) + ' ' + unit
    size /= 1024
  }
  return ''
}

/** A length of time: 0.4 ms, 52 ms, 1.3 s, 4 m 10 s, 3 h 2 m, 5 d. */
export function duration(ms: number | null | undefined): string {
  if (ms == null || Number.isNaN(ms)) return '–'
  if (ms < 0) return '0 ms'
  if (ms < 1) return ms === 0 ? '0 ms' : ms.toFixed(1) + ' ms'
  if (ms < 1000) return Math.round(ms) + ' ms'
  if (ms < 60_000) return trim(ms / 1000) + ' s'
  const seconds = Math.round(ms / 1000)
  if (seconds < 3600) return join(Math.floor(seconds / 60), 'm', seconds % 60, 's')
  if (seconds < 86_400) return join(Math.floor(seconds / 3600), 'h', Math.floor((seconds % 3600) / 60), 'm')
  return join(Math.floor(seconds / 86_400), 'd', Math.floor((seconds % 86_400) / 3600), 'h')
}

function join(first: number, one: string, second: number, two: string): string {
  return second ? `${first} ${one} ${second} ${two}` : `${first} ${one}`
}

/** Where an instant lies as seen from now: "in 3 m", "12 s ago", "now". */
export function relative(at: number, now: number): string {
  const away = at - now
  const size = Math.abs(away)
  if (size < 1500) return 'now'
  const text = coarse(size)
  return away > 0 ? `in ${text}` : `${text} ago`
}

function coarse(ms: number): string {
  const seconds = Math.round(ms / 1000)
  if (seconds < 60) return `${seconds} s`
  const minutes = Math.round(seconds / 60)
  if (minutes < 60) return `${minutes} m`
  const hours = Math.floor(minutes / 60)
  if (hours < 24) return hours < 6 ? join(hours, 'h', minutes % 60, 'm') : `${hours} h`
  const days = Math.floor(hours / 24)
  return days < 60 ? `${days} d` : `${Math.round(days / 30)} mo`
}

const exactFormat = new Intl.DateTimeFormat(undefined, {
  year: 'numeric',
  month: 'short',
  day: '2-digit',
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  fractionalSecondDigits: 3,
  hourCycle: 'h23',
  timeZoneName: 'short',
})
const clockFormat = new Intl.DateTimeFormat(undefined, {
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  fractionalSecondDigits: 3,
  hourCycle: 'h23',
})

export const exact = (at: number): string => exactFormat.format(at)
export const clock = (at: number): string => clockFormat.format(at)

/** One line of JSON for a table cell. */
export function oneLine(value: unknown, limit = 160): string {
  const text = typeof value === 'string' ? value : (JSON.stringify(value) ?? '')
  return text.length > limit ? text.slice(0, limit - 1) + '…' : text
}

export function plural(many: number, one: string, more = one + 's'): string {
  return `${count(many)} ${many === 1 ? one : more}`
}
