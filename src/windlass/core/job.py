"""The records that cross the backend contract: jobs, errors, events, attempts, workers, queues.

These are plain data in integer milliseconds UTC. Payload, result and progress are opaque bytes: only the
codec named in the record reads them. What users hold is ``windlass.Job``, built on ``JobRecord``.
"""

from __future__ import annotations

import hashlib
import re
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

#: Most characters kept of an error's class, message and traceback, and of a line of a job's log.
ERROR_CLASS_CHARS = 200
ERROR_MESSAGE_CHARS = 10_000
TRACEBACK_CHARS = 32_000
LOG_LINE_CHARS = 10_000
#: Errors kept per job (the newest), and log lines kept per job (the newest).
ERRORS_KEPT = 32
LOGS_KEPT = 1_000
#: Signals kept per job, by name.
SIGNALS_KEPT = 64
#: Events kept per queue, and attempt records kept per queue while no archiver is registered.
EVENTS_KEPT = 10_000
#: Most bytes of the data of an event of the application's own.
EVENT_DATA_BYTES = 10_000
HISTORY_KEPT = 100_000
HISTORY_KEPT_MS = 86_400_000
#: With archivers: records they have not read yet are held, up to this many per queue ...
HISTORY_HELD = 1_000_000
#: ... for archivers that were seen within this time.
ARCHIVER_KEPT_MS = 7 * 86_400_000
#: A worker without a heartbeat for this long counts as gone.
WORKER_GONE_MS = 45_000
#: Workers that were silent for this long are forgotten: until then people can see which fell silent.
WORKER_KEPT_MS = 86_400_000
HISTORY_SCHEMA_VERSION = 3
#: Most characters of an error's message that a record of history keeps.
BRIEF_CHARS = 500
#: Most jobs that one step of a store moves; the rest is left to the next.
STEP = 1_000


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One failed attempt, as kept in the job's error history."""

    at_ms: int = 0
    attempt: int = 0
    error_class: str = ""
    message: str = ""
    traceback: str = ""
    fingerprint: str = ""
    #: What history keeps of the message, when that is not its beginning: masked, or nothing at all.
    brief: str | None = None

    @property
    def said(self) -> str:
        """What history keeps of the message."""
        return self.message[:BRIEF_CHARS] if self.brief is None else self.brief


def error_info(error_class: object, message: object, traceback: str = "") -> ErrorInfo:
    """What is kept of an error. Every ``ErrorInfo`` about user code is made here: clean, bounded, storable.

    Of a long traceback the end is kept: it names the place.
    """
    name = clean_text(error_class, ERROR_CLASS_CHARS)
    text = clean_text(message, ERROR_MESSAGE_CHARS)
    trace = clean_text(traceback[-TRACEBACK_CHARS:], TRACEBACK_CHARS)
    return ErrorInfo(0, 0, name, text, trace, fingerprint(name, text))


class WorkerFacts(msgspec.Struct, frozen=True, array_like=True):
    """What a worker says of the attempts that it settles; history keeps it. One object serves many."""

    version: str
    #: How many runs it went by.
    max_attempts: int = 3
    #: Where it runs; None when its id says so.
    host: str | None = None


class NewJob(msgspec.Struct, kw_only=True, gc=False):
    """A job to be added. Already validated and encoded by the caller."""

    queue: str
    id: str
    task: str
    payload: bytes
    codec: str = "json"
    priority: int = 0
    options: StoredOptions = StoredOptions()
    #: Due this long after the store's now, or at this instant; neither = ready at once.
    delay_ms: int = 0
    run_at_ms: int | None = None
    expires_in_ms: int | None = None
    #: Repeating an add with the same non-empty request id answers as the first time.
    request_id: str = ""
    #: Jobs that must end before this one starts: stored ones, or others of the same ``Add``.
    depends_on: list[Dependency] = []
    #: A job, stored or of the same ``Add``, that is to wait for this one; it must not have finished.
    parent: Dependency | None = None


