/** Names for what the API answers. The shapes themselves come from its OpenAPI document. */

export interface LastError { error_class: string; message: string; at_ms: number }
export interface Item {
  queue: string; id: string; task: string; state: string; priority: number
  attempt: number; attempts: number; max_attempts: number
  enqueued_ms: number; ready_ms: number | null; due_ms: number | null; started_ms: number | null; finished_ms: number | null
  duration_ms: number | null; worker: string | null; progress: unknown; error: LastError | null; reason: string
  tags: string[]; group: string | null; schedule: string | null; args_preview: string
}
export interface Items { items: Item[]; next_cursor: string | null; total: number | null }
export interface ErrorEntry { at_ms: number; attempt: number; error_class: string; message: string; traceback: string; fingerprint: string }
export interface EdgeEntry { queue: string; id: string; task: string; state: string | null; status: string; on_failure: string }
export interface Detail extends Item {
  args: unknown[]; kwargs: Record<string, unknown>; data: unknown; result: unknown; has_result: boolean; result_until_ms: number | null
  errors: ErrorEntry[]; options: Record<string, unknown>; deliveries: number; stalls: number; manual_retries: number
  expires_ms: number | null; lease_until_ms: number | null; cancel_reason: string | null; awaits: string | null; signals: string[]
  unique_key: string | null; trace: Record<string, string>; slot_ms: number | null; children: EdgeEntry[]; parents: EdgeEntry[]
  log_lines: number; can: string[]; masked: boolean
}
export interface AttemptEntry {
  attempt: number; delivery: number; run_id: string; worker: string | null; ready_ms: number | null; started_ms: number | null
  finished_ms: number | null; wait_ms: number | null; duration_ms: number | null; outcome: string; error_class: string | null; message: string
}
export interface EventEntry { id: number; at_ms: number; type: string; queue: string; job_id: string; task: string; data: Record<string, string | number | null> }
export interface Timeline { attempts: AttemptEntry[]; events: EventEntry[]; complete: boolean }
export interface LogLine { number: number; text: string }
export interface Logs { lines: LogLine[]; next: number; total: number }
export interface Day { date: string; processed: number; failed: number }
export interface Point {
  start_ms: number; total: number; completed: number; failed: number; retried: number
  wait_p50_ms: number | null; wait_p95_ms: number | null; wait_p99_ms: number | null
  duration_avg_ms: number | null; duration_p50_ms: number | null; duration_p95_ms: number | null; duration_p99_ms: number | null
}
export interface Queue { name: string; paused: boolean; size: number; counts: Record<string, number>; latency_ms: number; processed: number; failed: number }
export interface QueueEntry extends Queue { per_minute: number[] }
export interface Overview {
  now_ms: number; processed_today: number; failed_today: number; processed_total: number; failed_total: number
  counts: Record<string, number>; queues: QueueEntry[]; scheduled_count: number; retry_count: number; dead_count: number
  active_processes: number; busy_workers: number; slots: number; minutes: Point[]; days: Day[]; hour: Point | null
}
export interface Series { step: string; source: string; points: Point[] }
export interface TaskSeries { queue: string; task: string; points: Point[] }
export interface JobMetric {
  job_class: string; queue: string; total: number; success: number; failed: number; retried: number; success_rate: number | null
  avg_ms: number | null; max_ms: number | null; p50_ms: number | null; p95_ms: number | null; p99_ms: number | null
  wait_avg_ms: number | null; wait_p50_ms: number | null; wait_p95_ms: number | null; wait_p99_ms: number | null; wait_max_ms: number | null
  outcomes: Record<string, number>
}
export interface RunningJob { queue: string; id: string; task: string; started_ms: number | null; progress: unknown }
export interface Process {
  identity: string; hostname: string; pid: number; tag: string; concurrency: number; busy: number; beat: number; rss_kb: number
  queues: string[]; version: string; started_ms: number; beat_ms: number; quiet: boolean; leader: boolean; command: string | null; running: RunningJob[]
}
export interface ScheduleEntry {
  queue: string; name: string; task: string; rule: string; cron: string | null; every: number | null; strategy: string | null; timezone: string
  paused: boolean; source: string; next_ms: number | null; last_ms: number | null; last_job_id: string | null; fired: number; skipped: number
  limit: number | null; start_ms: number | null; end_ms: number | null; missed: string; overlap: string; upcoming: number[]; data: unknown
}
export interface FlowNode {
  queue: string; id: string; task: string; state: string; progress: unknown; started_ms: number | null; finished_ms: number | null
  duration_ms: number | null; gone: boolean; truncated: boolean
}
export interface FlowEdge { child: number; dependent: number; status: string; on_failure: string }
export interface Flow { root: number; asked: number; nodes: FlowNode[]; edges: FlowEdge[]; truncated: boolean }
export interface Session {
  authenticated: boolean; user: string; role: 'operator' | 'reader' | 'none'; read_only: boolean; auth: string[]; version: string; backend: string
  namespace: string; capabilities: string[]; lake: boolean; now_ms: number
}
export interface AuditEntry {
  id: number; at_ms: number; who: string; role: string; client: string; method: string; action: string; target: string; status: number
  outcome: string; facts: Record<string, string | number | boolean | null>
}
export interface Tick {
  at_ms: number; counts: Record<string, number>; queues: Queue[]; enqueued_per_s: number; completed_per_s: number; failed_per_s: number
  processed_total: number; failed_total: number; active_processes: number; busy_workers: number; slots: number
}
export interface RateValue { max: number; seconds: number }
export interface BucketValue { capacity: number; refill_per_s: number }
export interface GroupLimits { concurrency: number | null; rate: RateValue | null; bucket: BucketValue | null; ordered: boolean; max_size: number | null }
export interface Limits { queue: string; concurrency: number | null; rate: RateValue | null; hold_until_ms: number | null; every_group: GroupLimits }
export interface Group { name: string; size: number; waiting: number; parked: number; active: number; next_ms: number | null; paused: boolean }
export interface BulkAnswer { done: number; failed: number; next_cursor: string | null; remaining: number | null }
export interface TaskEntry { queue: string; task: string; totals: Record<string, number> }
export interface Ref { queue: string; id: string }
export interface Filter {
  queue?: string[]; state?: string[]; task?: string; tag?: string; error?: string; args?: Record<string, unknown>; q?: string; from_ms?: number; to_ms?: number
}
export type BulkAction = 'retry' | 'delete' | 'cancel' | 'trigger'
