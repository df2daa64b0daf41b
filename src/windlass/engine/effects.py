"""What one request changed. Besides the answer, a store gets nothing else from a verb.

Effects contain new values and log entries, so that writing them needs no decision. The
``Kind`` of a changed job says to a store which narrower statement is enough; all kinds may be written alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from windlass.core.edges import ChildEnd, Edge
from windlass.core.job import AttemptRecord, JobRecord, JobRef, LogLine
from windlass.core.limit_rules import GroupLimits, QueueLimits
from windlass.core.rollups import Mark
from windlass.core.states import JobState
from windlass.core.stream_rules import Chunk, StreamHead
from windlass.core.transitions import PendingEvent

P = TypeVar("P")


class Table(IntEnum):
    """Entries that are there or not, each with a key. The numbers are stored: they never change."""

    QUEUE = 1  # name -> QueueRow
    GROUP = 2  # queue, name -> GroupRow
    KEY = 3  # queue, unique key -> KeyEntry
    KEPT_ID = 4  # queue, id -> until when
    WORKER = 5  # id -> WorkerInfo
    ARCHIVER = 6  # name -> ArchiverInfo
    LEADER = 7  # role -> (holder, until when)
    SCHEDULE = 8  # queue, name -> ScheduleRecord
    COUNTER = 9  # queue, task, outcome -> how many (written as ``Effects.counts``)
    CURSOR = 10  # queue -> Cursor
    ROLLUP = 11  # queue, step, start, task -> MetricsRow
    STUB = 12  # queue, id -> JobRecord, see ``core.stubs``; the store keeps the newest ``STUBS_KEPT``


#: A table and a key in it.
Entry = tuple[Table, tuple[Any, ...]]
#: The owner of start times: a queue and a group, or the whole queue (None).
Starter = tuple[str, str | None]


class QueueRow(msgspec.Struct, array_like=True):
    """What is known of a queue besides its jobs and start times."""

    paused: bool = False
    #: False after ``obliterate``, until a job is added again.
    known: bool = True
    limits: QueueLimits = QueueLimits()
    hold_until_ms: int = 0
    #: The limits of every group that has none of its own.
    every_group: GroupLimits = GroupLimits()
    #: Whether it has ever had a group. If so, its jobs have turns.
    grouped: bool = False


#: ``copy.copy`` without the search for a way to copy.
copy_row: Callable[[QueueRow], QueueRow] = QueueRow.__copy__  # type: ignore[attr-defined]


class GroupRow(msgspec.Struct, array_like=True):
    """What is known of a group besides its jobs and start times."""

    #: Its own limits; None: those of every group.
    own: GroupLimits | None = None
    paused: bool = False
    hold_until_ms: int = 0
    #: What is in its bucket: see ``core.limit_rules.Usage``.
    level: int | None = None
    level_ms: int = 0
    #: When time alone may let in the head of its line.
    next_ms: int | None = None


class Cursor(NamedTuple):
    """How far a queue's history is rolled up, and when that was recorded."""

    at: int
    seen_ms: int


class Kind(IntEnum):
    """What became of a job in one request."""

    #: A new record.
    MADE = 1
    #: Data, task or options of a record were replaced, and perhaps more.
    REPLACED = 2
    LEASED = 3
    #: Nothing but the deadline of its lease.
    EXTENDED = 4
    COMPLETED = 5
    #: Anything else.
    MOVED = 6

    @property
    def is_whole(self) -> bool:
        """Whether more than the moving part of the record is to be written."""
        return self <= Kind.REPLACED


class Change(msgspec.Struct, frozen=True, gc=False):
    """A job as it is now, and the state that is stored (None: it is not stored yet)."""

    job: JobRecord
    before: JobState | None
    kind: Kind


class Move(msgspec.Struct, frozen=True, gc=False):
    """Jobs of one queue that made the same move at once. Each is in no other move, and in no ``Change``."""

    jobs: list[JobRecord]
    queue: str
    before: JobState | None
    state: JobState
    kind: Kind


class Starts(NamedTuple):
    """Start times: how many were added (None: they were cut down), and all that count, oldest first."""

    new: int | None
    times: list[int]


class LazyPart(Generic[P]):
    """An attribute that few requests need, created on first access. Until then its owner is ``plain``."""

    def __init__(self, make: Callable[[], P]) -> None:
        self._make = make
        self._name = ""

    def __set_name__(self, owner: type[object], name: str) -> None:
        self._name = name

    def __get__(self, owner: object, kind: type[object]) -> P:
        made = self._make()
        setattr(owner, self._name, made)  # and is found before this is asked again
        owner.plain = False  # type: ignore[attr-defined]
        return made


class Effects:
    """See the module. They are written in this order: what is gone, jobs, rows, the rest."""

    __slots__ = (
        *(
            "__dict__",
            "counts",
            "gone",
            "history",
            "jobs",
            "moves",
            "now_ms",
            "pending_events",
            "plain",
            "rows",
            "relayed",
        ),
        "topics",
    )

    starts = LazyPart[dict[Starter, Starts]](dict)
    logs = LazyPart[list[tuple[JobRecord, list[LogLine]]]](list)
    chunks = LazyPart[list[tuple[JobRecord, StreamHead, list[Chunk]]]](list)
    #: Edges as they are now; new ones stand behind those that are there.
    edges = LazyPart[dict[tuple[JobRef, JobRef], Edge]](dict)
    #: Ends that are left to later requests; ``relayed`` says how many of the oldest such are dealt with.
    ends = LazyPart[list[ChildEnd]](list)
    #: Queues whose events up to this one are forgotten.
    forgotten = LazyPart[dict[str, int]](dict)
    #: The oldest record of a queue's history that stays.
    trims = LazyPart[dict[str, int]](dict)
    marks = LazyPart[list[Mark]](list)

    def __init__(self, now_ms: int, notes: list[PendingEvent], history: list[AttemptRecord]) -> None:
        self.plain = True
        self.now_ms = now_ms
        #: Records that go, with their edges, log lines and output.
        self.gone: list[JobRecord] = []
        self.jobs: dict[tuple[str, str], Change] = {}  # by queue and id
        #: Plain jobs that were saved at once: see ``saving.save_alike``.
        self.moves: list[Move] = []
        #: Entries of tables as they are now; None: they go.
        self.rows: dict[Entry, Any] = {}
        #: Events, which the store numbers, one for each job of a note.
        self.pending_events = notes
        self.history = history
        #: By how much lifetime counters grow; every record of the history is counted here too.
        self.counts: dict[tuple[str, str, str], int] = {}
        self.relayed = 0
        #: Topics whose listeners get a hint.
        self.topics: set[str] = set()

    def count(self, queue: str, task: str, outcome: str, by: int = 1) -> None:
        """Raise a lifetime counter."""
        key = (queue, task, outcome)
        self.counts[key] = self.counts.get(key, 0) + by

    def changed(self) -> Iterator[tuple[JobRecord, Kind]]:
        """Every job that is not as it was, and what became of it."""
        for move in self.moves:
            for job in move.jobs:
                yield job, move.kind
        for change in self.jobs.values():
            yield change.job, change.kind

    def __bool__(self) -> bool:
        """Whether anything is to be written. Topics alone are not."""
        if (
            self.jobs
            or self.moves
            or self.gone
            or self.rows
            or self.pending_events
            or self.history
            or self.counts
            or self.relayed
        ):
            return True
        return not self.plain and any(vars(self).values())
