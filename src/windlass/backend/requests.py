"""One request object per verb, with the type of its answer.

Every verb is one atomic transition. Lifecycle verbs take a batch and answer per item, in the same order.
``now_ms`` is the current time if a test controls the clock. It is None in production: then the store uses its
own clock.

Every verb may be repeated after a lost reply:

* ``Add`` with the same id and ``request_id`` gives the same answer as the first time;
* ``Settle`` under a token that already settled answers ``already``;
* a lost ``Claim`` is repaired by ``Reconcile``, which releases leases that the worker does not know about.
"""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from windlass.core.job import (
    WORKER_GONE_MS,
    Action,
    ArchiverInfo,
    AttemptRecord,
    Command,
    CounterRow,
    Event,
    JobRecord,
    JobRef,
    LogLine,
    NewJob,
    QueueInfo,
    WorkerInfo,
)
from windlass.core.order import Sort, states_of
from windlass.core.outcome import AddOutcome, CancelResult, Changed, Extended, Settled, Settlement
from windlass.core.states import JobState

R = TypeVar("R")


class Request(msgspec.Struct, Generic[R], kw_only=True):
    """Base of all requests; ``R`` is the type of the answer."""

    #: The capability that a backend must declare for this verb ("" = every backend has it).
    needs: ClassVar[str] = ""

    now_ms: int | None = None


# --- add ----------------------------------------------------------------------------------------


class Added(msgspec.Struct, gc=False):
    """The answer for one job of an ``Add`` or a ``Restore``.

    ``record`` is the existing job if the outcome is ``duplicate``, ``replaced`` or ``cached``.
    """

    outcome: AddOutcome
    state: JobState | None
    enqueued_ms: int = 0
    due_ms: int | None = None
    record: JobRecord | None = None
    #: For ``replaced``: options of the new job that were not applied to the existing one.
    not_taken: tuple[str, ...] = ()


class Add(Request[list[Added]], kw_only=True):
    """Add jobs, all of them in one atomic step.

    The id is checked first. If a job with that id exists, the answer depends on its state:

    * ``duplicate`` while it is unfinished;
    * ``cached`` if it completed and its result may still be read;
    * ``queued`` if it failed, was cancelled or expired: the new job replaces it.

    An id under ``keep_id`` always answers ``duplicate``. If its record is gone, ``record`` and ``state`` are
    None.

    The unique key is checked next (``core.unique_rules``). If another job holds it, the answer is
    ``duplicate`` or ``replaced``, with the record of the holder (None if only the key is left). A holder that
    is replaced takes the data and options of the new job, except dependencies, a group that is full, and
    options that its earlier runs have used. ``not_taken`` lists these exceptions.

    The group is checked last. An ordered group answers ``out_of_order`` for a job with a priority or
    ``lifo``. A group with ``max_size`` jobs answers ``refused``. Neither answer changes anything.

    A job may depend on jobs of this request or of the store. It starts as ``blocked`` and becomes ready when
    they all have ended (``core.edges``). Jobs that have already ended count with the outcome that they had.
    If the answer is an existing job, that job gets no new dependencies, but ``parent`` waits for it.

    Raises ``DependencyError`` for an unknown job or a finished parent, and ``CycleError`` if jobs depend on
    each other in a circle. In both cases no job is added. A request with edges has at most 10,000 jobs.
    """

    jobs: list[NewJob]


class Restore(Request[list[Added]], kw_only=True):
    """Import up to 1,000 job records, from another store or from an export.

    Jobs keep their states, times, counts, errors and results. Their sequence number and their place in the
    queue are new. Edges and leases are not restored, so the caller refuses ``active`` and ``blocked`` jobs.

    The answer is ``duplicate`` if the id exists or is kept, or if the job is unfinished and another job holds
    its unique key. A job that no longer held its key (``unique_rules.holds_key``) is restored without it.
    Groups answer for unfinished jobs as in ``Add``. A repeated request gives the same answer as the first
    time.
    """

    needs: ClassVar[str] = "restore"

    jobs: list[JobRecord]


