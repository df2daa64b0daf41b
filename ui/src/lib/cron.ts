/** A cron text in words. The server alone computes when it fires; this is for people who read it. */

import { text } from './texts'

const words = text.cron

interface Field {
  all: boolean
  step: number
  values: string[]
}

function field(given: string): Field | null {
  const every = /^\*(?:\/(\d+))?$/.exec(given)
  if (every) return { all: true, step: Number(every[1] ?? 1), values: [] }
  const values = given.split(',')
  return values.every((value) => /^(\d+|[a-z]{3})(-(\d+|[a-z]{3}))?$/i.test(value)) ? { all: false, step: 1, values } : null
}

const SHORT: Record<string, string> = {
  '@yearly': '0 0 1 1 *',
  '@annually': '0 0 1 1 *',
  '@monthly': '0 0 1 * *',
  '@weekly': '0 0 * * 0',
  '@daily': '0 0 * * *',
  '@midnight': '0 0 * * *',
  '@hourly': '0 * * * *',
}

const names = (values: string[], of: readonly string[], from: number): string =>
  words.list(
    values.map((value) => {
      const [first = '', last] = value.split('-')
      const name = (one: string): string =>
        of[Number(one) - from] ?? of.find((known) => known.toLowerCase().startsWith(one.toLowerCase())) ?? one
      return last ? words.range(name(first), name(last)) : name(first)
    }),
  )

/** Empty when it is written in a way that this does not read. */
export function inWords(cron: string): string {
  const parts = (SHORT[cron.trim().toLowerCase()] ?? cron).trim().split(/\s+/)
  if (parts.length !== 5) return ''
  const [minute, hour, day, month, week] = parts.map(field)
  if (!minute || !hour || !day || !month || !week) return ''
  const plain = (one: Field): boolean => !one.all && one.values.every((value) => /^\d+$/.test(value))
  const days = [
    week.all
      ? ''
      : words.on(
          names(
            week.values.map((value) => value.replace(/\b7\b/g, '0')),
            words.weekdays,
            0,
          ),
        ),
    day.all ? (day.step > 1 ? words.everyDays(day.step) : '') : words.onDays(words.list(day.values)),
  ].filter(Boolean)
  const when = days.join(words.or) || words.everyDay
  const months = month.all ? (month.step > 1 ? words.everyMonths(month.step) : '') : words.in(names(month.values, words.months, 1))
  const time = timeOf(minute, hour, plain)
  return time ? [time, hour.all && when === words.everyDay ? '' : when, months].filter(Boolean).join(' ') : ''
}

function timeOf(minute: Field, hour: Field, plain: (one: Field) => boolean): string {
  const two = (value: string): string =>
    value
      .split('-')
      .map((one) => one.padStart(2, '0'))
      .join('-')
  if (plain(minute) && plain(hour)) {
    return words.at(words.list(hour.values.flatMap((h) => minute.values.map((m) => `${two(h)}:${two(m)}`))))
  }
  const between = hour.all ? (hour.step > 1 ? words.everyHours(hour.step) : '') : words.hours(words.list(hour.values.map(two)))
  if (minute.all) return [minute.step > 1 ? words.everyMinutes(minute.step) : words.everyMinute, between].filter(Boolean).join(' ')
  if (!plain(minute)) return ''
  if (minute.values.length === 1 && hour.all && hour.step === 1)
    return words.hourly(minute.values[0] === '0' ? '' : two(minute.values[0] ?? ''))
  return [words.pastHour(words.list(minute.values.map(two))), between].filter(Boolean).join(' ')
}
