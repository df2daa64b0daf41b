"""Loads what the engine asks for from the tables. ``engine.reads.Reads`` describes each part."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.backends.sqlite import ordered, stubs, tables
from windlass.backends.sqlite.limits import GROUPED, group_of
from windlass.backends.sqlite.request import RequestState
from windlass.backends.sqlite.rows import Row, by_queue
from windlass.core.limit_rules import GroupLimits, Usage
from windlass.core.states import JobState
from windlass.engine.effects import copy_row
from windlass.engine.ordered import Ordered
from windlass.engine.reads import Reads
from windlass.engine.unit_of_work import GroupView, QueueView, UnitOfWork

#: Jobs of a group are counted up to this many above its limit. One request removes fewer jobs than this.
MARGIN = 10_000
#: Jobs of a group are counted up to this many if no limit needs the count.
SOME = 1_000


def load(step: RequestState, reads: Reads, work: UnitOfWork) -> None:
    """Load the parts that ``reads`` names into ``work``."""
    if reads.ids:
        _load_ids(step, reads.ids, work)
    if reads.jobs:
        load_jobs(step, reads.jobs, work)
    for name in reads.queues:
        if name not in work.queues:
            load_queue(step, name, work)
    if reads.rows:
        tables.load(step, reads.rows, work)
    if reads.groups:
        load_groups(step, reads.groups, work)
    for name, count in reads.lines.items():
        _load_line(step, name, work, count)
    for name, count in reads.due.items():
        queue = step.queues.find(name)
        work.due[name] = Ordered() if queue is None else ordered.due(step, name, queue, count, work.now_ms)
    for name, count in reads.timed.items():
        queue = step.queues.find(name)
        if queue is None or not queue.special:
            work.timed[name] = Ordered()
        else:
            work.timed[name] = ordered.timed(step, queue.num, count, work.now_ms)


# --- queues and jobs ------------------------------------------------------------------------------


def load_queue(step: RequestState, name: str, work: UnitOfWork, *, counted: bool = False) -> None:
    """Load a queue. Its jobs are counted if it has limits or groups, or if ``counted`` is set."""
    if name in work.queues:
        return
    stored = step.queues.find(name)
    if stored is None:
        work.queues[name] = QueueView(name)
        return
    queue = work.queues[name] = QueueView(name, copy_row(stored.row), stored.starts.copy())
    if counted or stored.special:
        totals = step.totals(name)
        queue.jobs = sum(totals.values())
        queue.active, queue.parked = totals[JobState.ACTIVE], totals[JobState.PARKED]


def _load_ids(step: RequestState, refs: Iterable[tuple[str, str]], work: UnitOfWork) -> None:
    """Load the existing jobs and tombstones of ids that are to be added."""
    load_jobs(step, refs, work)
    if step.queues.nothing_kept():
        return
    for queue, ids in by_queue(refs).items():
        num = step.queues.num(queue) or 0
        for job_id, until_ms in step.listed("kept_id_find", ids, num):
            work.kept[queue, job_id] = until_ms


def load_jobs(step: RequestState, refs: Iterable[tuple[str, str]], work: UnitOfWork) -> None:
    """Load jobs with their queues, and the stubs of removed jobs. Leased jobs come from the cache."""
    leased, records, known, queue = step.queues.leased, step.records, work.jobs, None
    unknown: list[tuple[str, str]] = []
    for ref in refs:
        if ref in known:
            continue
        job = leased.pop(ref, None)
        if job is None:
            unknown.append(ref)
            continue
        known[ref] = records[job.seq] = job
        if ref[0] != queue:
            queue = ref[0]
            load_queue(step, queue, work)
    if unknown:
        _find_jobs(step, unknown, work)


def _find_jobs(step: RequestState, refs: list[tuple[str, str]], work: UnitOfWork) -> None:
    """Load jobs that are not cached from the tables."""
    missing: list[tuple[str, str]] = []
    for queue, ids in by_queue(refs).items():
        load_queue(step, queue, work)
        found = {row[2]: row for row in _rows(step, queue, ids)}
        for job_id in ids:
            row, ref = found.get(job_id), (queue, job_id)
            work.jobs[ref] = None if row is None else step.record(row, queue)
            if row is None:
                missing.append(ref)
    if missing:
        stubs.load(step, missing, work)


def _rows(step: RequestState, queue: str, ids: list[str]) -> list[Row]:
    num = step.queues.num(queue)
    if num is None:
        return []
    if len(ids) == 1:
        return step.all("job_by_id", num, ids[0])
    return step.listed("job_by_ids", ids, num)


def _load_line(step: RequestState, name: str, work: UnitOfWork, count: int = 0) -> None:
    if name in work.lines:
        return
    stored = step.queues.find(name)
    num, grouped = (0, False) if stored is None else (stored.num, bool(stored.special & GROUPED))
    work.load_line(name, ordered.StoredWaitingJobs(step, name, num, count if num else 0, grouped=grouped))


# --- groups ---------------------------------------------------------------------------------------


def load_groups(step: RequestState, keys: Iterable[tuple[str, str]], work: UnitOfWork) -> None:
    """Load groups with their usage, and their queues' waiting jobs."""
    for queue, names in by_queue(key for key in keys if key not in work.groups).items():
        load_queue(step, queue, work)
        _load_line(step, queue, work)
        num = step.queues.num(queue) or 0
        rows = {row[0]: row[1:] for row in step.listed("grp_find", names, num)}
        every = work.queues[queue].row.every_group
        known = {name: group_of(rows.get(name), name) for name in names}
        limits = {name: row.own or every for name, (row, _) in known.items()}
        _count(step, num, {name: usage for name, (_, usage) in known.items()}, limits)
        for name, (row, usage) in known.items():
            if limits[name].bucket is not None and usage.waiting:
                ((usage.waiting_cost,),) = step.all("group_cost", num, name)
            parked, places = ordered.parked(step, work, queue, num, name), ordered.places(step, num, name)
            work.groups[queue, name] = GroupView(queue, name, row, usage, parked, places)


def _count(step: RequestState, num: int, usages: dict[str, Usage], limits: dict[str, GroupLimits]) -> None:
    """Count the jobs of groups, up to ``MARGIN`` above the highest limit. Higher counts make no difference,
    because one request does not remove that many jobs."""
    admitted, others = MARGIN, SOME
    for one in limits.values():
        admitted = max(admitted, MARGIN + max(one.slots or 0, one.rate.max if one.rate else 0))
        others = max(others, 0 if one.max_size is None else MARGIN + one.max_size)
    admitted = max(admitted, others)
    for name, *counts in step.listed("group_counts", usages, num, admitted, others):
        usage = usages[name]
        usage.size = sum(counts)
        usage.waiting, usage.active, usage.parked, *_ = counts
        usage.waiting_cost = usage.waiting