# --- claim, settle, extend ----------------------------------------------------------------------


class ClaimQueue(msgspec.Struct, array_like=True):
    """How many jobs a claim may take from one queue: ``share``, or up to ``cap`` if other queues have few."""

    name: str
    share: int
    cap: int


class Claimed(msgspec.Struct):
    """Leased jobs, in the order in which to start them.

    ``next_due_in_ms`` is the time until the next job of these queues is due; None if no job is scheduled.
    """

    jobs: list[JobRecord]
    now_ms: int
    next_due_in_ms: int | None = None
    #: The leases may have begun before the claim was sent, by at most this long. Negative: they began at
    #: least that long after it was sent, because the claim had to wait.
    held_ms: int = 0


class Claim(Request[Claimed], kw_only=True):
    """Lease up to ``limit`` jobs to ``worker``.

    First promotes up to 1,000 due jobs of these queues. Then visits the queues in the given order: the first
    round takes up to ``share`` jobs of each queue, the second up to ``cap``. Within a queue, jobs are ordered
    by priority (highest first), then turn, then place. Paused queues are skipped, and the limits of a queue
    apply.

    On the way, jobs past their ``expires_ms`` fail as ``expired``, and jobs whose group has reached a limit
    are parked: at most 1,000 of both per queue and round.

    The token of each leased job begins with ``claim_id``, which must be new for every claim.
    """

    worker: str
    queues: list[ClaimQueue]
    limit: int
    claim_id: str
    lease_ms: int = 30_000
    #: The worker runs no job. The store may then lease it a job ahead of its next claim and return the job
    #: with that claim. Ignored unless the worker listens for hints.
    idle: bool = False


class SettleResult(msgspec.Struct):
    """Answers in the order of the settlements, and the jobs of ``Settle.claim``, if it was set."""

    items: list[Settled]
    claimed: Claimed | None = None
    #: Some dependents of these jobs have not been notified yet: run ``Relay`` soon.
    relay: bool = False


class Settle(Request[SettleResult], kw_only=True):
    """End attempts and, if ``claim`` is set, claim the next jobs in the same step."""

    items: list[Settlement]
    claim: Claim | None = None


class LeaseRef(msgspec.Struct, array_like=True):
    """One held lease."""

    queue: str
    id: str
    token: str
    lease_ms: int


class Extend(Request[list[Extended]], kw_only=True):
    """Move lease deadlines to now + ``lease_ms``. Only the newest token of a job can extend its lease."""

    leases: list[LeaseRef]


class Reconcile(Request[int], kw_only=True):
    """Release every job that ``worker`` leases under a token that is not in ``held``; returns how many.

    The jobs return to their old place. A worker sends this after a lost reply: the store may have leased jobs
    to it in an answer that never arrived.
    """

    worker: str
    held: list[str]


# --- duties (any process may run them, any number of times) --------------------------------------


class Promoted(msgspec.Struct):
    """How many jobs were promoted, and the time until the next one is due; None if no job is scheduled."""

    count: int
    next_due_in_ms: int | None = None


class Promote(Request[Promoted], kw_only=True):
    """Make due jobs of all queues waiting, earliest first, then parked jobs whose group may start them again.

    At most ``limit`` jobs in all. A due job whose group has reached its limit becomes ``parked``, and counts.

    Jobs of one queue that are due at the same millisecond are promoted in the order in which they were added.
    Between queues the order is undefined.
    """

    limit: int = 1_000


class Recovered(msgspec.Struct):
    """What a ``Recover`` did: ``recovered`` jobs are waiting again after their lease expired, ``failed`` jobs
    had too many stalls, ``expired`` jobs were past their ``expires_in`` or ``expires_total``."""

    recovered: list[JobRef]
    failed: list[JobRef]
    expired: list[JobRef] = []


