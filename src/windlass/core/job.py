"""The records that cross the backend contract: jobs, errors, events, attempts, workers, queues.

These are plain data. Times are integer milliseconds UTC. Payload, result and progress are opaque bytes that
only the codec named in the record can read. Users work with ``windlass.Job``, which wraps a ``JobRecord``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from windlass.core.edges import Dependency
from windlass.core.ids import JobRef as JobRef
from windlass.core.options import StoredOptions
from windlass.core.queue_time import QueueTime, at_start
from windlass.core.states import JobState
from windlass.core.text import clean_text

#: Maximum lengths of an error's class, message and traceback, and of a line of a job's log.
ERROR_CLASS_CHARS = 200
ERROR_MESSAGE_CHARS = 10_000
TRACEBACK_CHARS = 32_000
LOG_LINE_CHARS = 10_000
#: The newest errors and the newest log lines that are kept per job.
ERRORS_KEPT = 32
LOGS_KEPT = 1_000
#: The maximum number of differently named signals per job.
SIGNALS_KEPT = 64
#: Events kept per queue.
EVENTS_KEPT = 10_000
#: The maximum size of a custom event's data.
EVENT_DATA_BYTES = 10_000
#: History records kept per queue, and for how long, while no archiver is registered.
HISTORY_KEPT = 100_000
HISTORY_KEPT_MS = 86_400_000
#: With archivers: records that they have not copied yet are kept, up to this many per queue ...
HISTORY_HELD = 1_000_000
#: ... for archivers that were seen within this time.
ARCHIVER_KEPT_MS = 7 * 86_400_000
#: A worker without a heartbeat for this long counts as gone.
WORKER_GONE_MS = 45_000
#: Workers without a heartbeat for this long are removed. Until then, users can see which workers were lost.
WORKER_KEPT_MS = 86_400_000
HISTORY_SCHEMA_VERSION = 3
#: The maximum length of an error message in a history record.
BRIEF_CHARS = 500
#: The maximum number of jobs that one request moves. The next request continues.
STEP = 1_000


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error of one failed attempt, as it is kept with the job."""

    at_ms: int = 0
    attempt: int = 0
    error_class: str = ""
    message: str = ""
    traceback: str = ""
    fingerprint: str = ""
    #: The text that history records keep instead of the beginning of ``message``: masked, or empty.
    brief: str | None = None

    @property
    def said(self) -> str:
        """The part of the message that history records keep."""
        return self.message[:BRIEF_CHARS] if self.brief is None else self.brief


def error_info(error_class: object, message: object, traceback: str = "") -> ErrorInfo:
    """The ``ErrorInfo`` of an error, cleaned and bounded. Errors of user code must be created here.

    Of a long traceback the end is kept, because it names the line that raised.
    """
    name = clean_text(error_class, ERROR_CLASS_CHARS)
    text = clean_text(message, ERROR_MESSAGE_CHARS)
    trace = clean_text(traceback[-TRACEBACK_CHARS:], TRACEBACK_CHARS)
    return ErrorInfo(0, 0, name, text, trace, fingerprint(name, text))


class WorkerFacts(msgspec.Struct, frozen=True, array_like=True):
    """Facts that a worker reports with its settlements, for history records. Many settlements share one."""

    version: str
    #: The ``max_attempts`` that the worker applied.
    max_attempts: int = 3
    #: The worker's host; None if its id begins with it.
    host: str | None = None


class NewJob(msgspec.Struct, kw_only=True, gc=False):
    """A job to add, already validated and encoded by the caller."""

    queue: str
    id: str
    task: str
    payload: bytes
    codec: str = "json"
    priority: int = 0
    options: StoredOptions = StoredOptions()
    #: Due this long after the store's current time, or at this time. Without both, the job is ready at once.
    delay_ms: int = 0
    run_at_ms: int | None = None
    expires_in_ms: int | None = None
    #: Repeating an add with the same non-empty request id answers as the first time.
    request_id: str = ""
    #: Jobs that must end before this one starts: stored jobs, or other jobs of the same ``Add``.
    depends_on: list[Dependency] = []
    #: A job, stored or of the same ``Add``, that will wait for this one. It must not have finished.
    parent: Dependency | None = None


LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A line of a job's log, with the attempt and the delivery that wrote it.

    ``run`` is the number of the delivery, which is unique. ``attempt`` starts again at 1 when the job is
    retried by hand. Lines of earlier releases have neither, and no time.
    """

    text: str
    at_ms: int = 0
    level: str = "info"
    attempt: int = 0
    run: int = 0


class SignalValue(msgspec.Struct, frozen=True, array_like=True):
    """The data of a signal, as its sender encoded it."""

    data: bytes
    codec: str = "json"
    at_ms: int = 0


class JobRecord(msgspec.Struct, kw_only=True, gc=False):
    """A job as it is stored. Records may share ``errors`` and ``signals``: replace, never change them."""

    queue: str
    id: str
    task: str
    payload: bytes
    codec: str = "json"
    state: JobState = JobState.WAITING
    priority: int = 0
    #: Sequence number of the add: the order of listings, and the first place in line. It is ordered only
    #: within a queue.
    seq: int = 0
    #: Place in line: lower starts first within a priority; negative for ``lifo`` jobs. Released and recovered
    #: jobs keep it.
    place: int = 0
    #: The turn among groups: lower starts first within a priority, before ``place``. See ``NO_TURN``.
    turn: int = 0
    options: StoredOptions = StoredOptions()
    request_id: str = ""
    enqueued_ms: int = 0
    #: When it last became ready to start. The wait of an attempt is counted from here.
    ready_ms: int = 0
    #: When a scheduled, retrying or suspended job is due, or a blocked job at the earliest.
    due_ms: int | None = None
    #: A job that is still pending at this time fails with reason ``expired``. Before the first run this is
    #: the earlier of ``expires_in`` and ``expires_total``; afterwards only ``expires_total`` counts.
    expires_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    #: Failed or timed-out runs since the job was added or retried by hand.
    attempts: int = 0
    #: How often the job was claimed in its whole life.
    deliveries: int = 0
    stalls: int = 0
    manual_retries: int = 0
    #: How often workers released the job because they had no handler for its task.
    misses: int = 0
    #: The token of the lease while the job is active.
    token: str | None = None
    #: The token of the last settlement. Repeating that settlement answers ``already``.
    settled_token: str | None = None
    lease_until_ms: int | None = None
    worker: str | None = None
    cancel_reason: str | None = None
    progress: bytes | None = None
    result: bytes | None = None
    #: Until this time the result can be read, and an add with the same id answers ``cached``.
    result_until_ms: int | None = None
    #: Why it failed or was cancelled: ``attempts``, ``unrecoverable``, ``stalled``, ``unknown_task``, ...
    reason: str = ""
    errors: list[ErrorInfo] = []
    #: Whether an edge names this job as dependent or child. If so, its end may be relayed.
    linked: bool = False
    #: The signal of the current or last suspension.
    awaits: str | None = None
    #: Received signals by name.
    signals: dict[str, SignalValue] = {}
    #: What the job waited for since it was added or since its last attempt. None: it was only in line.
    queue_time: QueueTime | None = None

    @property
    def ref(self) -> JobRef:
        return JobRef(self.queue, self.id)

    @property
    def result_expired(self) -> bool:
        """Whether the job completed and its result has expired. A returned ``None`` is stored as a result."""
        return self.state is JobState.COMPLETED and self.result is None

    @property
    def result_codec(self) -> str:
        """The codec of progress and result."""
        return self.options.result_codec or self.codec


def retries_of(job: JobRecord) -> int:
    """How often a job was retried. The last failure of a failed job does not count: it led to no retry."""
    if job.state is not JobState.FAILED or not job.errors:
        return job.attempts
    return min(job.attempts, max(job.errors[-1].attempt - 1, 0))


class Completed(NamedTuple):
    """What a caller that waits for a job may receive when it completes."""

    id: str
    result: bytes | None
    started_ms: int
    finished_ms: int
    worker: str


class EventType(StrEnum):
    """The type of an event. Every change of state has exactly one event.

    ``gap`` is never in a log. A reader receives it when events before the next one are missing.
    """

    ENQUEUED = "enqueued"
    SCHEDULED = "scheduled"
    PROMOTED = "promoted"
    STARTED = "started"
    PROGRESS = "progress"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CANCELLING = "cancelling"
    STALLED = "stalled"
    RELEASED = "released"
    PARKED = "parked"
    BLOCKED = "blocked"
    SUSPENDED = "suspended"
    DEDUPLICATED = "deduplicated"
    CHANGED = "changed"
    REMOVED = "removed"
    PAUSED = "paused"
    RESUMED = "resumed"
    DRAINED = "drained"
    #: A custom event of the application: ``name`` and ``data`` (JSON) describe it.
    CUSTOM = "custom"
    GAP = "gap"


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a queue's event log. ``id`` grows by one for each event of the queue and never repeats."""

    id: int
    at_ms: int
    type: EventType
    job_id: str = ""
    task: str = ""
    #: The log stores texts, numbers and None. For readers, ``api.event_values`` adds decoded values.
    data: dict[str, Any] = {}


