"""The operations of the HTTP API. Made by ``python -m tools.make_client``: do not edit."""

# ruff: noqa: PLR0913 - operations take what the API takes

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from windlass.client.connection import Connection


class Added(TypedDict):
    """Added."""

    queue: str
    id: str
    outcome: str
    state: JobState
    not_taken: NotRequired[list[str]]


class AddedMany(TypedDict):
    """AddedMany."""

    jobs: list[Added]
    refused: list[str]


class AgainBody(TypedDict):
    """AgainBody."""

    data: NotRequired[Any]


class AttemptEntry(TypedDict):
    """AttemptEntry."""

    run: int
    attempt: int
    delivery: int
    run_id: str
    worker: str | None
    ready_ms: int | None
    started_ms: int | None
    finished_ms: int | None
    wait_ms: int | None
    duration_ms: int | None
    outcome: str
    error_class: str | None
    message: str
    queue_time: QueueTimeEntry | None


class Backlog(TypedDict):
    """Backlog."""

    waiting: int
    oldest_ms: int | None


class Bucket(TypedDict):
    """Bucket."""

    from_ms: int
    to_ms: int | None
    count: int


class BucketValue(TypedDict):
    """BucketValue."""

    capacity: int
    refill_per_s: float


class BulkAnswer(TypedDict):
    """BulkAnswer."""

    done: int
    failed: int
    next_cursor: str | None
    remaining: int | None
    states: NotRequired[dict[str, int]]
    dry_run: NotRequired[bool]


class BulkBody(TypedDict):
    """BulkBody."""

    action: Literal["retry", "delete", "cancel", "kill", "trigger"]
    refs: NotRequired[list[Ref] | None]
    filter: NotRequired[Filter | None]
    sort: NotRequired[Sort]
    order: NotRequired[Literal["oldest", "newest"]]
    cursor: NotRequired[str | None]
    limit: NotRequired[int]
    reason: NotRequired[str]
    dry_run: NotRequired[bool]


class CancelAnswer(TypedDict):
    """CancelAnswer."""

    result: str


class Cause(TypedDict):
    """Cause."""

    kind: str
    text: str
    advice: NotRequired[str]
    until_ms: NotRequired[int | None]
    limit: NotRequired[int | None]
    used: NotRequired[int | None]
    jobs: NotRequired[list[EdgeEntry]]
    job_count: NotRequired[int | None]


class ChangeBody(TypedDict):
    """ChangeBody."""

    priority: NotRequired[int]
    delay: NotRequired[float]
    data: NotRequired[Any]


class Changed(TypedDict):
    """Changed."""

    count: int
    more: NotRequired[bool]


class CleanBody(TypedDict):
    """CleanBody."""

    states: NotRequired[list[JobState]]
    grace: NotRequired[float]
    limit: NotRequired[int]


class Deploy(TypedDict):
    """Deploy."""

    version: str
    first_ms: int
    workers: int


class Detail(TypedDict):
    """Detail."""

    queue: str
    id: str
    task: str
    state: JobState
    priority: int
    attempt: int
    attempts: int
    max_attempts: int
    enqueued_ms: int
    ready_ms: int | None
    due_ms: int | None
    started_ms: int | None
    finished_ms: int | None
    duration_ms: int | None
    worker: str | None
    progress: Any
    error: LastError | None
    reason: str
    tags: list[str]
    group: str | None
    schedule: str | None
    args_preview: str
    can: list[str]
    args: list[Any]
    kwargs: dict[str, Any]
    data: Any
    result: Any
    has_result: bool
    result_expired: bool
    result_until_ms: int | None
    errors: list[ErrorEntry]
    options: dict[str, Any]
    deliveries: int
    stalls: int
    manual_retries: int
    expires_ms: int | None
    lease_until_ms: int | None
    cancel_reason: str | None
    awaits: str | None
    signals: list[str]
    unique_key: str | None
    trace: dict[str, str]
    slot_ms: int | None
    children: list[EdgeEntry]
    parents: list[EdgeEntry]
    log_lines: int
    masked: bool