class Recover(Request[Recovered], kw_only=True):
    """Take back jobs whose leases have expired, and end pending jobs that are past their ``expires_ms``.

    Each kind is processed earliest first, at most ``limit`` jobs of each. A recovered job waits at its old
    place, with ``stalls`` + 1. A job over its ``max_stalls`` fails instead, with reason ``stalled``.
    ``core.transitions.is_expired`` defines which jobs are past their time.

    Between jobs of different queues with the same time the order is undefined.
    """

    limit: int = 1_000


class Pruned(msgspec.Struct):
    """How much a ``Prune`` removed. ``more``: a limit was reached, so run it again."""

    jobs: int = 0
    ids: int = 0
    keys: int = 0
    events: int = 0
    history: int = 0
    workers: int = 0
    metrics: int = 0
    more: bool = False


class Prune(Request[Pruned], kw_only=True):
    """Remove what is past its retention: job records, kept ids, unique keys, events, history, workers and
    roll-ups. Also removes empty groups whose rate and bucket are unused.

    The record of a finished job is removed when its result has expired and it is too old, or beyond the
    number of records to keep (``core.retention``). At most ``limit`` jobs are removed per request.
    """

    limit: int = 1_000


class Archive(Request[None], kw_only=True):
    """Record that the archiver ``name`` has safely copied the history up to ``cursors`` (queue -> position).

    The store keeps records that an archiver of the last 7 days has not copied yet, up to 1,000,000 per queue.
    Cursors never move back. The cursors of queues that are not named do not change.
    """

    name: str
    cursors: dict[str, int]


class Elect(Request[bool], kw_only=True):
    """Take or keep the leadership of ``role`` for ``ttl_ms``; False if another holder has it."""

    role: str
    holder: str
    ttl_ms: int


class Resign(Request[bool], kw_only=True):
    """Give up the leadership of ``role``; False if ``holder`` does not have it."""

    role: str
    holder: str


class Beat(Request[Command | None], kw_only=True):
    """A worker's heartbeat. Answers with the newest command for this worker, if there is one.

    Only ``CommandWorker`` sets ``worker.command``: its value in this request is ignored.
    """

    worker: WorkerInfo
    #: The worker stops: remove it from the list of workers.
    gone: bool = False


class CommandWorker(Request[bool], kw_only=True):
    """Store a command for a worker; False if the store does not know the worker.

    The worker receives the command as the answer to its next ``Beat``; the hint ``worker:<id>`` makes it send
    one soon. A newer command replaces an older one. ``id`` is new for every command: workers obey each id
    once.
    """

    needs: ClassVar[str] = "commands"

    worker: str
    action: Action
    id: str


# --- changes by users and applications -------------------------------------------------------------


class CancelJobs(Request[list[CancelResult]], kw_only=True):
    """Cancel jobs. A pending job ends at once. For an active job the request is stored for its worker.

    ``dead``: jobs that wait for a retry end as ``failed`` instead, so that they are in the dead set.
    """

    refs: list[JobRef]
    reason: str = ""
    dead: bool = False


class ChangeResult(msgspec.Struct):
    """The answer for one job: what happened, and the state of the job, if it has a record."""

    status: Changed
    state: JobState | None = None


class RemoveJobs(Request[list[ChangeResult]], kw_only=True):
    """Delete records. Active jobs answer ``illegal`` unless ``force``."""

    refs: list[JobRef]
    force: bool = False


class RetryJobs(Request[list[ChangeResult]], kw_only=True):
    """Run finished jobs again: they become waiting with attempts 0; their errors are kept.

    If the job did not complete, its dependencies are checked again. Children that have completed since count
    with their value, unfinished children block the job, and failed or removed children are ignored.

    A ``retrying`` job becomes ready at once. Jobs in any other state answer ``illegal``.
    """

    refs: list[JobRef]