class AttemptOutcome(StrEnum):
    """How an attempt ended, or how a job ended without one."""

    COMPLETED = "completed"
    RETRYING = "retrying"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SNOOZED = "snoozed"
    RELEASED = "released"
    STALLED = "stalled"
    EXPIRED = "expired"


class AttemptRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One history record: a settled attempt, or the end of a job without one (``attempt`` = 0).

    ``run_id`` is the lease token and never repeats. ``started_ms`` and ``finished_ms`` are times of the
    store. ``duration_ms`` is measured by the worker's monotonic clock (None: no worker reported it). New
    fields are only appended; readers recognise old records by ``schema_version``.
    """

    run_id: str
    job_id: str
    attempt: int
    delivery: int
    queue: str
    task: str
    group: str | None
    tags: tuple[str, ...]
    worker: str | None
    enqueued_ms: int
    ready_ms: int
    started_ms: int | None
    finished_ms: int
    wait_ms: int | None
    duration_ms: int | None
    outcome: AttemptOutcome
    error_class: str | None
    error_fingerprint: str | None
    schema_version: int = 1
    #: The fields from here on exist since version 2. The next three are reported by the worker that settled
    #: the attempt; None without one.
    max_attempts: int | None = None
    worker_version: str | None = None
    #: Also None if the worker's id begins with the host, which default ids do; see ``host``.
    worker_host: str | None = None
    error_message: str | None = None
    priority: int = 0
    #: The schedule that added the job, and its slot (None: run by hand).
    schedule: str | None = None
    slot_ms: int | None = None
    #: The parent of the job and the root of its flow, as ``queue/id``.
    parent: str | None = None
    root: str | None = None
    #: Tokens that the start took from the bucket of its group.
    cost: int = 1
    #: Since version 3: what the job waited for before this attempt. None: all of ``wait_ms`` was in line.
    queue_time: QueueTime | None = None

    @property
    def host(self) -> str | None:
        """The host that ran the attempt, if known."""
        return self.worker_host or host_of(self.worker)


#: The fields in which the attempts of ``AlikeAttempts`` differ: run_id, job_id, enqueued_ms, ready_ms,
#: duration_ms, and wait_ms, which follows from the others.
OwnFields = tuple[str, str, int, int, int | None]
#: The positions of the fields that ``alike_records`` reads or sets.
_RUN_ID, _JOB_ID, _ENQUEUED, _READY, _STARTED, _WAIT, _DURATION = (
    AttemptRecord.__struct_fields__.index(name)
    for name in ("run_id", "job_id", "enqueued_ms", "ready_ms", "started_ms", "wait_ms", "duration_ms")
)


class AlikeAttempts(msgspec.Struct, gc=False):
    """History records without their numbers yet: the first, and what differs in those after it."""

    first: AttemptRecord
    more: list[OwnFields]

    def records(self) -> list[AttemptRecord]:
        """Return all of them."""
        return [self.first, *alike_records(list(msgspec.structs.astuple(self.first)), self.more)]


def alike_records(fields: list[Any], own: Iterable[OwnFields]) -> list[AttemptRecord]:
    """Records with these ``fields``, of which those in ``own`` are replaced."""
    found: list[AttemptRecord] = []
    started_ms = fields[_STARTED]
    for each in own:
        fields[_RUN_ID], fields[_JOB_ID], fields[_ENQUEUED], fields[_READY], fields[_DURATION] = each
        fields[_WAIT] = None if started_ms is None else started_ms - each[3]
        found.append(AttemptRecord(*fields))
    return found


@lru_cache(maxsize=1024)
def host_of(worker: str | None) -> str | None:
    """The host in a worker's default id (``host:pid:random``); None for a custom id."""
    name, _, pid = (worker or "").rpartition(":")[0].rpartition(":")
    return name if name and pid.isdecimal() else None