LogLevel = Literal["debug", "info", "warning", "error"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A line that was kept with a job, and what the store knew of the job then.

    ``run`` is the number of the delivery, which is never given twice: ``attempt`` begins again after a retry
    by hand. Lines of earlier releases have neither, nor a time.
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
    """A job as its store knows it."""

    queue: str
    id: str
    task: str
    payload: bytes
    codec: str = "json"
    state: JobState = JobState.WAITING
    priority: int = 0
    #: Number of its add: the order of listings, and the first place in line. In order within a queue only.
    seq: int = 0
    #: Place in line: smaller first within a priority, below 0 for ``lifo`` jobs. Kept when a job is released
    #: or recovered.
    place: int = 0
    #: Its group's turn: smaller first within a priority, before ``place``. See ``transitions.NO_TURN``.
    turn: int = 0
    options: StoredOptions = StoredOptions()
    request_id: str = ""
    enqueued_ms: int = 0
    #: When it last became ready to start; the wait of an attempt is counted from here.
    ready_ms: int = 0
    #: When it is due (scheduled, retrying), else None.
    due_ms: int | None = None
    #: Not active and not ended by then: ends as failed, reason ``expired``. Before the first run the earlier
    #: of ``expires_in`` and ``expires_total`` says when, from then on ``expires_total`` alone.
    expires_ms: int | None = None
    started_ms: int | None = None
    finished_ms: int | None = None
    #: Runs that ended in failure or timeout, since it was added or retried by hand.
    attempts: int = 0
    #: Claims, ever.
    deliveries: int = 0
    stalls: int = 0
    manual_retries: int = 0
    #: Releases because no handler was known.
    misses: int = 0
    #: The lease, while active.
    token: str | None = None
    #: The token that settled last: repeating that settlement answers ``already``.
    settled_token: str | None = None
    lease_until_ms: int | None = None
    worker: str | None = None
    cancel_reason: str | None = None
    progress: bytes | None = None
    result: bytes | None = None
    #: The result may be read (and answers ``cached``) until then.
    result_until_ms: int | None = None
    #: Why it failed or was cancelled: ``attempts``, ``unrecoverable``, ``stalled``, ``unknown_task``, ...
    reason: str = ""
    errors: list[ErrorInfo] = []
    #: Some edge names this job, as dependent or as child: its end concerns others.
    linked: bool = False
    #: The signal that its last suspension waited for, or waits for.
    awaits: str | None = None
    #: Signals received, by name.
    signals: dict[str, SignalValue] = {}
    #: What it waited for since it was added or since its last attempt; None: nothing but its turn.
    queue_time: QueueTime | None = None

    @property
    def ref(self) -> JobRef:
        return JobRef(self.queue, self.id)

    @property
    def result_expired(self) -> bool:
        """Whether it completed and its result is past its time. A returned ``None`` is stored like others."""
        return self.state is JobState.COMPLETED and self.result is None

    @property
    def result_codec(self) -> str:
        """The codec of progress and result."""
        return self.options.result_codec or self.codec


def retries_of(job: JobRecord) -> int:
    """How often a job was tried again. Its last failure led to no retry once it is dead."""
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
    """What happened. Every change of state has exactly one event.

    ``gap`` is in no log: it says that events are missing before what comes next.
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
    #: The application's own: ``name`` and ``data`` (JSON) say what.
    CUSTOM = "custom"
    GAP = "gap"


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a queue's event log. ``id`` grows by one per queue and never repeats."""

    id: int
    at_ms: int
    type: EventType
    job_id: str = ""
    task: str = ""
    #: In the log texts, numbers and None; readers are also shown values (``api.event_values``).
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
    """One row of history: a settled attempt, or a job's end without one (``attempt`` = 0).

    ``run_id`` is the lease token and never repeats. ``started_ms`` and ``finished_ms`` are the store's
    times; ``duration_ms`` is the worker's own monotonic clock (None when no worker reported).
    Fields are only ever appended; readers recognise old rows by ``schema_version``.
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
    #: From here on since version 2. What the worker that settled the attempt said; None when none did.
    max_attempts: int | None = None
    worker_version: str | None = None
    #: None also when the worker's id begins with it, as ids do unless they are chosen; see ``host``.
    worker_host: str | None = None
    error_message: str | None = None
    priority: int = 0
    #: The schedule that made the job, and for which of its slots (None: run by hand).
    schedule: str | None = None
    slot_ms: int | None = None
    #: The job that waits for this one, and the top of its flow, as ``queue/id``.
    parent: str | None = None
    root: str | None = None
    #: Tokens that its start took from the bucket of its group.
    cost: int = 1
    #: Since version 3: what it waited for before this attempt. None: ``wait_ms`` in line and nothing else.
    queue_time: QueueTime | None = None

    @property
    def host(self) -> str | None:
        """The machine that ran it, if that is known."""
        return self.worker_host or host_of(self.worker)


@lru_cache(maxsize=1024)
def host_of(worker: str | None) -> str | None:
    """The machine that a worker's id names (``host:pid:random``); None when it was given another id."""
    name, _, pid = (worker or "").rpartition(":")[0].rpartition(":")
    return name if name and pid.isdecimal() else None


#: What a worker can be ordered from afar: claim no more, continue, stop, write all stacks to its log.
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
    #: How much of one processor it used since the beat before, in percent: 200 means two processors.
    cpu_percent: float = 0.0
    version: str = ""
    started_ms: int = 0
    beat_ms: int = 0
    quiet: bool = False
    #: Whether it does the duties of the leader.
    leader: bool = False
    #: Its last command; kept by the store.
    command: Command | None = None
    #: Where its threads and tasks stand, for a minute after the command ``dump``.
    stacks: str = ""


class QueueInfo(msgspec.Struct, kw_only=True):
    """A queue at a glance."""

    name: str
    paused: bool = False
    counts: dict[str, int] = {}
    #: When the oldest waiting job became ready; None when none waits.
    oldest_ready_ms: int | None = None


class ArchiverInfo(msgspec.Struct, kw_only=True):
    """A program that copies the history log elsewhere, and how far it is in each queue."""

    name: str
    cursors: dict[str, int]
    seen_ms: int = 0


class CounterRow(NamedTuple):
    """How many attempts of a task ended in ``outcome`` (or were ``enqueued``) in the queue's whole life."""

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
    """The history row for ``job`` as it stands *before* the change that ends its attempt."""
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


def ended_run_id(job: JobRecord) -> str:
    """The ``run_id`` of a job's end without an attempt: it can happen once per add and manual retry."""
    return f"end.{job.queue}.{job.id}.{job.seq}.{job.manual_retries}"


_VOLATILE = re.compile(r"0x[0-9a-fA-F]+|\d+|'[^']*'|\"[^\"]*\"")


def fingerprint(error_class: str, message: str) -> str:
    """A short key under which errors that differ only in numbers and quoted values are one. Never raises."""
    name, said = clean_text(error_class, ERROR_CLASS_CHARS), clean_text(message, ERROR_MESSAGE_CHARS)
    text = f"{name}:{_VOLATILE.sub('#', said)[:500]}"
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