class DrainBody(TypedDict):
    """DrainBody."""

    delayed: NotRequired[bool]


class EdgeEntry(TypedDict):
    """EdgeEntry."""

    queue: str
    id: str
    task: str
    state: JobState | None
    status: str
    on_failure: str


class ErrorEntry(TypedDict):
    """ErrorEntry."""

    at_ms: int
    attempt: int
    error_class: str
    message: str
    traceback: str
    fingerprint: str


class ErrorGroup(TypedDict):
    """ErrorGroup."""

    fingerprint: str
    error_class: str
    count: int
    first_ms: int
    last_ms: int
    tasks: list[str]
    queues: list[str]
    states: dict[str, int]
    per_hour: list[int]
    sample: ErrorSample


class ErrorGroups(TypedDict):
    """ErrorGroups."""

    groups: list[ErrorGroup]
    scanned: int
    done: bool


class ErrorSample(TypedDict):
    """ErrorSample."""

    queue: str
    id: str
    task: str
    message: str
    traceback: str
    at_ms: int


class EventEntry(TypedDict):
    """EventEntry."""

    id: int
    at_ms: int
    type: str
    queue: str
    job_id: str
    task: str
    data: dict[str, str | int | None]


class Filter(TypedDict):
    """Filter."""

    queue: NotRequired[list[str]]
    state: NotRequired[list[JobState]]
    task: NotRequired[str | None]
    tag: NotRequired[str | None]
    error: NotRequired[str | None]
    args: NotRequired[dict[str, Any] | None]
    q: NotRequired[str | None]
    from_ms: NotRequired[int | None]
    to_ms: NotRequired[int | None]
    search: NotRequired[str | None]


class FindingEntry(TypedDict):
    """FindingEntry."""

    level: str
    check: str
    text: str
    advice: str
    queue: str | None
    worker: str | None
    group: str | None
    count: int | None
    since_ms: int | None


class Flow(TypedDict):
    """Flow."""

    root: int
    asked: int
    nodes: list[FlowNode]
    edges: list[FlowEdge]
    truncated: bool


class FlowBody(TypedDict):
    """FlowBody."""

    task: str
    queue: str
    data: NotRequired[Any]
    options: NotRequired[dict[str, Any]]
    on_failure: NotRequired[Literal["fail", "ignore", "continue"]]
    children: NotRequired[list[FlowBody]]


class FlowEdge(TypedDict):
    """FlowEdge."""

    child: int
    dependent: int
    status: str
    on_failure: str


class FlowEntry(TypedDict):
    """FlowEntry."""

    queue: str
    id: str
    name: str
    state: JobState
    counts: dict[str, int]
    jobs: int
    truncated: bool
    enqueued_ms: int
    started_ms: int | None
    ended_ms: int | None


class FlowNode(TypedDict):
    """FlowNode."""

    queue: str
    id: str
    task: str
    state: JobState
    progress: Any
    started_ms: int | None
    finished_ms: int | None
    duration_ms: int | None
    gone: bool
    truncated: bool


class FlowPage(TypedDict):
    """FlowPage."""

    items: list[FlowEntry]
    next_cursor: str | None
    scanned: int
    to_scan: int
    done: bool


class Group(TypedDict):
    """Group."""

    name: str
    size: int
    waiting: int
    parked: int
    active: int
    next_ms: int | None
    paused: bool
    limits: GroupLimits | None
    hold_until_ms: int | None


class GroupLimits(TypedDict):
    """GroupLimits."""

    concurrency: int | None
    rate: RateValue | None
    bucket: BucketValue | None
    ordered: bool
    max_size: int | None
    skip_delayed: bool


class GroupLimitsBody(TypedDict):
    """GroupLimitsBody."""

    concurrency: NotRequired[int | None]
    rate: NotRequired[RateValue | None]
    bucket: NotRequired[BucketValue | None]
    ordered: NotRequired[bool]
    max_size: NotRequired[int | None]
    skip_delayed: NotRequired[bool]