class ChangeJob(Request[ChangeResult], kw_only=True):
    """Change a pending job's priority, due time or payload; or, with its token, an active job's payload.

    ``delay_ms`` counts from now. 0 makes a scheduled or retrying job ready at once (event ``promoted``).
    More than 0 moves the due time of a waiting, scheduled or retrying job. A blocked job stores the due time
    for when its dependencies have ended. A suspended job answers ``illegal``.

    A job with a new priority goes to the back of that priority. In an ordered group the answer is ``ordered``
    and nothing changes.
    """

    ref: JobRef
    token: str | None = None
    priority: int | None = None
    delay_ms: int | None = None
    payload: bytes | None = None


class Report(Request[ChangeResult], kw_only=True):
    """Set the progress of a job, append log lines, or both.

    A running attempt sends its token; other callers leave it None. Progress without a token answers
    ``illegal`` if the job has ended. Progress under a token that is not the newest of the job answers
    ``lost``, also if the token is empty. Log lines are accepted as long as the job exists.

    Not idempotent: log lines that are sent twice are stored twice.
    """

    ref: JobRef
    token: str | None = None
    progress: bytes | None = None
    logs: list[str] = []
    #: The level of the lines: ``debug``, ``info``, ``warning`` or ``error``. The store adds the time, the
    #: attempt and the run id.
    level: str = "info"


class PublishEvent(Request[None], kw_only=True):
    """Append an application's own event to the event log of a queue. Creates the queue if it does not exist.

    ``data`` is JSON. Not idempotent: an event that is sent twice is stored twice.
    """

    queue: str
    name: str
    data: str = "null"
    job_id: str = ""


class TrimEvents(Request[int], kw_only=True):
    """Delete all events of a queue except the newest ``keep``; returns how many. Ids are not used again."""

    queue: str
    keep: int


class PauseQueue(Request[bool], kw_only=True):
    """Pause or resume a queue; True if that changed its setting."""

    queue: str
    paused: bool


class Purged(msgspec.Struct):
    """The jobs that a ``Purge`` removed."""

    count: int
    ids: list[str]
    #: Whether the queue has no jobs, but more settings than one step deletes: send the request again.
    more: bool = False


class Purge(Request[Purged], kw_only=True):
    """Remove up to ``limit`` jobs of a queue in the given states, oldest first.

    Skips jobs whose time is after now - ``grace_ms``: for finished jobs the time when they ended, for others
    the time when they were added. Active jobs are removed only with ``force``. ``clean``, ``clear`` and
    ``obliterate`` use this request.
    """

    queue: str
    states: list[JobState]
    grace_ms: int = 0
    limit: int = 1_000
    force: bool = False
    #: Also delete the queue itself (settings, events) if no job is left.
    forget: bool = False


class SetResultTtl(Request[ChangeResult], kw_only=True):
    """Keep a completed job's result, or a failed job with its errors, until now + ``ttl_ms``."""

    ref: JobRef
    ttl_ms: int


# --- inspection ------------------------------------------------------------------------------------


class GetJobs(Request[list["JobRecord | None"]], kw_only=True):
    """Records by reference, in the same order; None for each job without a record.

    A completed job whose result has expired is returned without its result. With ``late`` it keeps the result
    as long as the record exists: a caller that has waited for the job must get it.
    """

    refs: list[JobRef]
    late: bool = False


class Page(msgspec.Struct):
    """Some records. ``cursor`` continues the list; None if this is the last page.

    ``looked`` is roughly how many records the store read to find them.
    """

    jobs: list[JobRecord]
    cursor: str | None = None
    looked: int = 0


class Hint(msgspec.Struct, frozen=True, array_like=True):
    """A text that a job must contain to match the caller's search. Lower case letters, digits, a few signs.

    ``where`` says where to search: ``error`` (its errors), ``payload``, or ``any`` (both, and its id, task,
    reason and options). The search ignores case. Only payloads of codec ``json`` are searched: a payload of
    another codec matches every hint.
    """

    where: Literal["error", "payload", "any"]
    text: str


