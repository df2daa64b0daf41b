"""Ordered lists of waiting, due and parked jobs and of groups. A verb reads only the pages that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import chain
from typing import Any

import msgspec

from windlass.backends.sqlite import tables
from windlass.backends.sqlite.request import RequestState
from windlass.backends.sqlite.rows import (
    PLAIN_OPTIONS,
    UNSAID_OPTIONS,
    Row,
    decode_options,
    decode_queue_time,
)
from windlass.backends.sqlite.statements import StatementRunner
from windlass.backends.sqlite.tx import QueueState
from windlass.core import bad_records
from windlass.core.job import JobRecord
from windlass.core.limit_rules import Role
from windlass.core.paths import took
from windlass.core.queue_time import QueueTime
from windlass.core.transitions import copy
from windlass.engine.effects import Table
from windlass.engine.ordered import Ordered
from windlass.engine.unit_of_work import UnitOfWork

#: A waiting job: (-priority, turn, place), id, record.
Placed = tuple[tuple[int, int, int], str, JobRecord]

#: Rows in the first page, if the verb does not say how many it needs, and in later pages.
FIRST = 20
PAGE = 1_000
#: The index of ``due_ms`` in ``rows.JOB_COLUMNS``.
_DUE = 13


def pages(read: Callable[[int, int], list[Row]], first: int) -> Iterator[Row]:
    """Yield the rows of a statement that takes a limit and an offset, page by page."""
    return chain.from_iterable(_pages(read, first))


def _pages(read: Callable[[int, int], list[Row]], first: int) -> Iterator[list[Row]]:
    offset, limit = 0, first
    while True:
        rows = read(limit, offset)
        yield rows
        if len(rows) < limit:
            return
        offset, limit = offset + limit, min(8 * limit, PAGE)


class StoredWaitingJobs:
    """The waiting jobs of a queue. Implements ``engine.ordered.StoredWaiting``."""

    def __init__(self, step: RequestState, name: str, num: int, count: int, *, grouped: bool) -> None:
        self._step = step
        self._name = name
        self._num = num
        self._grouped = grouped
        self._turns: dict[tuple[int, str | None], Iterator[tuple[int, str]]] = {}
        self._heads: dict[tuple[int, str | None], tuple[int, str] | None] = {}
        self._first = self._read(count, 0) if count else None
        self._count = count or FIRST

    def front(self) -> Iterable[Placed]:
        """Return the waiting jobs in order. Later pages are read on demand."""
        if self._first is None:
            return self._after(0, self._count)
        return self._first if len(self._first) < self._count else chain(self._first, self._after(self._count))

    def _after(self, offset: int, limit: int = PAGE) -> Iterator[Placed]:
        """Yield the jobs after the first ``offset``, page by page."""
        while True:
            found = self._read(limit, offset)
            yield from found
            if len(found) < limit:
                return
            offset, limit = offset + limit, PAGE

    def served(self, priority: int, gone: set[str]) -> int | None:
        """Return the first turn at a priority, without the jobs in ``gone``."""
        return self._turn((priority, None), gone)

    def last(self, priority: int, group: str, gone: set[str]) -> int | None:
        """Return the last turn of a group at a priority, without the jobs in ``gone``."""
        return self._turn((priority, group), gone)

    def _turn(self, key: tuple[int, str | None], gone: set[str]) -> int | None:
        """Return the turn of the first job that is not in ``gone``.

        A job that is gone does not return, so each list is read only once.
        """
        if key not in self._turns:
            self._turns[key] = self._read_turns(*key)
            self._heads[key] = next(self._turns[key], None)
        head = self._heads[key]
        while head is not None and head[1] in gone:
            head = self._heads[key] = next(self._turns[key], None)
        return None if head is None else head[0]

    def _read_turns(self, priority: int, group: str | None) -> Iterator[Row]:
        step, num = self._step, self._num
        if group is None:
            yield from pages(lambda *page: step.all("turns_first", num, priority, *page), FIRST)
            return
        yield from pages(lambda *page: step.all("turns_last", num, group, priority, *page), FIRST)
        if not group:  # also jobs from before the queue had groups
            yield from pages(lambda *page: step.all("turns_plain", num, priority, *page), FIRST)

    def _read(self, limit: int, offset: int) -> list[Placed]:
        return self._whole(limit, offset) if self._grouped else self._short(limit, offset)

    def _whole(self, limit: int, offset: int) -> list[Placed]:
        step = self._step
        jobs = [step.record(row, self._name) for row in step.all("job_line", self._num, limit, offset)]
        step.check_lost()
        return [((-job.priority, job.turn, job.place), job.id, job) for job in jobs]

    def _short(self, limit: int, offset: int) -> list[Placed]:
        """Like ``_whole``, for a queue that has never had groups. Reads only a few columns of most jobs."""
        step = self._step
        records, models = step.records, dict[str | int | None, JobRecord]()
        placed: list[Placed] = []
        rest: list[int] = []
        rows = step.all("job_ready", self._num, limit, offset)
        for row in rows:
            job = records.get(row[0]) or self._job(row, models)
            if job is None:
                rest.append(row[0])
            else:
                placed.append(((-job.priority, 0, job.place), job.id, job))
        if not rest:
            return placed
        step.jobs(step.among("job_by_seqs", rest).fetchall())
        step.check_lost()
        jobs = [records[row[0]] for row in rows]
        return [((-job.priority, 0, job.place), job.id, job) for job in jobs]

    def _job(self, row: Row, models: dict[str | int | None, JobRecord]) -> JobRecord | None:
        """Return the job of a row of ``job_ready``, or None if all its columns must be read.

        ``models`` has one job for each set of options that was read before.
        """
        seq, job_id, task, payload, enqueued_ms, packed = row
        if type(payload) is not bytes or type(task) is not str or type(enqueued_ms) is not int:
            return None
        rest = None if packed in _SHORT else _read_rest(packed)
        if rest is not None and rest.again:
            return None
        key = packed if rest is None else rest.options
        model = models.get(key)
        if model is None:
            text = _SHORT[packed] if rest is None else rest.options
            if _unreadable(text):
                return None
            took("sqlite.lease_first")
            options = decode_options(text)
            model = models[key] = JobRecord(queue=self._name, id="", task="", payload=b"", options=options)
        # A copy takes half the time of a new one, and neighbours are alike.
        job = copy(model)
        job.seq, job.id, job.payload = seq, job_id, payload
        if task != job.task:
            job.task = task
        if rest is not None:
            job.enqueued_ms = enqueued_ms
            rest.fill(job)
        else:
            job.place, job.request_id = seq, job_id
            if enqueued_ms != job.enqueued_ms:
                job.enqueued_ms = job.ready_ms = enqueued_ms
            models[packed] = job
        self._step.records[seq] = job
        return job


class _Rest(msgspec.Struct, array_like=True):
    """The last column of ``job_ready``: values that differ from those of most jobs."""

    options: str
    place: int
    ready_ms: int
    priority: int
    codec: str
    request_id: str | None
    expires_ms: int | None
    again: int
    #: JSON text until ``_read_rest`` decodes it.
    queue_time: str | QueueTime | None = None

    def fill(self, job: JobRecord) -> None:
        job.place, job.ready_ms, job.priority = self.place, self.ready_ms, self.priority
        job.codec, job.expires_ms = self.codec, self.expires_ms
        job.request_id = job.id if self.request_id is None else self.request_id
        job.queue_time = self.queue_time  # type: ignore[assignment]  # ``_read_rest`` decoded it


#: Values of that column for jobs that differ in nothing else, with the options that each stands for.
_SHORT = {None: PLAIN_OPTIONS, 1: UNSAID_OPTIONS}
_unpack_rest = msgspec.json.Decoder(_Rest).decode
#: Used for a row that cannot be read: ``again`` is set, so all its columns are read.
_UNREAD = _Rest("", 0, 0, 0, "", None, None, 1)


def _read_rest(packed: str) -> _Rest:
    try:
        rest = _unpack_rest(packed)
        if isinstance(rest.queue_time, str):
            rest.queue_time = decode_queue_time(rest.queue_time)
        return rest
    except bad_records.UNREADABLE:
        return _UNREAD


def _unreadable(options_text: str) -> bool:
    try:
        decode_options(options_text)
    except bad_records.UNREADABLE:
        return True
    return False


# --- by time --------------------------------------------------------------------------------------


def due(step: RequestState, name: str, queue: QueueState, count: int, now_ms: int) -> Ordered[JobRecord]:
    """Return the scheduled and retrying jobs of a queue by due time. If none is due yet, only the first."""
    num = queue.num
    queue.untimed = queue.untimed or not step.all("job_any_due", num)
    if queue.untimed:
        return Ordered()
    rows = step.all("job_due", num, 1)
    asked = 1
    if rows[0][_DUE] <= now_ms:
        asked = count + 1
        rows = step.all("job_due", num, asked)
    jobs = [step.record(row, name) for row in rows]
    entries = [((job.due_ms, job.seq), job.id, job) for job in jobs]
    return Ordered(entries, whole=len(rows) < asked)


def timed(step: RequestState, num: int, count: int, now_ms: int) -> Ordered[tuple[int, str]]:
    """Return the groups of a queue that wait for a time, by that time. If none is due yet, only the first."""
    rows = step.all("grp_next", num, 1)
    asked = 1
    if rows and rows[0][0] <= now_ms:
        asked = count + 1
        rows = step.all("grp_next", num, asked)
    return Ordered([(entry, entry[1], entry) for entry in rows], whole=len(rows) < asked)


# --- of groups ------------------------------------------------------------------------------------


def parked(step: RequestState, work: UnitOfWork, queue: str, num: int, group: str) -> Ordered[JobRecord]:
    """Return the parked jobs of a group. Reading one also loads the entry of its unique key."""

    def read() -> Iterator[tuple[tuple[int, int], str, JobRecord]]:
        for rows in _pages(lambda *page: step.all("group_parked", num, group, *page), 2):
            jobs = [step.record(row, queue) for row in rows]
            step.check_lost()
            keys = [job.options.unique.key for job in jobs if job.options.unique is not None]
            tables.load(step, [(Table.KEY, (queue, key)) for key in keys], work)
            for row, job in zip(rows, jobs, strict=True):
                yield (-row[5], row[6]), job.id, job

    return Ordered(read())


def places(runner: StatementRunner, num: int, group: str) -> dict[Role, Ordered[int]]:
    """Return, by role, the places of the jobs that an ordered group may have to wait for."""
    return {role: Ordered(_places(runner, num, group, role)) for role in _PLACES}


#: The statements of each role, with their parameters after the group.
_PLACES: dict[Role, list[tuple[Any, ...]]] = {
    Role.PARKED: [("group_places", "parked")],
    Role.KEPT: [("group_places", "retrying"), ("group_again",)],
    Role.DELAYED: [("group_delayed",)],
}


def _places(
    runner: StatementRunner, num: int, group: str, role: Role
) -> Iterator[tuple[tuple[int], str, int]]:
    def read(name: str, *params: Any) -> Iterator[Row]:
        return pages(lambda *page: runner.all(name, num, group, *params, *page), 2)

    for place, job_id in merge(*(read(*found) for found in _PLACES[role])):
        yield (place,), job_id, place
