"""One request object per verb, with the type of its answer.

Every verb is one whole, atomic transition; lifecycle verbs take batches and answer per item, in order.
``now_ms`` is None in production (the store's clock decides) and set when a test drives the clock.

Every verb may be repeated after a lost reply:

* ``Add`` with the same id and ``request_id`` answers as it did the first time;
* ``Settle`` under a token that already settled answers ``already``;
* a lost ``Claim`` is repaired by ``Reconcile``, which gives back leases that the worker does not hold.
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
    """The answer for one added job. ``record`` is the existing job for ``duplicate``, ``replaced`` and
    ``cached``."""

    outcome: AddOutcome
    state: JobState | None
    enqueued_ms: int = 0
    due_ms: int | None = None
    record: JobRecord | None = None
    #: For ``replaced``: options of the new job that the existing one did not take.
    not_taken: tuple[str, ...] = ()


class Add(Request[list[Added]], kw_only=True):
    """Add jobs, all of them in one atomic step.

    A job whose id is already there is not added again (``duplicate``) while that job is alive; it answers
    ``cached`` while a completed job's result may be read; a failed, cancelled or expired one is replaced by
    the new job (``queued``). An id under ``keep_id`` always answers ``duplicate``, even without a record
    (then with ``record`` and ``state`` None).

    Then the unique key is looked at (``core.unique_rules``): while it is held the answer is ``duplicate`` or
    ``replaced``, with the holder's record (None when only the key is left). A holder that is replaced takes
    all that the new job says, but what it has used already because it ran; ``not_taken`` names that. A group
    that is ordered answers ``out_of_order`` for a job with a priority or ``lifo``, one that has its
    ``max_size`` ``refused``. Neither changes anything else.

    Jobs may name what they depend on, in this request or in the store: they are born ``blocked`` and become
    ready when all of it has ended (``core.edges``). What has ended already counts as it ended. Raises
    ``DependencyError`` for an unknown job or a parent that has finished, ``CycleError`` for a
    circle; then nothing was added. A job that is answered by an existing one gets no new dependencies, but
    its ``parent`` waits for it all the same. At most 10,000 jobs in a request with edges.
    """

    jobs: list[NewJob]


class Restore(Request[list[Added]], kw_only=True):
    """Put jobs back as they were, up to 1,000, from records of another store or of an earlier time.

    They keep their states, times, counts, errors and results; their number and their place in line are new,
    and edges stay behind. So do leases: ``active`` and ``blocked`` jobs are refused by the caller. An id that
    is there or kept, and the unique key of an unfinished job that another has, answer ``duplicate``; the same
    request again answers as the first time. A group answers for an unfinished job as it does to ``Add``.
    """

    needs: ClassVar[str] = "restore"

    jobs: list[JobRecord]


# --- claim, settle, extend ----------------------------------------------------------------------


class ClaimQueue(msgspec.Struct, array_like=True):
    """How much one queue may contribute to a claim: ``share`` first, up to ``cap`` when others are empty."""

    name: str
    share: int
    cap: int


class Claimed(msgspec.Struct):
    """Leased jobs, in the order to start them.

    ``next_due_in_ms``: how long until the next job of these queues is due (None: none is scheduled).
    """

    jobs: list[JobRecord]
    now_ms: int
    next_due_in_ms: int | None = None
    #: These leases had begun this long, at most, before the claim was asked for.
    held_ms: int = 0


class Claim(Request[Claimed], kw_only=True):
    """Lease up to ``limit`` jobs to ``worker``.

    First promotes what is due in these queues (at most 1,000), then visits the queues in order: each gives
    up to its ``share``, a second round fills up to each ``cap``. Inside a queue: highest priority first,
    then turn, then place in line. Paused queues give nothing. Jobs past ``expires_ms`` that are met on the
    way end as failed (``expired``); jobs whose group may not start one more are parked: at most 1,000 of both
    per queue and round. A queue gives no more than its own limits allow.
    The token of the n-th job begins with ``claim_id``, which must be new for every claim.
    """

    worker: str
    queues: list[ClaimQueue]
    limit: int
    claim_id: str
    lease_ms: int = 30_000
    #: Nothing runs at this worker: the store may lease it a job before it claims again, and hand that out
    #: with the next claim. Means nothing unless the worker listens for hints.
    idle: bool = False


class SettleResult(msgspec.Struct):
    """Answers in the order of the settlements, and the next jobs when a claim came along."""

    items: list[Settled]
    claimed: Claimed | None = None
    #: Some dependents of these jobs have not been notified yet: run ``Relay`` soon.
    relay: bool = False


class Settle(Request[SettleResult], kw_only=True):
    """End attempts and, in the same step, claim the next jobs."""

    items: list[Settlement]
    claim: Claim | None = None


class LeaseRef(msgspec.Struct, array_like=True):
    """One held lease."""

    queue: str
    id: str
    token: str
    lease_ms: int


class Extend(Request[list[Extended]], kw_only=True):
    """Move lease deadlines to now + ``lease_ms``. Only the newest token may."""

    leases: list[LeaseRef]


class Reconcile(Request[int], kw_only=True):
    """Release every lease of ``worker`` whose token is not in ``held``, at its old place; returns how many.

    Sent after a lost reply: the store may have leased jobs whose claim never reached the worker.
    """

    worker: str
    held: list[str]


# --- duties (safe to run anywhere, any number of times) ------------------------------------------


class Promoted(msgspec.Struct):
    count: int
    next_due_in_ms: int | None = None


class Promote(Request[Promoted], kw_only=True):
    """Make due jobs of all queues waiting, earliest first; then let in jobs of groups whose time has come.

    At most ``limit`` in all. Also a due job whose group has no room counts: it is ``parked``.

    Of jobs due at the same instant, those of one queue go in the order of their adding; between queues there
    is no promised order: ``seq`` and ``place`` are numbers within a queue.
    """

    limit: int = 1_000


class Recovered(msgspec.Struct):
    """Jobs taken back from silent workers, those that failed because it happened too often, and those whose
    ``expires_in`` or ``expires_total`` passed."""

    recovered: list[JobRef]
    failed: list[JobRef]
    expired: list[JobRef] = []


class Recover(Request[Recovered], kw_only=True):
    """Take back expired leases, earliest first: waiting at the old place, stalls + 1. Then end pending jobs
    past its ``expires_ms``, earliest first (see ``transitions.is_expired``). At most ``limit`` of each.

    A job over its ``max_stalls`` ends as failed, reason ``stalled``. Between jobs of different queues whose
    time came at the same instant there is no promised order.
    """

    limit: int = 1_000


class Pruned(msgspec.Struct):
    """What a prune pass removed. ``more``: a bound was reached, run again."""

    jobs: int = 0
    ids: int = 0
    keys: int = 0
    events: int = 0
    history: int = 0
    workers: int = 0
    metrics: int = 0
    more: bool = False


class Prune(Request[Pruned], kw_only=True):
    """Remove what is past its keep: records by age and by count, kept ids, unique keys, events, history,
    workers, roll-ups, groups that are empty and have used nothing that still counts.

    A finished record goes when its result is past its time and it is too old or beyond the count; see
    ``core.retention``. At most ``limit`` jobs go in one pass.
    """

    limit: int = 1_000


class Archive(Request[None], kw_only=True):
    """Say that the archiver ``name`` has safely copied the history up to ``cursors`` (queue -> position).

    The log holds what archivers of the last 7 days have not copied yet, up to 1,000,000 records per queue.
    Cursors never go back; queues that are not named stay as they were.
    """

    name: str
    cursors: dict[str, int]


class Elect(Request[bool], kw_only=True):
    """Take or keep the leadership of ``role`` for ``ttl_ms``; False when another holder has it."""

    role: str
    holder: str
    ttl_ms: int


class Resign(Request[bool], kw_only=True):
    """Give up the leadership of ``role``; False when it was not ours."""

    role: str
    holder: str


class Beat(Request[Command | None], kw_only=True):
    """A worker's heartbeat. Answers with the newest command for this worker, if there is one.

    ``worker.command`` is the store's: what the request says there is ignored.
    """

    worker: WorkerInfo
    #: Forget the worker instead: it stops.
    gone: bool = False


class CommandWorker(Request[bool], kw_only=True):
    """Leave a command for a worker; False when no such worker is known.

    The worker receives it with the answer to its next ``Beat``, hurried by the hint ``worker:<id>``. A newer
    command replaces one that was not received yet. ``id`` is new for every command: workers obey each once.
    """

    needs: ClassVar[str] = "commands"

    worker: str
    action: Action
    id: str


# --- changes by people and programs ---------------------------------------------------------------


class CancelJobs(Request[list[CancelResult]], kw_only=True):
    """Cancel jobs: at once while pending, by a stored request to the worker while active.

    ``dead``: those that wait for a retry end as failed instead, among the dead ones.
    """

    refs: list[JobRef]
    reason: str = ""
    dead: bool = False


class ChangeResult(msgspec.Struct):
    status: Changed
    state: JobState | None = None


class RemoveJobs(Request[list[ChangeResult]], kw_only=True):
    """Delete records. Active jobs answer ``illegal`` unless ``force``."""

    refs: list[JobRef]
    force: bool = False


class RetryJobs(Request[list[ChangeResult]], kw_only=True):
    """Put finished jobs back to waiting with a fresh budget (attempts 0, history of errors kept).

    Dependencies of a finished job that did not complete are looked at again: what has completed since counts
    with its value, what is open blocks it, what failed or is gone is forgiven.
    A ``retrying`` job is simply made ready now. Others answer ``illegal``.
    """

    refs: list[JobRef]


class ChangeJob(Request[ChangeResult], kw_only=True):
    """Change a pending job's priority, due time or payload; or, with its token, an active job's payload.

    ``delay_ms`` is from now: 0 makes a scheduled or retrying job ready at once (event ``promoted``); more
    moves a waiting, scheduled or retrying job's due time; a blocked job keeps it for the time when nothing
    else holds it, for a suspended one it is ``illegal``. A changed priority joins the back of its new
    priority; in an ordered group it is answered ``ordered``, and nothing is changed.
    """

    ref: JobRef
    token: str | None = None
    priority: int | None = None
    delay_ms: int | None = None
    payload: bytes | None = None


class Report(Request[ChangeResult], kw_only=True):
    """Progress (of a running attempt under its token, or sent from outside without one) and log lines.

    Progress of a job that has ended, without a token, is ``illegal``; under one that is not the job's newest
    lease, also under an empty one, it is ``lost``. Log lines need only the job.
    Repeating it shows: log lines that were sent twice are kept twice.
    """

    ref: JobRef
    token: str | None = None
    progress: bytes | None = None
    logs: list[str] = []
    #: How much the lines matter: ``debug``, ``info``, ``warning`` or ``error``. The store adds the time, the
    #: attempt and the run.
    level: str = "info"


class PublishEvent(Request[None], kw_only=True):
    """Put an event of the application's own into the log of a queue, which is known from then on.

    ``data`` is JSON. Like log lines, an event that was sent twice is there twice.
    """

    queue: str
    name: str
    data: str = "null"
    job_id: str = ""


class TrimEvents(Request[int], kw_only=True):
    """Forget all events of a queue but the newest ``keep``; returns how many went. Ids never return."""

    queue: str
    keep: int


class PauseQueue(Request[bool], kw_only=True):
    """Pause or resume a queue; True when that changed something."""

    queue: str
    paused: bool


class Purged(msgspec.Struct):
    count: int
    ids: list[str]


class Purge(Request[Purged], kw_only=True):
    """Remove up to ``limit`` jobs of a queue in the given states, oldest first.

    Only those that entered the state before now - ``grace_ms`` (finished ones by finish time, others by add
    time). Serves ``clean``, ``clear`` and ``obliterate``. Active jobs go only with ``force``.
    """

    queue: str
    states: list[JobState]
    grace_ms: int = 0
    limit: int = 1_000
    force: bool = False
    #: Also forget the queue itself (settings, events) when no job is left.
    forget: bool = False


class SetResultTtl(Request[ChangeResult], kw_only=True):
    """Keep a completed job's result, or a failed job with its errors, until now + ``ttl_ms``."""

    ref: JobRef
    ttl_ms: int