class Groups(TypedDict):
    """Groups."""

    items: list[Group]
    next_cursor: str | None


class HealthReport(TypedDict):
    """HealthReport."""

    healthy: bool
    at_ms: int
    findings: list[FindingEntry]
    lost_workers: list[LostWorker]
    lake: NotRequired[LakeState | None]


class HoldBody(TypedDict):
    """HoldBody."""

    seconds: float


class Item(TypedDict):
    """Item."""

    queue: str
    id: str
    task: str
    state: JobState
    priority: int
    attempt: int
    attempts: int
    max_attempts: int
    enqueued_ms: int
    ready_ms: int | None
    due_ms: int | None
    started_ms: int | None
    finished_ms: int | None
    duration_ms: int | None
    worker: str | None
    progress: Any
    error: LastError | None
    reason: str
    tags: list[str]
    group: str | None
    schedule: str | None
    args_preview: str
    can: list[str]


class Items(TypedDict):
    """Items."""

    items: list[Item]
    next_cursor: str | None
    total: int | None
    scanned: NotRequired[int]
    to_scan: NotRequired[int]
    done: NotRequired[bool]


class JobPage(TypedDict):
    """JobPage."""

    job: Detail
    timeline: Timeline
    logs: Logs
    why: Why | None


JobState = Literal[
    "waiting",
    "scheduled",
    "retrying",
    "blocked",
    "parked",
    "suspended",
    "active",
    "completed",
    "failed",
    "cancelled",
]


class LakeFailure(TypedDict):
    """LakeFailure."""

    source: str
    error: str
    at_ms: int


class LakeSource(TypedDict):
    """LakeSource."""

    source: str
    read_ms: int
    newest_ms: int | None


class LakeState(TypedDict):
    """LakeState."""

    archiver: str
    sources: list[LakeSource]
    attempts: int | None
    lost: int | None
    failure: LakeFailure | None
    behind: NotRequired[int | None]


class LastError(TypedDict):
    """LastError."""

    error_class: str
    message: str
    at_ms: int


class Limits(TypedDict):
    """Limits."""

    queue: str
    concurrency: int | None
    rate: RateValue | None
    hold_until_ms: int | None
    every_group: GroupLimits
    active: int
    parked: int
    waiting: int
    paused: bool
    opens_in_ms: int


class LogLine(TypedDict):
    """LogLine."""

    number: int
    text: str
    at_ms: int | None
    level: str
    attempt: int
    run: int


class Logs(TypedDict):
    """Logs."""

    lines: list[LogLine]
    next: int
    total: int


class LostJob(TypedDict):
    """LostJob."""

    queue: str
    id: str
    task: str
    state: JobState


class LostWorker(TypedDict):
    """LostWorker."""

    hostname: str
    pid: int
    tag: str
    queues: list[str]
    version: str
    started_ms: int
    beat_ms: int
    busy: int
    concurrency: int
    rss_kb: int
    cpu_percent: float
    quiet: bool
    leader: bool
    command: str | None
    id: str
    jobs: list[LostJob]


class Mark(TypedDict):
    """Mark."""

    id: str
    at_ms: int
    label: str


class MarkBody(TypedDict):
    """MarkBody."""

    label: str


class Metrics(TypedDict):
    """Metrics."""

    step: str
    source: str
    points: list[Point]
    wait_histogram: list[Bucket]
    run_histogram: list[Bucket]
    backlog: Backlog
    marks: list[Mark]
    deploys: list[Deploy]
    lake: NotRequired[LakeState | None]


class NewJobBody(TypedDict):
    """NewJobBody."""

    task: NotRequired[str]
    data: NotRequired[Any]
    args: NotRequired[list[Any]]
    kwargs: NotRequired[dict[str, Any]]
    options: NotRequired[dict[str, Any]]


class Output(TypedDict):
    """Output."""

    chunks: list[OutputChunk]
    next: int
    last: int
    oldest: int


