"""The batches of data that verbs request from a store.

A verb yields ``Reads``. The store's port (``drive.Port``) loads the whole batch into the ``UnitOfWork``, with
as few statements as possible, and the verb continues. The docstring of a verb says how many batches it reads.
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

#: The maximum number of jobs that one request moves for each reason: due jobs, parked jobs, and so on.
STEP = 1_000


class Reads(msgspec.Struct, kw_only=True, gc=False):
    """One batch. The comment of each field names the field of ``UnitOfWork`` that the data is loaded into."""

    #: Records by queue and id: ``work.jobs``, None for a job that does not exist. Its queue and its stub
    #: (``work.stubs``) are loaded too.
    jobs: Iterable[tuple[str, str]] = ()
    #: Like ``jobs``, and for an id without a record the time until which the id stays known: ``work.kept``.
    ids: Iterable[tuple[str, str]] = ()
    #: Entries of tables, except queues and groups: ``work.rows``, None for an entry that does not exist.
    rows: Iterable[Entry] = ()
    #: ``work.queues``, also for a queue that the store does not know.
    queues: Iterable[str] = ()
    #: Groups with their usage, their parked jobs and the line of their queue: ``work.groups``. The unique key
    #: of every parked job is loaded too (``work.rows``), because a parked job can end when the line advances.
    groups: Iterable[tuple[str, str]] = ()
    #: The front of a queue's line, at least this many jobs: ``work.lines``.
    lines: dict[str, int] = {}
    #: Timed jobs of a queue, the earliest first, at least this many: ``work.due``.
    due: dict[str, int] = {}
    #: Groups of a queue that get room by time alone, the earliest first, at least this many: ``work.timed``.
    timed: dict[str, int] = {}


class MoreReads(Reads, kw_only=True, gc=False):
    """A batch with data that few verbs read."""

    #: The next ``STEP`` groups of a queue after this name, by name: ``work.groups``, their names in
    #: ``work.next_groups``.
    next_groups: tuple[str, str] | None = None
    #: Whether this group of a queue has ranked jobs (None: any group that has no limits of its own). The name
    #: of the first such group: ``work.ranked``.
    ranked: tuple[str, str | None] | None = None
    #: All queues that the store knows: ``work.queues``.
    every_queue: bool = False
    #: The jobs that a worker has leased: ``work.found``.
    leased_by: str | None = None
    #: Active jobs whose lease has expired, the earliest first, at most this many: ``work.found``.
    expired: int = 0
    #: Pending jobs that did not start in time (``transitions.is_expired``), the
    #: earliest first, at most this many: ``work.overdue``.
    overdue: int = 0
    #: Edges by dependent and child: ``work.edges``, None for an edge that does not exist.
    pairs: Iterable[tuple[JobRef, JobRef]] = ()
    #: The number of edges and of open edges of these dependents: ``work.waits``.
    waits: Iterable[JobRef] = ()
    #: All edges of these dependents that are not done, in the order of their creation: ``work.unmet``.
    unmet: Iterable[JobRef] = ()
    #: The children on open edges of these jobs, the children of those, and so on: ``work.graph``.
    reachable: Iterable[JobRef] = ()
    #: Open edges to children that ended: ``work.unsent``.
    unsent: UnsentEnds | None = None
    #: The oldest ends that are not relayed yet, at most this many: ``work.outbox``.
    outbox: int = 0
    #: The head of the live output of these jobs: ``work.streams``.
    streams: Iterable[JobRef] = ()
    #: All groups, unique keys and schedules of a queue: ``work.groups``, ``work.rows``.
    settings_of: str | None = None
    #: The numbers of the events that a queue keeps: ``work.event_logs``.
    events_of: str | None = None
    #: The mark with this id: ``work.mark``.
    mark: str | None = None
    #: Jobs that a purge removes: ``work.found``.
    purge: PurgeReads | None = None
    #: Finished jobs whose retention has passed (``core.retention``), at most this many: ``work.found``.
    past_keep: int = 0
    #: Entries whose retention has passed, at most this many of each table: ``work.past``, with their groups.
    past_time: int = 0
    #: The history logs of all queues, or of some if ``work.past.cut`` is set, with the first record that is
    #: younger than this time: ``work.logs``. Also all archivers and cursors: ``work.rows``.
    history: int | None = None
    #: Everything that ends by itself after this time: active jobs (``work.found``), leaders, workers and
    #: unique keys (``work.rows``), and all queues and groups.
    time_back: int | None = None


class UnsentEnds(NamedTuple):
    """Ends in the order in which they are relayed, and the maximum number of open edges to load."""

    ends: list[ChildEnd]
    limit: int


class PurgeReads(NamedTuple):
    """Jobs of a queue that have been in these states since ``before_ms`` (``state_since``), oldest first."""

    queue: str
    states: frozenset[JobState]
    before_ms: int
    limit: int


def state_since(job: JobRecord) -> int:
    """The time from which a purge counts a job's age: when it finished, or else when it was added."""
    return job.finished_ms if job.finished_ms is not None else job.enqueued_ms


class Waits(msgspec.Struct):
    """The number of a dependent's edges, and how many of them are open."""

    count: int = 0
    open: int = 0
    #: The first edge that this request created or settled and that makes the dependent fail.
    broken: Edge | None = None


class EventSpan(NamedTuple):
    """The numbers of the events that a queue keeps. If it keeps none, ``oldest`` is the next number."""

    oldest: int
    newest: int


class LogSpan(NamedTuple):
    """The history of a queue: its oldest and newest number, and the first that is young enough to stay."""

    oldest: int
    newest: int
    young: int


#: A generator that yields batches to read and returns the answer.
Verb = Generator[Reads, None, R]
Verbs = dict[type[Any], Callable[..., Verb[Any]]]
