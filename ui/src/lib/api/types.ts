/** Names for what the API answers and takes. The shapes come from its OpenAPI document: see `scripts/build-ui --types`. */

import type { components } from './schema'

type Schemas = components['schemas']

export type Item = Schemas['Item']
export type Items = Schemas['Items']
export type ErrorEntry = Schemas['ErrorEntry']
export type QueueTimeEntry = Schemas['QueueTimeEntry']
export type EdgeEntry = Schemas['EdgeEntry']
export type Detail = Schemas['Detail']
export type AttemptEntry = Schemas['AttemptEntry']
export type EventEntry = Schemas['EventEntry']
export type Timeline = Schemas['Timeline']
export type LogLine = Schemas['LogLine']
export type Logs = Schemas['Logs']
export type Day = Schemas['Day']
export type Point = Schemas['Point']
export type Queue = Schemas['Queue']
export type QueueEntry = Schemas['QueueEntry']
export type Overview = Schemas['Overview']
export type Series = Schemas['Series']
export type TaskSeries = Schemas['TaskSeries']
export type JobMetric = Schemas['JobMetric']
export type Process = Schemas['Process']
export type WorkerStacks = Schemas['WorkerStacks']
export type ScheduleEntry = Schemas['ScheduleEntry']
export type ScheduleBody = Partial<Schemas['ScheduleBody']>
export type SchedulePreview = Schemas['SchedulePreview']
export type QueueLimitsBody = Schemas['QueueLimitsBody']
export type GroupLimitsBody = Partial<Schemas['GroupLimitsBody']>
export type FlowNode = Schemas['FlowNode']
export type FlowEdge = Schemas['FlowEdge']
export type FlowEntry = Schemas['FlowEntry']
export type FlowPage = Schemas['FlowPage']
export type Metrics = Schemas['Metrics']
export type Bucket = Schemas['Bucket']
export type Flow = Schemas['Flow']
export type Session = Schemas['Session']
export type AuditEntry = Schemas['AuditEntry']
export type Audit = Schemas['Audit']
export type RateValue = Schemas['RateValue']
export type BucketValue = Schemas['BucketValue']
export type GroupLimits = Schemas['GroupLimits']
export type Limits = Schemas['Limits']
export type Group = Schemas['Group']
export type Groups = Schemas['Groups']
export type BulkAnswer = Schemas['BulkAnswer']
export type BulkBody = Schemas['BulkBody']
export type TaskEntry = Schemas['TaskEntry']
export type Ref = Schemas['Ref']
export type Cause = Schemas['Cause']
export type Why = Schemas['Why']
export type HealthReport = Schemas['HealthReport']
export type Finding = Schemas['FindingEntry']
export type LostWorker = Schemas['LostWorker']
export type ErrorGroup = Schemas['ErrorGroup']
export type ErrorGroups = Schemas['ErrorGroups']
export type Mark = Schemas['Mark']
export type Added = Schemas['Added']
export type Changed = Schemas['Changed']
export type Filter = Partial<Schemas['Filter']>
export type BulkAction = BulkBody['action']
export type JobState = Schemas['JobState']

/** What the live stream sends about once a second. */
export interface Tick {
  at_ms: number
  counts: Record<string, number>
  queues: Queue[]
  enqueued_per_s: number
  completed_per_s: number
  failed_per_s: number
  processed_total: number
  failed_total: number
  active_processes: number
  busy_workers: number
  quiet_workers: number
  slots: number
  workers: { id: string; busy: number; rss_kb: number; cpu_percent: number }[]
  /** The names of all queues, when one came or went, and the same of workers. */
  names: string[] | null
  worker_ids: string[] | null
}
