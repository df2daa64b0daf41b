"""Requests that change nothing: one function for each, with the state, the request and the time."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy, deepcopy
from itertools import islice
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend import stream_requests as sm
from windlass.backends.memory.groups import StoredGroup
from windlass.backends.memory.state import State, StoredQueue
from windlass.core.job import (
    ARCHIVER_KEPT_MS,
    ArchiverInfo,
    CounterRow,
    JobRecord,
    QueueInfo,
    WorkerInfo,
)
from windlass.core.limit_rules import GroupInfo
from windlass.core.order import Sort, cursor_of, place_after, place_of, seq_after
from windlass.core.rollups import Mark, MetricsCursor
from windlass.core.states import JobState
from windlass.core.unique_rules import UniqueHolder
from windlass.engine.views import is_wanted, limits_view, view
from windlass.errors import HistoryTrimmedError


def get_jobs(state: State, request: rq.GetJobs, now_ms: int) -> list[JobRecord | None]:
    found = [state.find(ref) or state.stubs.find(ref, now_ms) for ref in request.refs]
    return [view(job, now_ms, late=request.late) if job else None for job in found]


def list_jobs(state: State, request: rq.ListJobs, now_ms: int) -> rq.Page:
    jobs = list(state.look(request.queue).jobs.values())
    if request.sort is not Sort.ADDED:
        return _by_time(jobs, request, now_ms)
    if request.newest_first:
        jobs.reverse()
    after, down = seq_after(request.cursor, newest_first=request.newest_first), request.newest_first
    page: list[JobRecord] = []
    for looked, job in enumerate(jobs):
        if not (job.seq < after if down else job.seq > after) or not is_wanted(job, request):
            continue
        if len(page) == request.limit:
            return rq.Page(page, str(page[-1].seq), looked)
        page.append(view(job, now_ms))
    return rq.Page(page, looked=len(jobs))


def _by_time(jobs: list[JobRecord], request: rq.ListJobs, now_ms: int) -> rq.Page:
    """A page of jobs sorted by due or finish time. Jobs without that time are left out."""
    after, down = place_after(request.cursor, newest_first=request.newest_first), request.newest_first
    found = [
        (place, job)
        for job in jobs
        if (place := place_of(job, request.sort)) is not None
        and (place < after if down else place > after)
        and is_wanted(job, request)
    ]
    found.sort(key=itemgetter(0), reverse=down)
    page = [view(job, now_ms) for _, job in found[: request.limit]]
    more = len(found) > len(page)
    return rq.Page(page, cursor_of(page[-1], request.sort) if more and page else None, len(jobs))


def count_jobs(state: State, request: rq.CountJobs, now_ms: int) -> dict[JobState, int]:
    counts = state.look(request.queue).counts
    return {one: counts[one] for one in JobState}


def list_queues(state: State, request: rq.ListQueues, now_ms: int) -> list[QueueInfo]:
    return [_queue_info(state.queues[name]) for name in sorted(state.queues) if state.queues[name].row.known]


def _queue_info(queue: StoredQueue) -> QueueInfo:
    ready = (job.ready_ms for job in queue.jobs.values() if job.state is JobState.WAITING)
    return QueueInfo(
        name=queue.name,
        paused=queue.row.paused,
        counts={one.value: queue.counts[one] for one in JobState},
        oldest_ready_ms=min(ready, default=None),
    )


def get_logs(state: State, request: rq.GetLogs, now_ms: int) -> rq.LogPage:
    lines = list(state.logs.get(request.ref, ()))
    return rq.LogPage(lines[request.start : request.start + request.limit], len(lines))


def read_events(state: State, request: rq.ReadEvents, now_ms: int) -> rq.EventPage:
    queue = state.look(request.queue)
    oldest = queue.last_event - len(queue.events) + 1
    start = max(request.after + 1 - oldest, 0)
    stored = islice(queue.events, start, start + request.limit)
    events = [replace(event, data=event.data.copy()) for event in stored]  # many events share their data
    return rq.EventPage(events, queue.last_event, oldest)


def read_history(state: State, request: rq.ReadHistory, now_ms: int) -> rq.HistoryPage:
    queue = state.queues.get(request.queue)
    if queue is None:
        return rq.HistoryPage([], request.after, 0, 1)
    oldest = queue.last_history - len(queue.history) + 1
    if request.after + 1 < oldest:
        raise HistoryTrimmedError("history", request.queue, request.after, oldest)
    start = max(request.after + 1 - oldest, 0)
    rows = list(islice(queue.history, start, start + request.limit))
    last = rows[-1][0] if rows else request.after
    return rq.HistoryPage([record for _, record in rows], last, queue.last_history, oldest)


def read_counters(state: State, request: rq.ReadCounters, now_ms: int) -> list[CounterRow]:
    return [
        CounterRow(queue, task, outcome, count)
        for (queue, task, outcome), count in sorted(state.counters.items())
        if request.queue in (None, queue)
    ]


def list_workers(state: State, request: rq.ListWorkers, now_ms: int) -> list[WorkerInfo]:
    alive = [worker for worker in state.workers.values() if worker.beat_ms > now_ms - request.stale_ms]
    return [copy(worker) for worker in sorted(alive, key=lambda worker: worker.id)]


def list_archivers(state: State, request: rq.ListArchivers, now_ms: int) -> list[ArchiverInfo]:
    live = [info for info in state.archivers.values() if info.seen_ms > now_ms - ARCHIVER_KEPT_MS]
    return [
        ArchiverInfo(name=info.name, cursors=dict(info.cursors), seen_ms=info.seen_ms)
        for info in sorted(live, key=lambda info: info.name)
    ]


# --- flows, output, schedules, metrics ------------------------------------------------------------


def get_dependencies(state: State, request: fl.GetDependencies, now_ms: int) -> list[fl.Dependencies]:
    return [state.edges.of(ref, values=request.values, limit=request.limit) for ref in request.refs]


def read_stream(state: State, request: sm.ReadStream, now_ms: int) -> sm.StreamPage:
    job = state.find(request.ref)
    head, chunks = state.streams.read(request.ref, request.after, request.limit)
    found, codec = (job.state, job.result_codec) if job else (None, "json")
    return sm.StreamPage(chunks, head.last, head.oldest, found, codec)


def list_schedules(state: State, request: sq.ListSchedules, now_ms: int) -> sq.SchedulePage:
    found = [
        (key, record)
        for key, record in sorted(state.schedules.items())
        if request.queue in (None, record.queue)
        and request.name in (None, record.name)
        and request.source in (None, record.source)
        and (request.cursor is None or "\n".join(key) > request.cursor)
    ]
    page = found[: request.limit]
    cursor = "\n".join(page[-1][0]) if len(found) > len(page) else None
    return sq.SchedulePage([copy(record) for _, record in page], now_ms, cursor)


def due_schedules(state: State, request: sq.DueSchedules, now_ms: int) -> sq.Due:
    coming = sorted(
        (record.next_ms, record.queue, record.name)
        for record in state.schedules.values()
        if record.next_ms is not None and not record.paused
    )
    due = [entry for entry in coming if entry[0] <= now_ms][: request.limit]
    later = coming[len(due) :]
    return sq.Due(
        [copy(state.schedules[queue, name]) for _, queue, name in due],
        now_ms,
        max(later[0][0] - now_ms, 0) if later else None,
    )


def metrics_progress(state: State, request: mq.MetricsProgress, now_ms: int) -> list[MetricsCursor]:
    return [
        MetricsCursor(
            queue=name,
            at=state.cursors[name,].at if (name,) in state.cursors else 0,
            newest=queue.last_history,
            oldest=queue.last_history - len(queue.history) + 1,
        )
        for name, queue in sorted(state.queues.items())
        if queue.last_history and request.queue in (None, name)
    ]


def read_metrics(state: State, request: mq.ReadMetrics, now_ms: int) -> mq.MetricsPage:
    rows = state.rollups.get((request.queue, request.step), {})
    after = None if request.cursor is None else mq.place_of(request.cursor)
    keys = sorted(
        key
        for key in rows
        if request.since_ms <= key[0] < request.until_ms
        and request.task in (None, key[1])
        and (after is None or key > after)
    )
    page = [deepcopy(rows[key]) for key in keys[: request.limit]]
    more = len(keys) > len(page)
    return mq.MetricsPage(page, f"{page[-1].start_ms} {page[-1].task}" if more else None)


def list_marks(state: State, request: mq.ListMarks, now_ms: int) -> list[Mark]:
    return [mark for at_ms, _, mark in state.marks if at_ms >= request.since_ms]


# --- limits and keys ------------------------------------------------------------------------------


def get_limits(state: State, request: lrq.GetLimits, now_ms: int) -> lrq.Limits:
    queue = state.look(request.queue)
    groups = {name: (queue.groups.find(name) or StoredGroup(name)).row for name in request.groups}
    return limits_view(queue.row, queue.starts, groups, now_ms)


def list_groups(state: State, request: lrq.ListGroups, now_ms: int) -> lrq.GroupPage:
    queue = state.look(request.queue)
    found: list[GroupInfo] = []
    for group in queue.groups:
        if request.cursor is not None and group.name <= request.cursor:
            continue
        row, size = group.row, group.usage.size
        if not (size or row.paused or row.hold_until_ms > now_ms or row.own is not None):
            continue
        if len(found) == request.limit:
            return lrq.GroupPage(found, found[-1].name)
        found.append(_group_info(queue, group, now_ms))
    return lrq.GroupPage(found)


def _group_info(queue: StoredQueue, group: StoredGroup, now_ms: int) -> GroupInfo:
    usage, head = group.usage, group.parked.head()
    limits = group.row.own if group.row.own is not None else queue.row.every_group
    return GroupInfo(
        name=group.name,
        size=usage.size,
        waiting=usage.waiting,
        parked=usage.parked,
        active=usage.active,
        next_ms=None if head is None else group.opens_at(limits, head, now_ms),
        paused=usage.paused,
    )


def get_unique_key(state: State, request: lrq.GetUniqueKey, now_ms: int) -> UniqueHolder | None:
    entry = state.look(request.queue).keys.get(request.key)
    if entry is None or not entry.is_live(now_ms):
        return None
    return UniqueHolder(request.key, entry.job_id, entry.until_ms)


def list_unique_keys(state: State, request: lrq.ListUniqueKeys, now_ms: int) -> lrq.KeyPage:
    keys = state.look(request.queue).keys
    found = [
        UniqueHolder(key, keys[key].job_id, keys[key].until_ms)
        for key in sorted(keys)
        if keys[key].is_live(now_ms) and (request.cursor is None or key > request.cursor)
    ]
    page = found[: request.limit]
    return lrq.KeyPage(page, page[-1].key if len(found) > request.limit else None)


Shows = dict[type[Any], Callable[[Any, Any, int], Any]]

SHOWS: Shows = {
    rq.GetJobs: get_jobs,
    rq.ListJobs: list_jobs,
    rq.CountJobs: count_jobs,
    rq.ListQueues: list_queues,
    rq.GetLogs: get_logs,
    rq.ReadEvents: read_events,
    rq.ReadHistory: read_history,
    rq.ReadCounters: read_counters,
    rq.ListWorkers: list_workers,
    rq.ListArchivers: list_archivers,
    fl.GetDependencies: get_dependencies,
    sm.ReadStream: read_stream,
    sq.ListSchedules: list_schedules,
    sq.DueSchedules: due_schedules,
    mq.MetricsProgress: metrics_progress,
    mq.ReadMetrics: read_metrics,
    mq.ListMarks: list_marks,
    lrq.GetLimits: get_limits,
    lrq.ListGroups: list_groups,
    lrq.GetUniqueKey: get_unique_key,
    lrq.ListUniqueKeys: list_unique_keys,
}
