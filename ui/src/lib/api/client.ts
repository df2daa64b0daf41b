/** Every route that the dashboard uses, by name. */

import { change, get, named, part, type Query } from './http'
import type { OpenApi } from '../reference'
import type * as t from './types'

const job = (ref: t.Ref): string => `jobs/${part(ref.queue)}/${part(ref.id)}`
const queue = (name: string): string => `job-queues/${part(name)}`
const schedule = (entry: Scheduled): string => `schedules/${part(entry.queue)}/${named(entry.name)}`

type Scheduled = Pick<t.ScheduleEntry, 'queue' | 'name'>

export interface Listing extends t.Filter {
  sort?: 'added' | 'due' | 'finished'
  order?: 'newest' | 'oldest'
  cursor?: string
  limit?: number
}

function listing({ args, ...rest }: Listing): Query {
  return { ...rest, args: args && JSON.stringify(args) }
}

export const api = {
  session: () => get<t.Session>('session'),
  signIn: (body: { token?: string; username?: string; password?: string }) => change<t.Session>('POST', 'session', body),
  signOut: () => change('DELETE', 'session'),

  openapi: (signal?: AbortSignal) => get<OpenApi>('openapi.json', {}, signal),
  overview: (signal?: AbortSignal) => get<t.Overview>('overview', {}, signal),
  health: (signal?: AbortSignal) => get<t.HealthReport>('v1/health', {}, signal),
  errors: (query: Query, signal?: AbortSignal) => get<t.ErrorGroups>('v1/errors', query, signal),
  processes: (signal?: AbortSignal) => get<t.Process[]>('processes', {}, signal),
  tellProcess: (identity: string, action: 'quiet' | 'resume' | 'stop' | 'dump') => change('POST', `processes/${named(identity)}/${action}`),
  stacks: (identity: string, signal?: AbortSignal) => get<t.WorkerStacks>(`v1/workers/${named(identity)}/stacks`, {}, signal),

  jobs: (filter: Listing, signal?: AbortSignal) => get<t.Items>('jobs', listing(filter), signal),
  job: (ref: t.Ref, signal?: AbortSignal) => get<t.Detail>(job(ref), {}, signal),
  timeline: (ref: t.Ref, signal?: AbortSignal) => get<t.Timeline>(`${job(ref)}/timeline`, {}, signal),
  why: (ref: t.Ref, signal?: AbortSignal) => get<t.Why>(`${job(ref)}/why`, {}, signal),
  act: (ref: t.Ref, action: string, body?: unknown) => change('POST', `${job(ref)}/${action}`, body),
  kill: (ref: t.Ref) => change('POST', `retries/${part(ref.id)}/kill`, undefined, { queue: ref.queue }),
  remove: (ref: t.Ref) => change('DELETE', job(ref)),
  edit: (ref: t.Ref, body: { priority?: number; delay?: number; data?: unknown }) => change('PATCH', job(ref), body),
  again: (ref: t.Ref, data: unknown) => change<t.Ref>('POST', `${job(ref)}/again`, { data }),
  signal: (ref: t.Ref, name: string, data: unknown) => change('POST', `${job(ref)}/signal`, { name, data }),
  bulk: (body: { action: t.BulkAction; refs?: t.Ref[]; filter?: t.Filter; cursor?: string | null; limit?: number; dry_run?: boolean }) =>
    change<t.BulkAnswer>('POST', 'jobs/bulk', body),

  pause: (name: string) => change('POST', `${queue(name)}/pause`),
  resume: (name: string) => change('POST', `${queue(name)}/resume`),
  drain: (name: string, delayed: boolean) => change<t.Changed>('POST', `${queue(name)}/drain`, { delayed }),
  enqueue: (name: string, body: { task: string; data: unknown; options: Record<string, unknown> }) =>
    change<t.Ref>('POST', `${queue(name)}/jobs`, body),
  limits: (name: string, signal?: AbortSignal) => get<t.Limits>(`${queue(name)}/limits`, {}, signal),
  setLimits: (name: string, body: t.QueueLimitsBody) => change('PUT', `${queue(name)}/limits`, body),
  hold: (name: string, seconds: number) => change('POST', `${queue(name)}/hold`, { seconds }),
  groupLimits: (name: string, group: string, signal?: AbortSignal) =>
    get<t.GroupLimits>(`${queue(name)}/groups/${named(group)}/limits`, {}, signal),
  setGroupLimits: (name: string, group: string, body: t.GroupLimitsBody) =>
    change('PUT', `${queue(name)}/groups/${named(group)}/limits`, body),
  removeGroupLimits: (name: string, group: string) => change('DELETE', `${queue(name)}/groups/${named(group)}/limits`),
  actGroup: (name: string, group: string, action: 'pause' | 'resume') => change('POST', `${queue(name)}/groups/${named(group)}/${action}`),
  groups: (name: string, signal?: AbortSignal) => get<t.Groups>(`${queue(name)}/groups`, {}, signal),

  schedules: (signal?: AbortSignal) => get<t.ScheduleEntry[]>('schedules', {}, signal),
  actSchedule: (entry: Scheduled, action: 'pause' | 'resume' | 'run') => change<unknown>('POST', `${schedule(entry)}/${action}`),
  putSchedule: (entry: Scheduled, body: t.ScheduleBody) => change<t.ScheduleEntry>('PUT', schedule(entry), body),
  scheduleRuns: (entry: Scheduled, limit: number, signal?: AbortSignal) => get<t.Items>(`v1/${schedule(entry)}/runs`, { limit }, signal),
  previewSchedule: (rule: Query, signal?: AbortSignal) => get<t.SchedulePreview>('v1/schedules/preview', rule, signal),
  removeSchedule: (entry: Scheduled) => change('DELETE', schedule(entry)),

  flows: (query: Query, signal?: AbortSignal) => get<t.FlowPage>('v1/flows', query, signal),
  cancelFlow: (ref: t.Ref) => change<t.Changed>('POST', `flows/${part(ref.queue)}/${part(ref.id)}/cancel`, {}),
  retryFlow: (ref: t.Ref) => change<t.Changed>('POST', `v1/flows/${part(ref.queue)}/${part(ref.id)}/retry`),
  flow: (ref: t.Ref, signal?: AbortSignal) => get<t.Flow>(`flows/${part(ref.queue)}/${part(ref.id)}`, {}, signal),
  metrics: (query: Query, signal?: AbortSignal) => get<t.JobMetric[]>('job-metrics', query, signal),
  figures: (query: Query, signal?: AbortSignal) => get<t.Metrics>('v1/metrics', query, signal),
  series: (query: Query, signal?: AbortSignal) => get<t.Series>('job-metrics/series', query, signal),
  taskSeries: (query: Query, signal?: AbortSignal) => get<t.TaskSeries[]>('job-metrics/tasks', query, signal),
  marks: (from_ms: number, signal?: AbortSignal) => get<t.Mark[]>('marks', { from_ms }, signal),
  tasks: (signal?: AbortSignal) => get<t.TaskEntry[]>('tasks', {}, signal),
  audit: (query: Query, signal?: AbortSignal) => get<t.Audit>('audit', query, signal),
}
