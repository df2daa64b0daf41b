"""The batches of data that verbs request from a store.

A verb yields ``Reads``; the store's port (``drive.Port``) loads all of it into the ``UnitOfWork``, in as few
statements as it likes, and the verb continues. The docstring of a verb says how many times it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec

from windlass.core.edges import ChildEnd, Edge
from windlass.core.job import JobRecord, JobRef
from windlass.core.states import JobState
from windlass.engine.effects import Entry

R = TypeVar("R")

#: The most jobs that one request may move, for each reason.
STEP = 1_000


class Reads(msgspec.Struct, kw_only=True, gc=False):
    """One batch. Each field is loaded into the field of ``UnitOfWork`` that is named with it."""

    #: Records by queue and id: ``work.jobs``, None where there is none. With every record comes its queue.
    jobs: Iterable[tuple[str, str]] = ()
    #: The same, and until when the id of a record that is not there is kept: ``work.kept``.
    ids: Iterable[tuple[str, str]] = ()
    #: Entries of tables (not of queues and groups): ``work.rows``, None where there is none.
    rows: Iterable[Entry] = ()
    #: ``work.queues``; also of a queue that the store does not know.
    queues: Iterable[str] = ()
    #: Groups with what they use, their parked jobs and the line of their queue: ``work.groups``. With every
    #: parked job comes the entry of its unique key, ``work.rows``: the line may end it when it moves on.
    groups: Iterable[tuple[str, str]] = ()
    #: The front of a queue's line, at least this many jobs of it: ``work.lines``.
    lines: dict[str, int] = {}
    #: Timed jobs of a queue, the earliest first, at least this many: ``work.due``.
    due: dict[str, int] = {}
    #: Groups of a queue that time lets in, the earliest first, at least this many: ``work.timed``.
    timed: dict[str, int] = {}


class MoreReads(Reads, kw_only=True, gc=False):
    """A batch with what few verbs read."""

    #: ``groups`` for all of a queue that have no limits of their own.
    groups_of: str | None = None
    #: ``groups`` for one, with how many of its jobs are ranked; as with all ``groups_of`` a queue.
    ranked: tuple[str, str] | None = None
    #: All queues that the store knows: ``work.queues``.
    every_queue: bool = False
    #: The leases of a worker: ``work.found``.
    leased_by: str | None = None
    #: Leases that ran out, the earliest first, at most this many: ``work.found``.
    expired: int = 0
    #: Pending jobs past their time (``transitions.is_expired``), the earliest first, at most this many:
    #: ``work.overdue``.
    overdue: int = 0
    #: Edges by dependent and child: ``work.edges``, None where there is none.
    pairs: Iterable[tuple[JobRef, JobRef]] = ()
    #: What holds a dependent, in short: ``work.waits``.
    waits: Iterable[JobRef] = ()
    #: All edges of a dependent that are not done, in the order of their making: ``work.unmet``.
    unmet: Iterable[JobRef] = ()
    #: Children on open edges of these jobs, of those children, and so on: ``work.graph``.
    reachable: Iterable[JobRef] = ()
    #: Open edges to children that ended: ``work.unsent``.
    unsent: UnsentEnds | None = None
    #: The oldest ends that were not relayed yet, at most this many: ``work.outbox``.
    outbox: int = 0
    #: Where the output of a job stands: ``work.streams``.
    streams: Iterable[JobRef] = ()
    #: All groups, unique keys and schedules of a queue: ``work.groups``, ``work.rows``.
    settings_of: str | None = None
    #: The log of a queue's events: ``work.event_logs``.
    events_of: str | None = None
    #: The mark under an id: ``work.mark``.
    mark: str | None = None
    #: Jobs to be removed by hand: ``work.found``.
    purge: PurgeReads | None = None
    #: Finished jobs that are past their keep (``core.retention``), at most this many: ``work.found``.
    past_keep: int = 0
    #: Entries whose time has passed, at most this many of each table: ``work.past``, with their groups.
    past_time: int = 0
    #: The logs of all queues, and which of their records are younger than this instant: ``work.logs``;
    #: with all archivers and cursors: ``work.rows``.
    history: int | None = None
    #: What ends by itself after this instant: active jobs (``work.found``), leaders, workers and keys
    #: (``work.rows``), all queues and groups.
    time_back: int | None = None


class UnsentEnds(NamedTuple):
    """Ends in the order in which they are relayed, and how many open edges to load in all."""

    ends: list[ChildEnd]
    limit: int


class PurgeReads(NamedTuple):
    """Which jobs of a queue: in these states since that instant at least (``state_since``), oldest first."""

    queue: str
    states: frozenset[JobState]
    before_ms: int
    limit: int


def state_since(job: JobRecord) -> int:
    """Since when a job counts as what it is, for a purge: its end, or its adding."""
    return job.finished_ms if job.finished_ms is not None else job.enqueued_ms


class Waits:
    """What a dependent waits for: how many edges it has, and how many of them are open."""

    __slots__ = ("broken", "count", "open")

    def __init__(self, count: int = 0, open: int = 0) -> None:
        self.count = count
        self.open = open
        #: The first edge that this request made or settled and that makes the dependent fail.
        self.broken: Edge | None = None


class EventSpan(NamedTuple):
    """The events of a queue that are kept, by number. If there are none, ``oldest`` is what comes next."""

    oldest: int
    newest: int


class LogSpan(NamedTuple):
    """The history of a queue: its oldest and newest number, and the first that is younger than asked."""

    oldest: int
    newest: int
    young: int


#: What to read, as often as the verb says; then the answer.
Verb = Generator[Reads, None, R]
Verbs = dict[type[Any], Callable[..., Verb[Any]]]
