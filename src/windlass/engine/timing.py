"""What time alone changes: due jobs are promoted, parked jobs of groups get room, and a clock that was ahead
is corrected.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from copy import copy

from msgspec.structs import replace

from windlass.backend import requests as rq
from windlass.core import limit_rules as lm
from windlass.core import transitions
from windlass.core.job import JobRecord
from windlass.engine.effects import Kind, Table
from windlass.engine.groups import refit_some
from windlass.engine.reads import STEP, MoreReads, Reads, Verb
from windlass.engine.saving import advance, prepare, save, wait_until
from windlass.engine.unit_of_work import QueueView, UnitOfWork


def promote(work: UnitOfWork, request: rq.Promote) -> Verb[rq.Promoted]:
    """Promote due jobs of all queues. The answer says when the next job is due.

    Reads: 2, with groups or unique keys 3, 1 more while new limits of every group are applied.
    """
    yield MoreReads(every_queue=True)
    names = sorted(name for name, queue in work.queues.items() if queue.exists)
    limits = dict.fromkeys(names, request.limit)
    yield Reads(due=limits, timed=limits, lines=dict.fromkeys(names, 1))
    yield from refit_some(work, names)
    due = _due_now(work, names, request.limit)
    count = yield from bring_in(work, due, timed_now(work, names), names, request.limit)
    return rq.Promoted(count, next_due_in(work, [work.queues[name] for name in names]))


def bring_in(
    work: UnitOfWork,
    due: list[JobRecord],
    groups: list[tuple[str, str]],
    names: list[str],
    limit: int,
    *,
    ahead: Iterable[JobRecord] = (),
) -> Verb[int]:
    """Promote the ``due`` jobs in this order, then let in parked jobs of ``groups`` that have room now.

    Moves at most ``limit`` jobs and returns how many. ``ahead``: jobs that the caller will save afterwards,
    and that are prepared in the same read. Reads: 1 with groups or keys.
    """
    yield from prepare(work, [*due, *ahead], groups=groups)
    for job in due:
        before = job.state
        transitions.promote(job, work)
        save(work, job, before)
    count = len(due)
    for name in names:
        count += _advance_timed(work, name, limit - count)
    return count


def due_by_queue(work: UnitOfWork, names: list[str], limit: int) -> list[JobRecord]:
    """Due jobs, queue by queue, at most ``limit``. They leave ``work.due``."""
    found: list[JobRecord] = []
    for name in names:
        while len(found) < limit and (job := _due_head(work, name)) is not None:
            found.append(job)
            work.due[name].remove(job.id)
    return found


def _due_now(work: UnitOfWork, names: list[str], limit: int) -> list[JobRecord]:
    """Due jobs of all queues, the earliest first, at most ``limit``. They leave ``work.due``."""
    heads = [(job.due_ms or 0, job.seq, name) for name in names if (job := _due_head(work, name))]
    heapq.heapify(heads)
    found: list[JobRecord] = []
    while heads and len(found) < limit:
        _, _, name = heapq.heappop(heads)
        job = _due_head(work, name)
        assert job is not None, "it was the head of its queue"
        found.append(job)
        work.due[name].remove(job.id)
        job = _due_head(work, name)
        if job is not None:
            heapq.heappush(heads, (job.due_ms or 0, job.seq, name))
    return found


def _due_head(work: UnitOfWork, queue: str) -> JobRecord | None:
    job = work.due[queue].head()
    return None if job is None or job.due_ms is None or job.due_ms > work.now_ms else job


def timed_now(work: UnitOfWork, names: list[str]) -> list[tuple[str, str]]:
    """The groups of these queues whose next parked job may be let in by now."""
    found: list[tuple[str, str]] = []
    for queue in names:
        timed = work.timed[queue]
        if timed.head() is not None:
            found += [(queue, name) for at_ms, name in timed.ahead(STEP) if at_ms <= work.now_ms]
    return found


def _advance_timed(work: UnitOfWork, queue: str, budget: int) -> int:
    """Let in parked jobs of all groups of a queue that have room by now. Returns how many jobs it moved."""
    moved = 0
    timed = work.timed[queue]
    while moved < min(budget, work.moves + moved):
        first = timed.head()
        if first is None or first[0] > work.now_ms or (queue, first[1]) not in work.groups:
            break
        moved += advance(work, work.groups[queue, first[1]], budget - moved)
    return moved


def next_due_in(work: UnitOfWork, queues: Iterable[QueueView]) -> int | None:
    """Milliseconds until time alone makes a job of these queues ready or gives it room; None: never."""
    first: list[int] = []
    for queue in queues:
        due, timed = work.due[queue.name], work.timed[queue.name]
        job, group = due.head(), timed.head()
        if job is not None and job.due_ms is not None:
            first.append(job.due_ms)
        if group is not None:
            first.append(group[0])
        if not (due.whole and timed.whole) and (due.is_cut or timed.is_cut):
            first.append(work.now_ms)
        row = queue.row
        if row.refit is not None:
            first.append(work.now_ms)
        if row.limits.rate is None and row.hold_until_ms <= work.now_ms:
            continue  # time does not limit its starts
        room, at_ms = lm.queue_room(row.limits, queue.starts, queue.active, row.hold_until_ms, work.now_ms)
        if room == 0 and at_ms is not None and work.lines[queue.name].head() is not None:
            first.append(at_ms)
    return max(min(first) - work.now_ms, 0) if first else None


# --- a clock that was ahead -----------------------------------------------------------------------


def set_back(work: UnitOfWork, from_ms: int) -> Verb[None]:
    """Correct a store whose clock was ahead, from ``from_ms`` back to ``work.now_ms``.

    Leases, leaders, unique keys and holds keep the time that they had left. Due times of jobs do not change.
    Reads: 1.
    """
    yield MoreReads(time_back=from_ms)
    by_ms = from_ms - work.now_ms
    for job in work.found:
        if job.lease_until_ms is not None and job.lease_until_ms > from_ms:
            job.lease_until_ms -= by_ms
            work.put(job, job.state, Kind.EXTENDED)
    for (table, key), value in list(work.rows.items()):
        if table is Table.LEADER and value[1] > from_ms:
            work.put_row(table, key, (value[0], value[1] - by_ms))
        elif table is Table.WORKER and value.beat_ms > work.now_ms:
            worker = copy(value)
            worker.beat_ms, worker.started_ms = work.now_ms, min(worker.started_ms, work.now_ms)
            work.put_row(table, key, worker)
        elif table is Table.KEY and value.until_ms is not None and value.until_ms > from_ms:
            work.put_row(table, key, replace(value, until_ms=value.until_ms - by_ms))
    for queue in work.queues.values():
        _set_queue_back(work, queue, from_ms)
    for group in work.groups.values():
        if lm.set_usage_back(group.usage, from_ms, work.now_ms):
            work.cut_starts(group.queue, group.name, group.usage.starts)
        work.claiming = True  # the caller is a worker itself, so no other worker has to be notified
        wait_until(work, group, None if group.next_ms is None else min(group.next_ms, work.now_ms))
        work.put_group(group)


def _set_queue_back(work: UnitOfWork, queue: QueueView, from_ms: int) -> None:
    if queue.row.hold_until_ms > from_ms:
        queue.row.hold_until_ms -= from_ms - work.now_ms
        work.put_queue(queue)
    if lm.drop_future(queue.starts, work.now_ms):
        work.cut_starts(queue.name, None, queue.starts)
    work.effects.count(queue.name, "", "clock_set_back")
