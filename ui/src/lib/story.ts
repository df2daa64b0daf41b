/** What happened to a job, as one list: attempts with their errors, and events that say more than they do. */

import type { Detail, ErrorEntry, QueueTimeEntry, Timeline } from './api/types'
import { duration } from './format'
import { text } from './texts'

export interface Entry {
  at: number
  tone: string
  title: string
  note: string
  wait?: number | null
  run?: number | null
  /** What it waited for, if that was more than its turn. */
  causes?: string
  error?: ErrorEntry
}

const TONES: Record<string, string> = {
  completed: 'completed',
  retrying: 'retrying',
  failed: 'failed',
  stalled: 'failed',
  expired: 'failed',
  snoozed: 'scheduled',
}
const words = text.job

/** The newest first. `now` is for a run that has not ended; `exact` writes an instant. */
export function story(job: Detail, timeline: Timeline, now: number, exact: (at: number) => string): Entry[] {
  const due = job.state === 'scheduled' && job.due_ms ? words.dueAt(exact(job.due_ms)) : ''
  const list: Entry[] = [{ at: job.enqueued_ms, tone: 'waiting', title: words.added, note: due }]
  // After a retry by hand attempts are counted anew: then the number of the run distinguishes them.
  const twice = job.manual_retries > 0
  for (const run of timeline.attempts) {
    const what = words.outcomes[run.outcome] ?? run.outcome
    const error = job.errors.find((one) => one.attempt === run.attempt && one.at_ms === run.finished_ms)
    list.push({
      at: run.finished_ms ?? run.started_ms ?? 0,
      tone: TONES[run.outcome] ?? 'cancelled',
      title: run.attempt ? words.attempt(run.attempt, twice && run.delivery ? run.delivery : null, what) : what,
      note: [error ? '' : [run.error_class, run.message].filter(Boolean).join(': '), run.worker].filter(Boolean).join(' · '),
      wait: run.wait_ms,
      run: run.duration_ms,
      causes: causes(run.queue_time),
      error,
    })
  }
  for (const event of timeline.events) {
    const title = words.events[event.type]
    if (title) list.push({ at: event.at_ms, tone: 'cancelled', title, note: '' })
  }
  list.sort((one, other) => one.at - other.at)
  const next = present(job, now)
  if (next) list.push(next)
  return list.reverse()
}

/** How long an attempt waited for what, without what took no time. */
function causes(time: QueueTimeEntry | null): string {
  if (!time) return ''
  const names = Object.keys(words.causes) as (keyof QueueTimeEntry)[]
  const spans = names.filter((name) => time[name]).map((name) => `${duration(time[name])} ${words.causes[name]}`)
  return spans.length ? words.waitedFor(spans) : ''
}

/** What it does now, or waits for. */
function present(job: Detail, now: number): Entry | null {
  if (job.state === 'active' && job.started_ms) {
    const wait = job.ready_ms ? job.started_ms - job.ready_ms : null
    return {
      at: job.started_ms,
      tone: 'active',
      title: words.running(job.attempt),
      note: job.worker ?? '',
      wait,
      run: now - job.started_ms,
    }
  }
  if (job.due_ms && job.state === 'retrying') return { at: job.due_ms, tone: 'retrying', title: words.isDue(job.attempts + 1), note: '' }
  if (job.due_ms && job.state === 'scheduled') return { at: job.due_ms, tone: 'scheduled', title: words.due, note: '' }
  if (job.state === 'waiting') return { at: job.ready_ms ?? job.enqueued_ms, tone: 'waiting', title: words.waiting, note: '' }
  return null
}