#: Remote commands for a worker: claim no more jobs, claim again, stop, write all stacks to its log.
Action = Literal["quiet", "resume", "stop", "dump"]


class Command(msgspec.Struct, frozen=True):
    """A command for a worker. Every command has a new ``id``."""

    action: Action
    id: str


class WorkerInfo(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A worker process as its last heartbeat described it."""

    id: str
    hostname: str = ""
    pid: int = 0
    tag: str = ""
    queues: tuple[str, ...] = ()
    concurrency: int = 0
    busy: int = 0
    rss_kb: int = 0
    #: CPU use since the previous heartbeat, in percent of one core: 200 means two cores.
    cpu_percent: float = 0.0
    version: str = ""
    started_ms: int = 0
    beat_ms: int = 0
    quiet: bool = False
    #: Whether it is the leader.
    leader: bool = False
    #: The last command that was sent to it. The store sets it, not the worker.
    command: Command | None = None
    #: The stacks of its threads and tasks, for a minute after the command ``dump``.
    stacks: str = ""


class QueueInfo(msgspec.Struct, kw_only=True):
    """A summary of a queue."""

    name: str
    paused: bool = False
    counts: dict[str, int] = {}
    #: When the oldest waiting job became ready; None if no job is waiting.
    oldest_ready_ms: int | None = None


class ArchiverInfo(msgspec.Struct, kw_only=True):
    """A program that copies the history elsewhere, and how far it has copied each queue."""

    name: str
    cursors: dict[str, int]
    seen_ms: int = 0


class CounterRow(NamedTuple):
    """How many attempts of a task ever ended in ``outcome``, or how many of its jobs were ``enqueued``."""

    queue: str
    task: str
    outcome: str
    total: int


def attempt_record(
    job: JobRecord,
    outcome: AttemptOutcome,
    now_ms: int,
    duration_ms: int | None = None,
    error: ErrorInfo | None = None,
    facts: WorkerFacts | None = None,
) -> AttemptRecord:
    """The history record of an attempt. Call it *before* the change that ends the attempt."""
    ran = job.token is not None
    options = job.options
    most = version = host = None
    if facts is not None:
        most, version, host = facts.max_attempts, facts.version, facts.host
    return AttemptRecord(
        job.token if job.token is not None else ended_run_id(job),
        job.id,
        job.attempts + 1 if ran else 0,
        job.deliveries,
        job.queue,
        job.task,
        options.group,
        options.tags,
        job.worker if ran else None,
        job.enqueued_ms,
        job.ready_ms,
        job.started_ms if ran else None,
        now_ms,
        job.started_ms - job.ready_ms if ran and job.started_ms is not None else None,
        duration_ms,
        outcome,
        error.error_class if error else None,
        error.fingerprint if error else None,
        HISTORY_SCHEMA_VERSION,
        most,
        version,
        host,
        (error.said or None) if error else None,
        job.priority,
        options.schedule,
        options.slot_ms,
        options.parent,
        options.root,
        options.cost,
        at_start(job) if ran and job.queue_time is not None else None,
    )


def runs_alike(job: JobRecord, other: JobRecord) -> bool:
    """Whether the history records of two attempts that end in the same way differ only in ``OwnFields``."""
    return (
        job.options is other.options
        and job.task == other.task
        and job.started_ms == other.started_ms
        and job.queue == other.queue
        and job.worker == other.worker
        and job.deliveries == other.deliveries
        and job.attempts == other.attempts
        and job.priority == other.priority
        and job.queue_time is None
        and other.queue_time is None
    )


def ended_run_id(job: JobRecord) -> str:
    """The ``run_id`` of a job that ends without an attempt: at most once for each add or manual retry."""
    return f"end.{job.queue}.{job.id}.{job.seq}.{job.manual_retries}"


_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")


def fingerprint(error_class: str, message: str) -> str:
    """A short key that is equal for errors that differ only in numbers and quoted values. Never raises."""
    name, said = clean_text(error_class, ERROR_CLASS_CHARS), clean_text(message, ERROR_MESSAGE_CHARS)
    text = f"{name}:{_VOLATILE.sub('#', said)[:500]}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
