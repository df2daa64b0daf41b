"""One request's view of its store: what was loaded, with the request's own changes on top, and its effects.

Decisions see nothing else. Asking for something that was not loaded is a mistake of the verb and raises
``NotLoadedError``; so tests find missing reads, and no store has to hide I/O behind a lookup.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

from windlass.core.edges import ChildEnd, Edge
from windlass.core.job import AttemptOutcome, JobRecord, JobRef
from windlass.core.limit_rules import GroupLimits, Role, Usage
from windlass.core.options import StoredOptions
from windlass.core.rollups import Mark
from windlass.core.states import TIMED, JobState
from windlass.core.stream_rules import StreamHead
from windlass.core.transitions import ChangeRecorder
from windlass.engine.effects import Change, Effects, GroupRow, Kind, Move, Part, QueueRow, Starts, Table
from windlass.engine.reads import STEP, EventSpan, LogSpan, Waits

T = TypeVar("T")
V = TypeVar("V")

#: What lifetime counters distinguish, and how they call outcomes: asking a member for it takes longer.
_NAMES = {outcome: outcome.value for outcome in AttemptOutcome}
_counted = attrgetter("queue", "task", "outcome")
_WAITING, _PARKED, _ACTIVE = JobState.WAITING, JobState.PARKED, JobState.ACTIVE
#: Stand for what an order does not have. They are never changed.
_NO_BASE: Iterator[Any] = iter(())
_NO_NAMES: set[str] = set()
_NO_OWN: dict[str, Any] = {}
_NO_HEAP: list[Any] = []


class NotLoadedError(LookupError):
    """A verb asks for something that it did not read."""


class Loaded(dict[Any, V]):
    """What was loaded, by key."""

    __slots__ = ()

    def __missing__(self, key: Any) -> V:
        raise NotLoadedError(f"{key!r} was not read before it is asked for")


class Ordered(Generic[T]):
    """Things in an order, each with a key and a name: as loaded, with the request's own changes on top.

    ``whole``: nothing follows what was loaded. If not, the order is known up to the last loaded key only.
    """

    __slots__ = ("_base", "_ended", "_gone", "_heap", "_last_key", "_near", "_next", "_own", "whole")

    def __init__(self, base: Iterable[tuple[Any, str, T]] = (), whole: bool = True) -> None:
        if base:
            self._base, self._ended = iter(base), False
        else:
            self._base, self._ended = _NO_BASE, True
        self.whole = whole
        #: What was looked at of ``base`` and not passed yet: the first, and what follows it.
        self._next: tuple[Any, str, T] | None = None
        self._near: deque[tuple[Any, str, T]] | None = None
        self._last_key: Any = None
        #: Names that are no longer where they were loaded.
        self._gone: set[str] = _NO_NAMES
        self._own: dict[str, tuple[Any, T]] = _NO_OWN
        self._heap: list[tuple[Any, str]] = _NO_HEAP

    def head(self) -> T | None:
        """The first, left in place. None: there is none, or it is not known which (``is_cut``)."""
        base = self._next
        if not self._ended if base is None else base[1] in self._gone:
            base = self._base_head()
        if not self._heap:
            return None if base is None else base[2]
        own = self._own_head()
        if base is None:
            if own is None or (self.is_cut and (self._last_key is None or own[0] > self._last_key)):
                return None
            return self._own[own[1]][1]
        return base[2] if own is None or base[0] < own[0] else self._own[own[1]][1]

    @property
    def is_cut(self) -> bool:
        """Whether all that was loaded is used up, and more may be stored."""
        return not self.whole and self._ended and self._next is None

    def ahead(self, count: int) -> Iterator[T]:
        """At least the next ``count`` as far as they are known, in no order, left in place."""
        if self._next is None:
            self._next = self._pull()
        near = self._near = self._near or deque()
        while len(near) < count - 1 and (entry := self._pull()) is not None:
            near.append(entry)
        known = () if self._next is None else (self._next,)
        for _, name, item in islice(chain(known, near), count):
            if name not in self._gone:
                yield item
        for _, item in self._own.values():
            yield item

    def put(self, key: Any, name: str, item: T) -> None:
        """Enter ``item``, or move it."""
        if self._own is _NO_OWN:
            self._own, self._heap = {}, []
        self.remove(name)
        self._own[name] = (key, item)
        heapq.heappush(self._heap, (key, name))

    def remove(self, name: str) -> None:
        """Take something out, if it is there."""
        if self._gone is _NO_NAMES:
            self._gone = {name}
        else:
            self._gone.add(name)
        if self._own:
            self._own.pop(name, None)

    def _pull(self) -> tuple[Any, str, T] | None:
        if self._ended:
            return None
        entry = next(self._base, None)
        if entry is None:
            self._ended = True
        else:
            self._last_key = entry[0]
        return entry

    def _base_head(self) -> tuple[Any, str, T] | None:
        entry, gone = self._next, self._gone
        while entry is None or entry[1] in gone:
            entry = self._near.popleft() if self._near else self._pull()
            if entry is None:
                break
        self._next = entry
        return entry

    def _own_head(self) -> tuple[Any, str] | None:
        heap = self._heap
        while heap:
            known = self._own.get(heap[0][1])
            if known is not None and known[0] == heap[0][0]:
                return heap[0]
            heapq.heappop(heap)
        return None


class StoredWaiting(Protocol):
    """The waiting jobs of a queue as they are stored: see ``engine.groups`` for turns."""

    def front(self) -> Iterable[tuple[tuple[int, int, int], str, JobRecord]]:
        """Jobs in their order, with (-priority, turn, place) and id."""

    def served(self, priority: int, gone: set[str]) -> int | None:
        """The first turn at a priority, without the jobs ``gone``."""

    def last(self, priority: int, group: str, gone: set[str]) -> int | None:
        """The last turn of a group ("": of jobs without one) at a priority, without the jobs ``gone``."""


class WaitingView(Ordered[JobRecord]):
    """The waiting jobs of one queue."""

    __slots__ = ("_stored", "_turns")

    def __init__(self, stored: StoredWaiting, whole: bool = True) -> None:
        super().__init__(stored.front(), whole)
        self._stored = stored
        #: Own turns of a priority (None) and of a group in it; made when the first job joins.
        self._turns: dict[tuple[int, str | None], list[tuple[int, str]]] | None = None

    def join(self, job: JobRecord) -> None:
        """Enter a job that waits."""
        self.put((-job.priority, job.turn, job.place), job.id, job)
        if self._turns is None:
            self._turns = {}
        heapq.heappush(self._turns.setdefault((job.priority, None), []), (job.turn, job.id))
        last = self._turns.setdefault((job.priority, job.options.group or ""), [])
        heapq.heappush(last, (-job.turn, job.id))

    def take_plain(self, count: int) -> list[JobRecord]:
        """The first jobs of the line, at most ``count``, as far as they are plain: they leave it.

        For queues that saw no groups. None is taken while the request has put in jobs of its own.
        """
        found: list[JobRecord] = []
        entry = None if self._heap or self._near else self._next or self._base_head()
        if entry is None:
            return found
        base, gone, options = self._base, self._gone, None
        while entry is not None and len(found) < count:
            job = entry[2]
            if entry[1] not in gone:
                if job.expires_ms is not None or (job.options is not options and not is_plain(job.options)):
                    break
                options = job.options
                found.append(job)
            self._last_key = entry[0]
            entry = next(base, None)
        self._next = entry
        if entry is None:
            self._ended = True
        else:
            self._last_key = entry[0]
        return found

    def served(self, priority: int) -> int | None:
        """The turn that is being served at a priority."""
        own = self._first_of(priority, None, 1)
        stored = self._stored.served(priority, self._gone)
        return stored if own is None else own if stored is None else min(own, stored)

    def last(self, priority: int, group: str) -> int | None:
        """The last turn of a group's jobs that wait at a priority."""
        own = self._first_of(priority, group, -1)
        stored = self._stored.last(priority, group, self._gone)
        return stored if own is None else own if stored is None else max(own, stored)

    def _first_of(self, priority: int, group: str | None, sign: int) -> int | None:
        heap = self._turns.get((priority, group)) if self._turns else None
        while heap:
            turn, name = heap[0]
            known = self._own.get(name)
            if known is not None and known[0][:2] == (-priority, sign * turn):
                return sign * turn
            heapq.heappop(heap)
        return None