class OutputChunk(TypedDict):
    """OutputChunk."""

    index: int
    run: int
    delivery: int
    text: str


class Point(TypedDict):
    """Point."""

    start_ms: int
    total: int
    completed: int
    failed: int
    retried: int
    wait_p50_ms: float | None
    wait_p95_ms: float | None
    wait_p99_ms: float | None
    duration_avg_ms: float | None
    duration_p50_ms: float | None
    duration_p95_ms: float | None
    duration_p99_ms: float | None
    waiting_avg: NotRequired[float | None]
    waiting_max: NotRequired[int | None]
    oldest_max_ms: NotRequired[int | None]
    complete: NotRequired[bool]


class Queue(TypedDict):
    """Queue."""

    name: str
    paused: bool
    size: int
    counts: dict[str, int]
    latency_ms: int
    processed: int
    failed: int


class QueueEntry(TypedDict):
    """QueueEntry."""

    per_minute: list[int]
    name: str
    paused: bool
    size: int
    counts: dict[str, int]
    latency_ms: int
    processed: int
    failed: int


class QueueLimitsBody(TypedDict):
    """QueueLimitsBody."""

    concurrency: NotRequired[int | None]
    rate: NotRequired[RateValue | None]


class QueueTimeEntry(TypedDict):
    """QueueTimeEntry."""

    scheduled_ms: int
    parked_ms: int
    blocked_ms: int
    in_line_ms: int


class RateValue(TypedDict):
    """RateValue."""

    max: int
    seconds: float


class ReasonBody(TypedDict):
    """ReasonBody."""

    reason: NotRequired[str]


class Ref(TypedDict):
    """Ref."""

    queue: str
    id: str


class ScheduleBody(TypedDict):
    """ScheduleBody."""

    cron: NotRequired[str | None]
    every: NotRequired[float | None]
    timezone: NotRequired[str]
    start: NotRequired[float | None]
    end: NotRequired[float | None]
    limit: NotRequired[int | None]
    missed: NotRequired[Literal["skip", "once", "all"]]
    overlap: NotRequired[Literal["allow", "skip"]]
    task: NotRequired[str]
    data: NotRequired[Any]
    options: NotRequired[dict[str, Any]]


class ScheduleEntry(TypedDict):
    """ScheduleEntry."""

    queue: str
    name: str
    task: str
    rule: str
    words: str
    cron: str | None
    every: float | None
    strategy: str | None
    timezone: str
    paused: bool
    source: str
    next_ms: int | None
    last_ms: int | None
    last_job_id: str | None
    fired: int
    skipped: int
    limit: int | None
    start_ms: int | None
    end_ms: int | None
    missed: str
    overlap: str
    upcoming: list[int]
    data: Any


class SchedulePreview(TypedDict):
    """SchedulePreview."""

    words: str
    upcoming: list[int]


class SignalBody(TypedDict):
    """SignalBody."""

    name: str
    data: NotRequired[Any]


Sort = Literal["added", "due", "finished"]


class TaskEntry(TypedDict):
    """TaskEntry."""

    queue: str
    task: str
    totals: dict[str, int]


class Timeline(TypedDict):
    """Timeline."""

    attempts: list[AttemptEntry]
    events: list[EventEntry]
    complete: bool


class Usage(TypedDict):
    """Usage."""

    totals: dict[str, int]
    queues: dict[str, dict[str, int]]


class Version(TypedDict):
    """Version."""

    version: str
    api: str


class Why(TypedDict):
    """Why."""

    queue: str
    id: str
    state: JobState
    causes: list[Cause]
    place: int | None
    waiting: int


class WorkerEntry(TypedDict):
    """WorkerEntry."""

    hostname: str
    pid: int
    tag: str
    queues: list[str]
    version: str
    started_ms: int
    beat_ms: int
    busy: int
    concurrency: int
    rss_kb: int
    cpu_percent: float
    quiet: bool
    leader: bool
    command: str | None
    id: str
    running: list[WorkerJob]