# --- inspection ------------------------------------------------------------------------------------


class GetJobs(Request[list["JobRecord | None"]], kw_only=True):
    """Records by reference; None where there is none.

    A completed job whose result is past its time is shown without one. ``late``: with the result all the
    same, as long as the record is there, for those who waited while the job ran.
    """

    refs: list[JobRef]
    late: bool = False


class Page(msgspec.Struct):
    """Some records and where to continue (None: that was all).

    ``looked``: about how many records the store went through to find them.
    """

    jobs: list[JobRecord]
    cursor: str | None = None
    looked: int = 0


class Hint(msgspec.Struct, frozen=True, array_like=True):
    """A text that a job must hold to be of use to the caller; small letters, digits and a few signs.

    ``where`` is ``error`` (its errors), ``payload``, or ``any`` (those, and id, task, reason and options). It
    is found in any case of its letters, and only payloads of codec ``json`` are looked into: the others may
    hold anything.
    """

    where: Literal["error", "payload", "any"]
    text: str


class ListJobs(Request[Page], kw_only=True):
    """Records of a queue by what is said here; in order of their adding, or by another ``sort``.

    ``error_class`` and ``fingerprint`` are those of the last error. ``finished_from_ms`` and
    ``finished_to_ms`` (which is left out itself) leave out jobs that have not ended. ``hints`` spare the
    caller records: a store may leave out a job that does not hold one of them, and the caller looks at all
    that come.

    ``sort`` by due time or by end needs ``states`` that have one (none named: all of those), and leaves out
    jobs without that time. ``newest_first`` means the latest time first.

    ``cursor`` comes from the page before, or from ``core.order.cursor_of`` a record. A page may hold fewer
    than ``limit`` jobs and still have a cursor: filters are applied to a bounded number of rows per call.
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
    #: Only jobs at the end of a flow, for which no other job of it waits.
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
        """Whether only jobs that have an error can fit."""
        return (
            self.error_class is not None
            or self.fingerprint is not None
            or any(hint.where == "error" for hint in self.hints)
        )


class CountJobs(Request[dict[JobState, int]], kw_only=True):
    """How many jobs of a queue are in each state (every state present)."""

    queue: str


class ListQueues(Request[list[QueueInfo]], kw_only=True):
    """Every queue the store knows, by name."""


class LogPage(msgspec.Struct):
    """Log lines in order, and how many are kept."""

    entries: list[LogLine]
    count: int

    @property
    def lines(self) -> list[str]:
        """Their texts."""
        return [entry.text for entry in self.entries]


class GetLogs(Request[LogPage], kw_only=True):
    """Log lines of a job from ``start``, at most ``limit``; ``count`` is how many are kept."""

    ref: JobRef
    start: int = 0
    limit: int = 1_000


class EventPage(msgspec.Struct):
    """Events in order, and the range that the log holds now (``last_id`` 0: nothing yet)."""

    events: list[Event]
    last_id: int
    oldest_id: int


class ReadEvents(Request[EventPage], kw_only=True):
    """Events of a queue after id ``after``, oldest first; trimmed ones are skipped (see ``oldest_id``)."""

    queue: str
    after: int = 0
    limit: int = 1_000


class HistoryPage(msgspec.Struct):
    """Attempt records in order. ``last`` is the cursor to continue from."""

    records: list[AttemptRecord]
    last: int
    #: Position of the newest and the oldest record in the log.
    newest: int
    oldest: int


class ReadHistory(Request[HistoryPage], kw_only=True):
    """Attempt records of a queue after position ``after`` (0 = from the start), oldest first.

    Raises ``HistoryTrimmedError`` when records after ``after`` were trimmed: nothing is skipped silently.
    A log that may hold a record twice gives both the same ``run_id`` and ``finished_ms``.
    """

    queue: str
    after: int = 0
    limit: int = 1_000


class ReadCounters(Request[list[CounterRow]], kw_only=True):
    """Lifetime counters per task and outcome. They only grow, and match the history log exactly."""

    queue: str | None = None


class ListArchivers(Request[list[ArchiverInfo]], kw_only=True):
    """Archivers of the last 7 days, by name."""


class ListWorkers(Request[list[WorkerInfo]], kw_only=True):
    """Workers with a heartbeat in the last ``stale_ms``."""

    stale_ms: int = WORKER_GONE_MS


AnyRequest = Request[Any]