class QueueView:
    """A queue: its row, its start times, and how many jobs it has, how many of them active or parked."""

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
        #: Whether the store has a row of it. The row belongs to this request.
        self.exists = row is not None
        self.row = row or QueueRow(known=False)
        self.starts = starts or []
        #: As stored; the other two with the changes of this request.
        self.jobs = jobs
        self.active = active
        self.parked = parked


#: Its role, its cost, whether it is ranked: see ``core.limit_rules.Usage.count``.
Counted = tuple[Role, int, bool]
#: Jobs of an ordered group that may hold up others.
HOLDING = (Role.PARKED, Role.KEPT, Role.DELAYED)


class GroupView:
    """A group of a queue: its own limits, what it uses, and its line of parked jobs."""

    __slots__ = ("counted", "name", "next_ms", "own", "parked", "places", "queue", "usage")

    def __init__(
        self,
        queue: str,
        name: str,
        row: GroupRow,
        usage: Usage,
        parked: Ordered[JobRecord],
        places: dict[Role, Ordered[int]],
    ) -> None:
        self.queue = queue
        self.name = name
        self.own: GroupLimits | None = row.own
        #: Belongs to this request; its counts are exact.
        self.usage = usage
        self.next_ms = row.next_ms
        self.parked = parked
        #: The places of those that an ordered group may have to wait for, by what they count as.
        self.places = places
        #: As what jobs that this request may change count now (None: not at all).
        self.counted: dict[str, Counted | None] = {}

    @property
    def row(self) -> GroupRow:
        usage = self.usage
        return GroupRow(
            self.own, usage.paused, usage.hold_until_ms, usage.level, usage.level_ms, self.next_ms
        )


