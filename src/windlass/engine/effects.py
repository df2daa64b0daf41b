"""The changes of one request. A store gets these and the answer from a verb, and nothing else.

Effects contain new values and log entries, so that writing them needs no decision. The ``Kind`` of a changed
job lets a store use a narrower statement, but a store may write all kinds in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from windlass.core.edges import ChildEnd, Edge
from windlass.core.job import AlikeAttempts, AttemptRecord, JobRecord, JobRef, LogLine
from windlass.core.limit_rules import GroupLimits, QueueLimits
from windlass.core.rollups import Mark
from windlass.core.states import JobState
from windlass.core.stream_rules import Chunk, StreamHead
from windlass.core.transitions import PendingEvent

P = TypeVar("P")


class Table(IntEnum):
    """Key-value tables of a store. The numbers are stored and must never change."""

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
    """The settings of a queue: everything except its jobs and start times."""

    paused: bool = False
    #: False after ``obliterate``, until a job is added again.
    known: bool = True
    limits: QueueLimits = QueueLimits()
    hold_until_ms: int = 0
    #: The limits of every group that has none of its own.
    every_group: GroupLimits = GroupLimits()
    #: Whether the queue has ever had a group. If so, its jobs have turns.
    grouped: bool = False
    #: The last group that ``every_group`` was applied to ("": none yet); None: it applies to all.
    refit: str | None = None


#: A faster ``copy.copy``: it calls ``__copy__`` directly.
copy_row: Callable[[QueueRow], QueueRow] = QueueRow.__copy__  # type: ignore[attr-defined]


class GroupRow(msgspec.Struct, array_like=True):
    """The settings of a group: everything except its jobs and start times."""

    #: Its own limits. None: the queue's limits for every group apply.
    own: GroupLimits | None = None
    paused: bool = False
    hold_until_ms: int = 0
    #: The level of its bucket, and when it was computed: see ``core.limit_rules.Usage``.
    level: int | None = None
    level_ms: int = 0
    #: The time from which the first parked job may have room, without any other change.
    next_ms: int | None = None


class Cursor(NamedTuple):
    """How far a queue's history is rolled up, and when that was recorded."""

    at: int
    seen_ms: int


class Kind(IntEnum):
    """How one request changed a job."""

    #: A new record.
    MADE = 1
    #: Data, task or options of a record were replaced, and perhaps other fields too.
    REPLACED = 2
    LEASED = 3
    #: Only the deadline of the lease changed.
    EXTENDED = 4
    COMPLETED = 5
    #: Anything else.
    MOVED = 6

    @property
    def is_whole(self) -> bool:
        """Whether the whole record must be written, not only the fields that change during a job's life."""
        return self <= Kind.REPLACED


class Change(msgspec.Struct, frozen=True, gc=False):
    """A changed job, and its state in the store (None: it is not stored yet)."""

    job: JobRecord
    before: JobState | None
    kind: Kind


class Move(msgspec.Struct, frozen=True, gc=False):
    """Jobs of one queue that change state in the same way. Each is in no other move and in no ``Change``."""

    jobs: list[JobRecord]
    queue: str
    before: JobState | None
    state: JobState
    kind: Kind


class Starts(NamedTuple):
    """Start times: how many were added (None: replace the stored ones), and all that count, oldest first."""

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
        setattr(owner, self._name, made)  # later accesses find it without this descriptor
        owner.plain = False  # type: ignore[attr-defined]
        return made


class Effects:
    """See the module docstring. A store writes them in this order: removed records, jobs, rows, the rest."""

    __slots__ = (
        *("__dict__", "attempts", "counts", "gone", "jobs", "moves", "now_ms", "pending_events", "plain"),
        *("relayed", "rows", "topics"),
    )

    starts = LazyPart[dict[Starter, Starts]](dict)
    logs = LazyPart[list[tuple[JobRecord, list[LogLine]]]](list)
    chunks = LazyPart[list[tuple[JobRecord, StreamHead, list[Chunk]]]](list)
    #: Changed and new edges. New ones come after the stored ones of the same job.
    edges = LazyPart[dict[tuple[JobRef, JobRef], Edge]](dict)
    #: Ends to append to the outbox. ``relayed`` is how many of its oldest entries to remove.
    ends = LazyPart[list[ChildEnd]](list)
    #: By queue: events up to this number are removed.
    forgotten = LazyPart[dict[str, int]](dict)
    #: By queue: the oldest history record that stays.
    trims = LazyPart[dict[str, int]](dict)
    marks = LazyPart[list[Mark]](list)

    def __init__(self, now_ms: int, notes: list[PendingEvent], attempts: list[AlikeAttempts]) -> None:
        self.plain = True
        self.now_ms = now_ms
        #: Records to remove, with their edges, log lines and output.
        self.gone: list[JobRecord] = []
        self.jobs: dict[tuple[str, str], Change] = {}  # by queue and id
        #: Plain jobs that were saved together: see ``saving.save_alike``.
        self.moves: list[Move] = []
        #: New values of table entries. None: remove the entry.
        self.rows: dict[Entry, Any] = {}
        #: Events, which the store numbers: one for each job id of a ``PendingEvent``.
        self.pending_events = notes
        #: History records, which the store numbers in the same way.
        self.attempts = attempts
        #: Increments of lifetime counters. Every history record is counted here too.
        self.counts: dict[tuple[str, str, str], int] = {}
        self.relayed = 0
        #: Topics whose listeners get a hint.
        self.topics: set[str] = set()

    def count(self, queue: str, task: str, outcome: str, by: int = 1) -> None:
        """Raise a lifetime counter."""
        key = (queue, task, outcome)
        self.counts[key] = self.counts.get(key, 0) + by

    @cached_property
    def history(self) -> list[AttemptRecord]:
        """All history records, in order. Read it when the verb has ended."""
        return [record for alike in self.attempts for record in alike.records()]

    def changed(self) -> Iterator[tuple[JobRecord, Kind]]:
        """Every changed job, with the kind of its change."""
        for move in self.moves:
            for job in move.jobs:
                yield job, move.kind
        for change in self.jobs.values():
            yield change.job, change.kind

    def __bool__(self) -> bool:
        """Whether there is anything to write. Topics are not written."""
        if (
            self.jobs
            or self.moves
            or self.gone
            or self.rows
            or self.pending_events
            or self.attempts
            or self.counts
            or self.relayed
        ):
            return True
        return not self.plain and any(vars(self).values())