class ListJobs(Request[Page], kw_only=True):
    """Records of a queue that match all given filters, in the order in which they were added or by ``sort``.

    ``error_class`` and ``fingerprint`` refer to the last error. ``finished_from_ms`` (inclusive) and
    ``finished_to_ms`` (exclusive) leave out jobs that have not ended. ``hints`` reduce what is transferred: a
    store may leave out jobs that do not match one of them, or ignore the hints. The caller filters the answer
    again.

    ``sort`` by due or finish time accepts only ``states`` that have that time (the default is all of them),
    and leaves out jobs without one. ``newest_first`` means the latest time first.

    ``cursor`` comes from the page before, or from ``core.order.cursor_of`` for a record. A page may hold
    fewer than ``limit`` jobs and still have a cursor, because a request reads a bounded number of records.
    """

    queue: str
    states: list[JobState] = []
    task: str | None = None  # glob: * and ?
    tag: str | None = None
    error_class: str | None = None
    fingerprint: str | None = None
    group: str | None = None
    worker: str | None = None
    finished_from_ms: int | None = None
    finished_to_ms: int | None = None
    #: Only the last job of each flow: the one that no other job of the flow waits for.
    tops: bool = False
    hints: list[Hint] = []
    sort: Sort = Sort.ADDED
    newest_first: bool = True
    cursor: str | None = None
    limit: int = 100

    def __post_init__(self) -> None:
        if self.sort is not Sort.ADDED:
            self.states = states_of(self.states, self.sort)

    @property
    def needs_error(self) -> bool:
        """Whether only jobs with an error can match."""
        return (
            self.error_class is not None
            or self.fingerprint is not None
            or any(hint.where == "error" for hint in self.hints)
        )


class CountJobs(Request[dict[JobState, int]], kw_only=True):
    """The number of jobs of a queue in each state. Every state is in the answer."""

    queue: str


class ListQueues(Request[list[QueueInfo]], kw_only=True):
    """All queues, ordered by name."""


class LogPage(msgspec.Struct):
    """Log lines in order, and how many the store keeps for the job."""

    entries: list[LogLine]
    count: int

    @property
    def lines(self) -> list[str]:
        """The texts of the lines."""
        return [entry.text for entry in self.entries]


class GetLogs(Request[LogPage], kw_only=True):
    """Log lines of a job from index ``start``, at most ``limit``."""

    ref: JobRef
    start: int = 0
    limit: int = 1_000


class EventPage(msgspec.Struct):
    """Events in order, and the range of ids in the log now (``last_id`` 0: no events yet)."""

    events: list[Event]
    last_id: int
    oldest_id: int


class ReadEvents(Request[EventPage], kw_only=True):
    """Events of a queue after id ``after``, oldest first. Trimmed events are skipped: see ``oldest_id``."""

    queue: str
    after: int = 0
    limit: int = 1_000


class HistoryPage(msgspec.Struct):
    """Attempt records in order. ``last`` is the position to continue after."""

    records: list[AttemptRecord]
    last: int
    #: Position of the newest and the oldest record in the log.
    newest: int
    oldest: int


class ReadHistory(Request[HistoryPage], kw_only=True):
    """Attempt records of a queue after position ``after`` (0 = from the start), oldest first.

    Raises ``HistoryTrimmedError`` if records after ``after`` were trimmed, so that no record is skipped
    silently. Some stores may hold a record twice, with the same ``run_id`` and ``finished_ms``.
    """

    queue: str
    after: int = 0
    limit: int = 1_000


class ReadCounters(Request[list[CounterRow]], kw_only=True):
    """Lifetime counters per task and outcome. They never decrease, and match the history log exactly."""

    queue: str | None = None


class ListArchivers(Request[list[ArchiverInfo]], kw_only=True):
    """Archivers that were active in the last 7 days, ordered by name."""


class ListWorkers(Request[list[WorkerInfo]], kw_only=True):
    """Workers with a heartbeat in the last ``stale_ms``."""

    stale_ms: int = WORKER_GONE_MS


AnyRequest = Request[Any]
