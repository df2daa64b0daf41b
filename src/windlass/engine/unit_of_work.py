"""One request's view of its store: the loaded data with the request's own changes on top, and its effects.

A verb sees nothing else of the store. Access to data that was not loaded is a bug in the verb and raises
``NotLoadedError``, so tests find missing reads and no store needs hidden I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from windlass.core import limit_rules as lm
from windlass.core.edges import ChildEnd, Edge
from windlass.core.job import AttemptOutcome, JobRecord, JobRef
from windlass.core.limit_rules import GroupLimits, Role, Usage
from windlass.core.rollups import Mark
from windlass.core.states import TIMED, JobState
from windlass.core.stream_rules import StreamHead
from windlass.core.transitions import ChangeRecorder
from windlass.engine.effects import Change, Effects, GroupRow, Kind, LazyPart, Move, QueueRow, Starts, Table
from windlass.engine.ordered import Ordered, Sorted, StoredWaiting, WaitingView
from windlass.engine.reads import STEP, EventSpan, LogSpan, Waits

V = TypeVar("V")

#: The counter name of each outcome. A dict lookup is faster than the enum's ``value``.
_NAMES = {outcome: outcome.value for outcome in AttemptOutcome}
_WAITING, _PARKED, _ACTIVE = JobState.WAITING, JobState.PARKED, JobState.ACTIVE


class NotLoadedError(LookupError):
    """A verb uses data that it has not read."""


class Loaded(dict[Any, V]):
    """Loaded data by key. A key that was not loaded raises ``NotLoadedError``."""

    __slots__ = ()

    def __missing__(self, key: Any) -> V:
        raise NotLoadedError(f"the verb uses {key!r} but has not read it")


class QueueView:
    """A queue: its row, its start times, and its number of jobs, of active jobs and of parked jobs."""

    __slots__ = ("active", "exists", "jobs", "name", "parked", "row", "starts")

    def __init__(
        self,
        name: str,
        row: QueueRow | None = None,
        starts: list[int] | None = None,
        jobs: int = 0,
        active: int = 0,
        parked: int = 0,
    ) -> None:
        self.name = name
        #: Whether the store has a row for this queue. ``row`` is a copy that this request may change.
        self.exists = row is not None
        self.row = row or QueueRow(known=False)
        self.starts = starts or []
        #: The stored number. ``active`` and ``parked`` include the changes of this request.
        self.jobs = jobs
        self.active = active
        self.parked = parked


#: How a group counts a job: role, cost, whether it is ranked. See ``core.limit_rules.Usage.count``.
Counted = tuple[Role, int, bool]
#: Roles in which a job of an ordered group may hold up the others.
HOLDING = (Role.PARKED, Role.KEPT, Role.DELAYED)


class GroupJobs:
    """The jobs of a group as they count for its limits, stored or in the view of a request."""

    __slots__ = ("counted", "parked", "places", "usage")

    def __init__(self, usage: Usage, parked: Sorted[JobRecord], places: Mapping[Role, Sorted[int]]) -> None:
        self.usage = usage
        #: The parked jobs by (-priority, place).
        self.parked = parked
        #: The places of the jobs that may hold up the others of an ordered group, by role.
        self.places = places
        #: How the group counts each job. In a view: each job that the request may change (None: not at all).
        self.counted: dict[str, Counted | None] = {}

    def enter(self, job: JobRecord) -> None:
        """Count a job by its present state. It must not be counted."""
        counted = _count_of(job)
        if counted is None:
            return
        self.counted[job.id] = counted
        self.usage.count(*counted, 1)
        role = counted[0]
        if role is Role.PARKED:
            self.parked.put((-job.priority, job.place), job.id, job)
        if role in self.places:
            self.places[role].put((job.place,), job.id, job.place)

    def leave(self, job_id: str) -> None:
        """Stop counting a job."""
        before = self.counted.pop(job_id, None)
        if before is not None:
            self.usage.count(*before, -1)
        self.parked.remove(job_id)
        for places in self.places.values():
            places.remove(job_id)

    def opens_at(
        self, limits: GroupLimits, job: JobRecord, now_ms: int, *, starting: bool = False
    ) -> int | None:
        """``core.limit_rules.opens_at`` for ``job``. Changes nothing."""
        usage = self.usage
        if limits.ordered:
            firsts = (self.places[role].head() for role in lm.holds_up(limits))
            first = min((place for place in firsts if place is not None), default=None)
            usage = msgspec.structs.replace(usage, first=first)
        return lm.opens_at(limits, usage, job.options.cost, now_ms, place=job.place, starting=starting)


def _count_of(job: JobRecord) -> Counted | None:
    role = lm.role_of(job)
    return None if role is None else (role, job.options.cost, lm.is_ranked(job))


class GroupView(GroupJobs):
    """A group of a queue: its own limits, its usage (a copy with exact counts), and its parked jobs."""

    __slots__ = ("name", "next_ms", "own", "queue")

    parked: Ordered[JobRecord]

    def __init__(
        self,
        queue: str,
        name: str,
        row: GroupRow,
        usage: Usage,
        parked: Ordered[JobRecord],
        places: dict[Role, Ordered[int]],
    ) -> None:
        super().__init__(usage, parked, places)
        self.queue = queue
        self.name = name
        self.own: GroupLimits | None = row.own
        self.next_ms = row.next_ms

    def count_stored(self, job: JobRecord) -> None:
        """Note how the store counts a job. Call it before the job is changed."""
        self.counted.setdefault(job.id, _count_of(job))

    @property
    def row(self) -> GroupRow:
        usage = self.usage
        return GroupRow(
            self.own, usage.paused, usage.hold_until_ms, usage.level, usage.level_ms, self.next_ms
        )


class Past(msgspec.Struct):
    """Entries whose retention has passed."""

    kept_ids: list[tuple[str, str]] = []
    keys: list[tuple[str, str]] = []
    #: Groups without limits of their own and without jobs.
    groups: list[tuple[str, str]] = []
    workers: list[tuple[str]] = []
    stubs: list[JobRef] = []
    rollups: list[tuple[Any, ...]] = []
    #: Whether the store stopped at a limit of its own, so that there may be more such entries.
    cut: bool = False


def _joined(old: Kind, new: Kind) -> Kind:
    """The kind that covers two changes of one job in the same request."""
    if old is Kind.MADE or old is new:
        return old
    return Kind.REPLACED if Kind.REPLACED in (old, new) else Kind.MOVED


class UnitOfWork(ChangeRecorder):
    """The loaded data and the effects of one request. Parts that few requests need are ``LazyPart``."""

    __slots__ = (
        *(
            "__dict__",
            "claiming",
            "due",
            "effects",
            "ended",
            "jobs",
            "kept",
            "left",
            "lines",
            "mark",
            "moved",
        ),
        *("moves", "outbox", "plain", "queues", "stubs", "timed"),
    )

    rows = LazyPart[Loaded[Any]](Loaded)
    groups = LazyPart[Loaded[GroupView]](Loaded)
    found = LazyPart[list[JobRecord]](list)
    overdue = LazyPart[list[JobRecord]](list)
    edges = LazyPart[Loaded[Edge | None]](Loaded)
    unmet = LazyPart[Loaded[list[Edge]]](Loaded)
    waits = LazyPart[Loaded[Waits]](Loaded)
    streams = LazyPart[Loaded[StreamHead | None]](Loaded)
    graph = LazyPart[dict[JobRef, list[JobRef]]](dict)
    unsent = LazyPart[list[Edge]](list)
    past = LazyPart[Past](Past)
    logs = LazyPart[dict[str, LogSpan]](dict)
    event_logs = LazyPart[Loaded[EventSpan]](Loaded)
    next_groups = LazyPart[list[str]](list)
    #: The first group of those that were asked about that has ranked jobs, if any.
    ranked = LazyPart[list[str]](list)
    #: Jobs whose records cannot be read. They were set aside before this request was decided.
    aside = LazyPart[list[JobRef]](list)

    def __init__(self, now_ms: int, fresh_place: Callable[[], int]) -> None:
        super().__init__(now_ms, fresh_place)
        self.effects = Effects(now_ms, self.pending_events, self.attempts)
        self.jobs: Loaded[JobRecord | None] = Loaded()
        self.queues: Loaded[QueueView] = Loaded()
        self.lines: Loaded[WaitingView] = Loaded()
        #: Timed jobs. Verbs read them before they change anything.
        self.due: Loaded[Ordered[JobRecord]] = Loaded()
        self.timed: Loaded[Ordered[tuple[int, str]]] = Loaded()
        #: Ids without a record that stay known, and until when (``keep_id``).
        self.kept: dict[tuple[str, str], int] = {}
        #: Stubs of jobs whose record was removed (``core.stubs``), unless they have expired.
        self.stubs: dict[tuple[str, str], JobRecord] = {}
        #: Jobs that ended in this request and are not relayed to their dependents yet.
        self.ended: list[ChildEnd] = []
        #: Ends that earlier requests left in the outbox (None: not loaded).
        self.outbox: list[ChildEnd] | None = None
        self.mark: Mark | None = None
        #: Whether ends are left in the outbox for a ``Relay`` request.
        self.left = False
        #: How many parked jobs this request may still move.
        self.moves = STEP
        #: Queue, state before and new state of the job that was saved last.
        self.moved: tuple[str, JobState | None, JobState] | None = None
        #: Whether the answer says when to ask again, so that ``wait_until`` need not wake workers.
        self.claiming = False

    def known(self, ref: tuple[str, str]) -> JobRecord | None:
        """The loaded job, or else its stub, or None."""
        return self.jobs[ref] or self.stubs.get(ref)

    def existing(self, refs: Iterable[tuple[str, str]]) -> list[JobRecord]:
        """Those of the loaded jobs that have a record."""
        return [job for ref in refs if (job := self.jobs[ref]) is not None]

    # --- loading -----------------------------------------------------------------------------------

    def load_line(self, queue: str, stored: StoredWaiting, *, whole: bool = True) -> None:
        """Add the line of a queue, and apply the changes that this request has made so far."""
        line = self.lines[queue] = WaitingView(stored, whole)
        effects = self.effects
        if not (effects.gone or effects.jobs or effects.moves):
            return
        for job in effects.gone:
            if job.queue == queue:
                line.remove(job.id)
        for job, _ in effects.changed():
            if job.queue == queue:
                if job.state is _WAITING:
                    line.join(job)
                else:
                    line.remove(job.id)

    # --- writing -----------------------------------------------------------------------------------

    def put(self, job: JobRecord, before: JobState | None, kind: Kind = Kind.MOVED) -> None:
        """Write a changed job. ``before`` is its previous state (None: the job is new)."""
        jobs = self.effects.jobs
        ref = (job.queue, job.id)
        known = jobs.get(ref)
        if known is not None:
            jobs[ref] = Change(job, known.before, _joined(known.kind, kind))
        else:
            jobs[ref] = Change(job, before, kind)
        state = job.state
        if before is not state:
            if before is _ACTIVE:
                self.queues[job.queue].active -= 1
            elif before is _PARKED:
                self.queues[job.queue].parked -= 1
            if state is _ACTIVE:
                self.queues[job.queue].active += 1
            elif state is _PARKED:
                self.queues[job.queue].parked += 1
        if self.lines and (state is _WAITING or before is _WAITING):
            line = self.lines.get(job.queue)
            if line is not None:
                line.join(job) if state is _WAITING else line.remove(job.id)
        if self.due and (state in TIMED or before in TIMED):
            due = self.due.get(job.queue)
            if due is not None:
                if job.due_ms is not None and state in TIMED:
                    due.put((job.due_ms, job.seq), job.id, job)
                else:
                    due.remove(job.id)

    def put_alike(self, move: Move) -> None:
        """``put`` for jobs that this request has not changed before. A loaded line is already up to date."""
        self.effects.moves.append(move)
        if move.before is _ACTIVE:
            self.queues[move.queue].active -= len(move.jobs)
        elif move.state is _ACTIVE:
            self.queues[move.queue].active += len(move.jobs)

    def drop(self, job: JobRecord) -> None:
        """Remove a record with its edges, log lines and output."""
        ref = job.ref
        self.effects.gone.append(job)
        self.effects.jobs.pop(ref, None)
        self.jobs[ref] = None
        queue = self.queues[job.queue]
        if job.state is _ACTIVE:
            queue.active -= 1
        elif job.state is _PARKED:
            queue.parked -= 1
        if job.queue in self.lines:
            self.lines[job.queue].remove(job.id)
        if job.queue in self.due:
            self.due[job.queue].remove(job.id)
        if job.linked:
            self.waits[ref] = Waits()
            for pair in [pair for pair in self.edges if pair[0] == ref]:
                self.edges[pair] = None

    def put_row(self, table: Table, key: tuple[Any, ...], value: Any) -> None:
        """Write an entry of a table other than queues and groups. None removes the entry."""
        self.rows[table, key] = value
        self.effects.rows[table, key] = value

    def put_queue(self, queue: QueueView) -> None:
        """Write a queue's row. From now on the queue exists in the store."""
        queue.exists = True
        self.effects.rows[Table.QUEUE, (queue.name,)] = queue.row

    def put_group(self, group: GroupView) -> None:
        """Write a group's row."""
        self.effects.rows[Table.GROUP, (group.queue, group.name)] = group.row
        timed = self.timed.get(group.queue)
        if timed is not None:
            if group.next_ms is None:
                timed.remove(group.name)
            else:
                entry = (group.next_ms, group.name)
                timed.put(entry, group.name, entry)

    def add_start(self, queue: str, group: str | None, times: list[int]) -> None:
        """Write one more start time. It is the last of ``times``."""
        known = self.effects.starts.get((queue, group))
        new = 1 if known is None else None if known.new is None else known.new + 1
        self.effects.starts[queue, group] = Starts(new, times)

    def cut_starts(self, queue: str, group: str | None, times: list[int]) -> None:
        """Replace the stored start times with ``times``."""
        self.effects.starts[queue, group] = Starts(None, times)

    def notify(self, topic: str) -> None:
        """Wake the listeners of ``topic``."""
        self.effects.topics.add(topic)

    def wake(self, queue: str) -> None:
        """Notify workers that jobs of a queue may be claimable."""
        self.effects.topics.add(f"ready:{queue}")

    def close(self) -> None:
        """Finish the request: count its history records, and notify the listeners of its events."""
        effects = self.effects
        for alike in self.attempts:
            first = alike.first
            effects.count(first.queue, first.task, _NAMES[first.outcome], 1 + len(alike.more))
        for note in self.pending_events:
            effects.topics.add(f"event:{note.queue}")