class WorkerJob(TypedDict):
    """WorkerJob."""

    queue: str
    id: str
    task: str
    started_ms: int | None
    progress: Any


class WorkerStacks(TypedDict):
    """WorkerStacks."""

    id: str
    beat_ms: int
    text: str


class Workers(TypedDict):
    """Workers."""

    workers: list[WorkerEntry]
    lost: list[LostWorker]


class Operations(Connection):
    """Every operation of the API, by its name."""

    def add_again(self, queue: str, jid: str, body: AgainBody | None = None) -> Added:
        """Add a new job like this one, with the same options."""
        found: Added = self.send("POST", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}/again", body=body)
        return found

    def add_flow(self, body: FlowBody) -> Added:
        """Add a tree of jobs in one atomic step; answers with its top job, which runs last."""
        found: Added = self.send("POST", "/api/v1/flows", body=body)
        return found

    def add_job(self, queue: str, body: NewJobBody) -> Added:
        """Add one job."""
        found: Added = self.send("POST", f"/api/v1/queues/{self.part(queue)}/jobs", body=body)
        return found

    def add_jobs(self, queue: str, body: list[NewJobBody]) -> AddedMany:
        """Add up to 1,000 jobs in one atomic step."""
        found: AddedMany = self.send("POST", f"/api/v1/queues/{self.part(queue)}/jobs/bulk", body=body)
        return found

    def add_mark(self, body: MarkBody) -> Mark:
        """Add a mark at the current time, for example for a deploy."""
        found: Mark = self.send("POST", "/api/v1/marks", body=body)
        return found

    def cancel_flow(self, queue: str, jid: str, body: ReasonBody | None = None) -> Changed:
        """Cancel a job and all jobs that it waits for, except those that another job waits for too."""
        found: Changed = self.send(
            "POST", f"/api/v1/flows/{self.part(queue)}/{self.part(jid)}/cancel", body=body
        )
        return found

    def cancel_job(self, queue: str, jid: str, body: ReasonBody | None = None) -> CancelAnswer:
        """Cancel a job: a pending one at once, a running one through its worker."""
        found: CancelAnswer = self.send(
            "POST", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}/cancel", body=body
        )
        return found

    def change_job(self, queue: str, jid: str, body: ChangeBody) -> None:
        """Change priority, due time or data of a pending job."""
        self.send("PATCH", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}", body=body)

    def change_many(self, body: BulkBody) -> BulkAnswer:
        """Retry, delete, cancel, kill or trigger many jobs: those named, or all that match a filter."""
        found: BulkAnswer = self.send("POST", "/api/v1/jobs/bulk", body=body)
        return found

    def clean_queue(self, queue: str, body: CleanBody) -> Changed:
        """Delete old jobs in some states, at most 1,000 per request."""
        found: Changed = self.send("POST", f"/api/v1/queues/{self.part(queue)}/clean", body=body)
        return found

    def delete_flow(self, queue: str, jid: str) -> Changed:
        """Delete a job and all jobs that it waits for."""
        found: Changed = self.send("DELETE", f"/api/v1/flows/{self.part(queue)}/{self.part(jid)}")
        return found

    def delete_job(self, queue: str, jid: str) -> None:
        """Delete the record of a job."""
        self.send("DELETE", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}")

    def drain_queue(self, queue: str, body: DrainBody | None = None) -> Changed:
        """Delete waiting jobs, at most 10,000; with ``delayed`` also jobs that are due later."""
        found: Changed = self.send("POST", f"/api/v1/queues/{self.part(queue)}/drain", body=body)
        return found

    def explain_job(self, queue: str, jid: str) -> Why:
        """Why a job is not running: what holds it back now first, then what would hold it back next."""
        found: Why = self.send("GET", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}/why")
        return found

    def get_counts(self, queue: str) -> dict[str, int]:
        """How many jobs are in each state."""
        found: dict[str, int] = self.send("GET", f"/api/v1/queues/{self.part(queue)}/counts")
        return found

    def get_flow(self, queue: str, jid: str) -> Flow:
        """The whole flow that a job belongs to: its last job, and all jobs that it waits for."""
        found: Flow = self.send("GET", f"/api/v1/flows/{self.part(queue)}/{self.part(jid)}")
        return found

    def get_group_limits(self, queue: str, group: str) -> GroupLimits:
        """The limits of a group; ``*``: the default limits of all groups."""
        found: GroupLimits = self.send(
            "GET", f"/api/v1/queues/{self.part(queue)}/groups/{self.name(group)}/limits"
        )
        return found

    def get_health(self) -> HealthReport:
        """The current findings of ``windlass doctor``, workers that were lost in the last day, ...."""
        found: HealthReport = self.send("GET", "/api/v1/health")
        return found

    def get_job(self, queue: str, jid: str) -> Detail:
        """Everything about one job."""
        found: Detail = self.send("GET", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}")
        return found

    def get_job_page(self, queue: str, jid: str, *, values: bool | None = None) -> JobPage:
        """Everything that a page about one job shows; 304 if it is unchanged since ``If-None-Match``."""
        found: JobPage = self.send(
            "GET", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}/page", query={"values": values}
        )
        return found

    def get_limits(self, queue: str) -> Limits:
        """Limits of a queue, and the default limits of its groups."""
        found: Limits = self.send("GET", f"/api/v1/queues/{self.part(queue)}/limits")
        return found

    def get_logs(self, queue: str, jid: str, *, start: int | None = None, limit: int | None = None) -> Logs:
        """Log lines of a job."""
        found: Logs = self.send(
            "GET",
            f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}/logs",
            query={"start": start, "limit": limit},
        )
        return found

    def get_metrics(
        self,
        *,
        queue: list[str] | None = None,
        task: str | None = None,
        step: Literal["minute", "hour", "day"] | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
    ) -> Metrics:
        """Figures over time for all or some queues and tasks: runs, waiting jobs, percentiles, ...."""
        found: Metrics = self.send(
            "GET",
            "/api/v1/metrics",
            query={"queue": queue, "task": task, "step": step, "from_ms": from_ms, "to_ms": to_ms},
        )
        return found

    def get_output(
        self, queue: str, jid: str, *, after: int | None = None, limit: int | None = None
    ) -> Output:
        """The output of a job (``job.stream``), oldest first, as far as it is kept."""
        found: Output = self.send(
            "GET",
            f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}/output",
            query={"after": after, "limit": limit},
        )
        return found

    def get_queue(self, queue: str) -> QueueEntry:
        """One queue with its last hour."""
        found: QueueEntry = self.send("GET", f"/api/v1/queues/{self.part(queue)}")
        return found

    def get_schedule(self, queue: str, name: str) -> ScheduleEntry:
        """One schedule."""
        found: ScheduleEntry = self.send("GET", f"/api/v1/schedules/{self.part(queue)}/{self.name(name)}")
        return found

    def get_stacks(self, identity: str) -> WorkerStacks:
        """The stacks of a worker's threads and tasks."""
        found: WorkerStacks = self.send("GET", f"/api/v1/workers/{self.name(identity)}/stacks")
        return found

    def get_timeline(self, queue: str, jid: str) -> Timeline:
        """Attempts and events of a job, as far as the store's logs reach."""
        found: Timeline = self.send("GET", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}/timeline")
        return found

    def get_usage(self) -> Usage:
        """Lifetime totals by queue and outcome."""
        found: Usage = self.send("GET", "/api/v1/usage")
        return found

    def get_version(self) -> Version:
        """The version of the server."""
        found: Version = self.send("GET", "/api/v1/version")
        return found

    def hold_queue(self, queue: str, body: HoldBody) -> None:
        """Start no job of a queue for this long; 0 ends the hold."""
        self.send("POST", f"/api/v1/queues/{self.part(queue)}/hold", body=body)

    def list_all_schedules(self, *, queue: str | None = None) -> list[ScheduleEntry]:
        """All schedules, by queue and name."""
        found: list[ScheduleEntry] = self.send("GET", "/api/v1/schedules", query={"queue": queue})
        return found

    def list_errors(
        self,
        *,
        queue: list[str] | None = None,
        task: str | None = None,
        hours: int | None = None,
        limit: int | None = None,
    ) -> ErrorGroups:
        """Errors of failed and retrying jobs by fingerprint: how many, since when, where, with a ...."""
        found: ErrorGroups = self.send(
            "GET", "/api/v1/errors", query={"queue": queue, "task": task, "hours": hours, "limit": limit}
        )
        return found

    def list_flows(
        self,
        *,
        queue: list[str] | None = None,
        state: list[JobState] | None = None,
        task: str | None = None,
        cursor: str | None = None,
        limit: int | None = None,
    ) -> FlowPage:
        """Flows whose last job is in one of these queues and states, newest first, with counts ...."""
        found: FlowPage = self.send(
            "GET",
            "/api/v1/flows",
            query={"queue": queue, "state": state, "task": task, "cursor": cursor, "limit": limit},
        )
        return found

    def list_groups(self, queue: str, *, cursor: str | None = None, limit: int | None = None) -> Groups:
        """Groups with unfinished jobs or with their own settings, by name."""
        found: Groups = self.send(
            "GET", f"/api/v1/queues/{self.part(queue)}/groups", query={"cursor": cursor, "limit": limit}
        )
        return found

    def list_marks(self, *, from_ms: int | None = None) -> list[Mark]:
        """Marks on the timeline, oldest first."""
        found: list[Mark] = self.send("GET", "/api/v1/marks", query={"from_ms": from_ms})
        return found

    def list_queues(self) -> list[Queue]:
        """All queues with their sizes."""
        found: list[Queue] = self.send("GET", "/api/v1/queues")
        return found

    def list_schedule_runs(
        self, queue: str, name: str, *, cursor: str | None = None, limit: int | None = None
    ) -> Items:
        """The jobs of a schedule that are still kept, newest first."""
        found: Items = self.send(
            "GET",
            f"/api/v1/schedules/{self.part(queue)}/{self.name(name)}/runs",
            query={"cursor": cursor, "limit": limit},
        )
        return found

    def list_tasks(self, *, queue: str | None = None) -> list[TaskEntry]:
        """Tasks that the queues have seen, with their lifetime totals."""
        found: list[TaskEntry] = self.send("GET", "/api/v1/tasks", query={"queue": queue})
        return found

    def list_workers(self) -> Workers:
        """Live workers with their running jobs, and lost workers with the jobs that they held."""
        found: Workers = self.send("GET", "/api/v1/workers")
        return found

    def pause_group(self, queue: str, group: str) -> None:
        """Start no more jobs of a group."""
        self.send("POST", f"/api/v1/queues/{self.part(queue)}/groups/{self.name(group)}/pause")

    def pause_queue(self, queue: str) -> None:
        """Start no more jobs of this queue, on any worker."""
        self.send("POST", f"/api/v1/queues/{self.part(queue)}/pause")

    def pause_schedule(self, queue: str, name: str) -> None:
        """Skip the slots of a schedule until it is resumed."""
        self.send("POST", f"/api/v1/schedules/{self.part(queue)}/{self.name(name)}/pause")

    def preview_schedule(
        self, *, cron: str | None = None, every: float | None = None, timezone: str | None = None
    ) -> SchedulePreview:
        """A rule in words, and its next times: one of ``cron`` and ``every``."""
        found: SchedulePreview = self.send(
            "GET", "/api/v1/schedules/preview", query={"cron": cron, "every": every, "timezone": timezone}
        )
        return found

    def put_schedule(self, queue: str, name: str, body: ScheduleBody) -> ScheduleEntry:
        """Create or change a schedule."""
        found: ScheduleEntry = self.send(
            "PUT", f"/api/v1/schedules/{self.part(queue)}/{self.name(name)}", body=body
        )
        return found

    def remove_group_limits(self, queue: str, group: str) -> None:
        """Remove the limits of a group; ``*``: the default limits of all groups."""
        self.send("DELETE", f"/api/v1/queues/{self.part(queue)}/groups/{self.name(group)}/limits")

    def remove_limits(self, queue: str) -> None:
        """Remove the limits of a queue."""
        self.send("DELETE", f"/api/v1/queues/{self.part(queue)}/limits")

    def remove_schedule(self, queue: str, name: str) -> None:
        """Remove a schedule."""
        self.send("DELETE", f"/api/v1/schedules/{self.part(queue)}/{self.name(name)}")

    def resume_group(self, queue: str, group: str) -> None:
        """Undo pause."""
        self.send("POST", f"/api/v1/queues/{self.part(queue)}/groups/{self.name(group)}/resume")

    def resume_queue(self, queue: str) -> None:
        """Undo pause."""
        self.send("POST", f"/api/v1/queues/{self.part(queue)}/resume")

    def resume_schedule(self, queue: str, name: str) -> None:
        """Continue with the next slot."""
        self.send("POST", f"/api/v1/schedules/{self.part(queue)}/{self.name(name)}/resume")

    def retry_flow(self, queue: str, jid: str) -> Changed:
        """Run a flow again from a finished job: that job, and all finished jobs after it."""
        found: Changed = self.send("POST", f"/api/v1/flows/{self.part(queue)}/{self.part(jid)}/retry")
        return found

    def retry_job(self, queue: str, jid: str) -> None:
        """Run a finished job again with all its attempts, or make a retrying one ready now."""
        self.send("POST", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}/retry")

    def run_schedule(self, queue: str, name: str) -> Added:
        """Add the schedule's job now, in addition to its slots."""
        found: Added = self.send("POST", f"/api/v1/schedules/{self.part(queue)}/{self.name(name)}/run")
        return found

    def search_jobs(
        self,
        *,
        queue: list[str] | None = None,
        state: list[JobState] | None = None,
        task: str | None = None,
        tag: str | None = None,
        error: str | None = None,
        args: str | None = None,
        q: str | None = None,
        search: str | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        sort: Sort | None = None,
        order: Literal["newest", "oldest"] | None = None,
        cursor: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> Items:
        """Jobs of all or some queues that match these filters."""
        found: Items = self.send(
            "GET",
            "/api/v1/jobs",
            query={
                "queue": queue,
                "state": state,
                "task": task,
                "tag": tag,
                "error": error,
                "args": args,
                "q": q,
                "search": search,
                "from_ms": from_ms,
                "to_ms": to_ms,
                "sort": sort,
                "order": order,
                "cursor": cursor,
                "limit": limit,
                "offset": offset,
            },
        )
        return found

    def set_group_limits(self, queue: str, group: str, body: GroupLimitsBody) -> None:
        """Set the limits of a group; ``*``: the default limits of all groups."""
        self.send("PUT", f"/api/v1/queues/{self.part(queue)}/groups/{self.name(group)}/limits", body=body)

    def set_limits(self, queue: str, body: QueueLimitsBody) -> None:
        """Set the limits of a queue, over all workers."""
        self.send("PUT", f"/api/v1/queues/{self.part(queue)}/limits", body=body)

    def signal_job(self, queue: str, jid: str, body: SignalBody) -> None:
        """Send a signal."""
        self.send("POST", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}/signal", body=body)

    def tell_process(self, identity: str, action: Literal["quiet", "resume", "stop", "dump"]) -> None:
        """Send a command: quiet (take no new jobs), resume, stop (finish and exit), or dump ...."""
        self.send("POST", f"/api/v1/workers/{self.name(identity)}/{self.part(action)}")

    def trigger_job(self, queue: str, jid: str) -> None:
        """Make a scheduled or retrying job ready now."""
        self.send("POST", f"/api/v1/jobs/{self.part(queue)}/{self.part(jid)}/trigger")
