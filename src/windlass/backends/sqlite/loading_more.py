"""Loads what only few verbs ask for (``engine.reads.MoreReads``), such as expired leases or whole tables."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.backends.sqlite import edges, expired, loading, tables
from windlass.backends.sqlite.request import RequestState
from windlass.backends.sqlite.rows import LAST_SEQ, Row, index_of
from windlass.core import transitions
from windlass.core.job import EVENTS_KEPT, JobRecord
from windlass.core.rollups import Mark
from windlass.core.states import JobState
from windlass.core.stream_rules import StreamHead
from windlass.engine.effects import Table
from windlass.engine.reads import STEP, EventSpan, MoreReads, PurgeReads, state_since
from windlass.engine.unit_of_work import UnitOfWork

#: How many jobs one ``Recover`` checks for an unknown state.
PATROL = 5_000
#: Up to this many jobs of a state are sorted to find the oldest ones.
SORTABLE = 10_000


def load(step: RequestState, reads: MoreReads, work: UnitOfWork) -> None:
    """Load the parts that ``reads`` names into ``work``."""
    if reads.purge is not None:
        loading.load_queue(step, reads.purge.queue, work, counted=True)
    loading.load(step, reads, work)
    edges.load(step, reads, work)
    for ref in reads.streams:
        rows = step.all("stream_of", step.queues.num(ref.queue) or 0, ref.id)
        work.streams[ref] = StreamHead(*rows[0]) if rows else None
    _load_found(step, reads, work)
    if reads.every_queue:
        for _, name in step.all("queue_nums"):
            loading.load_queue(step, name, work)
    if reads.next_groups is not None:
        _load_next_groups(step, *reads.next_groups, work)
    if reads.ranked is not None:
        work.ranked = _ranked(step, *reads.ranked)
    if reads.settings_of is not None:
        _load_settings(step, reads.settings_of, work)
    if reads.past_time:
        expired.load_entries(step, work, reads.past_time)
    if reads.time_back is not None:
        _load_time_back(step, work, reads.time_back)
    _load_logs(step, reads, work)


def _load_next_groups(step: RequestState, queue: str, after: str, work: UnitOfWork) -> None:
    num = step.queues.num(queue) or 0
    work.next_groups = [name for (name,) in step.all("group_names", num, after, STEP)]
    loading.load_groups(step, [(queue, name) for name in work.next_groups], work)


def _ranked(step: RequestState, queue: str, group: str | None) -> list[str]:
    num = step.queues.num(queue) or 0
    rows = step.all("group_any_ranked", num) if group is None else step.all("group_ranked", num, group)
    return [name for (name,) in rows]


def _load_logs(step: RequestState, reads: MoreReads, work: UnitOfWork) -> None:
    if reads.history is not None:
        expired.load_history(step, work, reads.history)
    if reads.events_of is not None:
        _load_event_log(step, reads.events_of, work)
    if reads.mark is not None:
        rows = step.all("mark", reads.mark)
        work.mark = Mark(id=reads.mark, at_ms=rows[0][0], label=rows[0][1]) if rows else None


def _load_found(step: RequestState, reads: MoreReads, work: UnitOfWork) -> None:
    if reads.leased_by is not None:
        _find(step, work, step.all("job_leased_by", reads.leased_by))
    if reads.expired:
        rows = step.all("job_lease_over", work.now_ms, reads.expired)
        _find(step, work, [*rows, *step.all("job_timeless", reads.expired), *_stateless(step)])
    if reads.overdue:
        work.overdue = _overdue(step, work.now_ms, reads.overdue)
        _load_queues(step, work.overdue, work)
    if reads.purge is not None:
        work.found = _purged(step, reads.purge)
    if reads.past_keep:
        work.found = expired.past_keep(step, work, reads.past_keep)
        _load_queues(step, work.found, work)


def _find(step: RequestState, work: UnitOfWork, rows: Iterable[Row]) -> None:
    """Load the active jobs of ``rows``. Other rows are damaged and set aside before the verb continues."""
    work.found = [job for job in step.jobs(rows) if job.state is JobState.ACTIVE]
    _load_queues(step, work.found, work)


def _load_queues(step: RequestState, jobs: Iterable[JobRecord], work: UnitOfWork) -> None:
    for job in jobs:
        loading.load_queue(step, job.queue, work)


def _stateless(step: RequestState) -> list[Row]:
    """Return jobs with an unknown state among the next ``PATROL`` jobs. No index leads to them."""
    start = step.queues.last_checked
    edge = step.all("list_edge_up", start, PATROL - 1)
    step.queues.last_checked = edge[0][0] if edge else 0
    return step.all("job_stateless", start, edge[0][0] if edge else LAST_SEQ)


def _overdue(step: RequestState, now_ms: int, limit: int) -> list[JobRecord]:
    found = []
    for job in step.jobs(step.all("job_expired", now_ms, limit)):
        if transitions.is_expired(job, now_ms):
            found.append(job)
        else:  # an earlier release left the time on a job that had started or ended
            step.for_upkeep().stays.append(job.seq)
    return found


# --- purge ----------------------------------------------------------------------------------------


def _purged(step: RequestState, asked: PurgeReads) -> list[JobRecord]:
    """Return the jobs that a purge removes, oldest first.

    If a state has more than ``SORTABLE`` jobs and no index by age, they come in the order of another index.
    """
    num = step.queues.num(asked.queue)
    if num is None:
        return []
    totals = step.totals(asked.queue)
    rows: list[Row] = []
    for state in asked.states:
        if totals[state]:
            index, params = index_of(state)
            many = "_many" if totals[state] > SORTABLE and index in ("waiting", "due") else ""
            which = (state,) if index == "due" else params
            rows += step.all(f"purge_{index}{many}", num, *which, asked.before_ms, asked.limit)
    return sorted(step.jobs(rows), key=lambda job: (state_since(job), job.seq))[: asked.limit]


# --- whole tables ---------------------------------------------------------------------------------


def _load_settings(step: RequestState, name: str, work: UnitOfWork) -> None:
    num = step.queues.num(name) or 0
    loading.load_groups(step, [(name, group) for (group,) in step.all("grp_names", num)], work)
    for table, statement in (
        (Table.KEY, "unique_key_names"),
        (Table.SCHEDULE, "schedule_names"),
        (Table.STUB, "stub_names"),
    ):
        for (key,) in step.all(statement, num):
            work.rows[table, (name, key)] = None


def _load_event_log(step: RequestState, name: str, work: UnitOfWork) -> None:
    """Load the range of a queue's events, including those that this transaction has not written yet."""
    stored = step.queues.find(name)
    newest = floor = 0
    if stored is not None:
        newest = stored.last_event + step.tx.queue_log(name).noted
        ((floor, _),) = step.all("queue_floors", stored.num)
    work.event_logs[name] = EventSpan(max(floor, newest - EVENTS_KEPT) + 1, newest)


def _load_time_back(step: RequestState, work: UnitOfWork, from_ms: int) -> None:
    _find(step, work, step.all("job_lease_after", from_ms))
    for num, name in step.all("queue_nums"):
        loading.load_queue(step, name, work)
        tables.put(work, Table.KEY, name, step.all("unique_keys_after", num, from_ms))
        groups = [(name, group) for (group,) in step.all("grp_names", num)]
        loading.load_groups(step, groups, work)
    tables.put(work, Table.LEADER, "", step.all("leaders_after", from_ms))
    tables.put(work, Table.WORKER, "", step.all("workers_after", work.now_ms))