class Past:
    """Entries whose time has passed."""

    __slots__ = ("cut", "groups", "kept_ids", "keys", "rollups", "stubs", "workers")

    def __init__(self) -> None:
        self.kept_ids: list[JobRef] = []
        self.keys: list[tuple[str, str]] = []
        #: Groups without limits of their own and without jobs.
        self.groups: list[tuple[str, str]] = []
        self.workers: list[tuple[str]] = []
        self.stubs: list[JobRef] = []
        self.rollups: list[tuple[Any, ...]] = []
        #: Whether the store looked no further than a bound of its own: more may be past its keep.
        self.cut = False


def is_plain(options: StoredOptions) -> bool:
    """Whether what becomes of a job with these options is no matter of groups or unique keys."""
    return options.group is None and options.unique is None


def _joined(old: Kind, new: Kind) -> Kind:
    """What became of a job in two changes of one request."""
    if old is Kind.MADE or old is new:
        return old
    return Kind.REPLACED if Kind.REPLACED in (old, new) else Kind.MOVED


class UnitOfWork(ChangeRecorder):
    """See the module. Few requests have all parts."""

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
            "moves",
        ),
        *("outbox", "plain", "queues", "stubs", "timed"),
    )

    rows = Part[Loaded[Any]](Loaded)
    groups = Part[Loaded[GroupView]](Loaded)
    found = Part[list[JobRecord]](list)
    overdue = Part[list[JobRecord]](list)
    edges = Part[Loaded[Edge | None]](Loaded)
    unmet = Part[Loaded[list[Edge]]](Loaded)
    waits = Part[Loaded[Waits]](Loaded)
    streams = Part[Loaded[StreamHead | None]](Loaded)
    graph = Part[dict[JobRef, list[JobRef]]](dict)
    unsent = Part[list[Edge]](list)
    past = Part[Past](Past)
    logs = Part[dict[str, LogSpan]](dict)
    event_logs = Part[Loaded[EventSpan]](Loaded)
    #: Jobs that were set aside, since they cannot be read, so that this request could be decided.
    aside = Part[list[JobRef]](list)

    def __init__(self, now_ms: int, fresh_place: Callable[[], int]) -> None:
        super().__init__(now_ms, fresh_place)
        self.effects = Effects(now_ms, self.pending_events, self.history)
        self.jobs: Loaded[JobRecord | None] = Loaded()
        self.queues: Loaded[QueueView] = Loaded()
        self.lines: Loaded[WaitingView] = Loaded()
        self.due: Loaded[Ordered[JobRecord]] = Loaded()
        self.timed: Loaded[Ordered[tuple[int, str]]] = Loaded()
        #: Until when ids without a record are kept, where they are.
        self.kept: dict[tuple[str, str], int] = {}
        #: What is left of jobs without a record that were loaded, where their time has not passed.
        self.stubs: dict[tuple[str, str], JobRecord] = {}
        #: Ends of jobs of this request that were not relayed yet.
        self.ended: list[ChildEnd] = []
        #: Ends that earlier requests left (None: not loaded).
        self.outbox: list[ChildEnd] | None = None
        self.mark: Mark | None = None
        #: Whether ends of jobs of this request were left to ``Relay``.
        self.left = False
        #: How many parked jobs this request may still move.
        self.moves = STEP
        #: Queue, state before and state of the job that was filed last.
        self.moved: tuple[str, JobState | None, JobState] | None = None
        #: The answer says when to ask again.
        self.claiming = False

    def known(self, ref: tuple[str, str]) -> JobRecord | None:
        """A loaded job, or the stub that it left."""
        return self.jobs[ref] or self.stubs.get(ref)

    # --- loading -----------------------------------------------------------------------------------

    def load_line(self, queue: str, stored: StoredWaiting, *, whole: bool = True) -> None:
        """The line of a queue, under what this request changed so far."""
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

    def load_due(self, queue: str, due: Ordered[JobRecord]) -> None:
        """The timed jobs of a queue. Verbs ask for them before they change anything."""
        self.due[queue] = due

    # --- writing -----------------------------------------------------------------------------------

    def put(self, job: JobRecord, before: JobState | None, kind: Kind = Kind.MOVED) -> None:
        """Write a job as it is now; ``before`` is the state that it had until now (None: it is new)."""
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
        """``put`` for jobs that this request did not change before; their line, if loaded, knows already."""
        self.effects.moves.append(move)
        if move.before is _ACTIVE:
            self.queues[move.queue].active -= len(move.jobs)
        elif move.state is _ACTIVE:
            self.queues[move.queue].active += len(move.jobs)

    def drop(self, job: JobRecord) -> None:
        """Remove a record with all that is its own."""
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
        """Write an entry of a table, not of queues and groups; None removes it."""
        self.rows[table, key] = value
        self.effects.rows[table, key] = value

    def put_queue(self, queue: QueueView) -> None:
        """Write a queue's row; the store knows the queue from now on."""
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
        """Write that a start was added, as the last of ``times``."""
        known = self.effects.starts.get((queue, group))
        new = 1 if known is None else None if known.new is None else known.new + 1
        self.effects.starts[queue, group] = Starts(new, times)

    def cut_starts(self, queue: str, group: str | None, times: list[int]) -> None:
        """Write that no other start times than these count."""
        self.effects.starts[queue, group] = Starts(None, times)

    def notify(self, topic: str) -> None:
        """Wake the listeners of ``topic``."""
        self.effects.topics.add(topic)

    def wake(self, queue: str) -> None:
        """Say that jobs of a queue may be claimable."""
        self.effects.topics.add(f"ready:{queue}")

    def close(self) -> None:
        """The verb is done: what follows from its logs."""
        effects = self.effects
        for (queue, task, outcome), alike in groupby(self.history, _counted):
            effects.count(queue, task, _NAMES[outcome], len(list(alike)))
        for note in self.pending_events:
            effects.topics.add(f"event:{note.queue}")
