"""Read-only requests about limits, groups, keys, flows, live output, roll-ups and schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import schedule_requests as sq
from windlass.backend import stream_requests as sm
from windlass.backends.sqlite.edges import read_edges
from windlass.backends.sqlite.limits import group_of, read_limits
from windlass.backends.sqlite.ordered import places
from windlass.backends.sqlite.rows import Row, record
from windlass.backends.sqlite.snapshot import ReadSnapshot
from windlass.backends.sqlite.tables import unpack_metrics, unpack_schedule
from windlass.core import bad_records
from windlass.core import limit_rules as lm
from windlass.core.edges import Edge
from windlass.core.limit_rules import GroupInfo, Usage
from windlass.core.order import bad_cursor
from windlass.core.rollups import STEP_MS, Mark, MetricsCursor
from windlass.core.states import JobState
from windlass.core.stream_rules import Chunk, StreamHead
from windlass.core.unique_rules import UniqueHolder
from windlass.engine.effects import GroupRow, QueueRow
from windlass.engine.ordered import Ordered
from windlass.engine.unit_of_work import GroupJobs
from windlass.engine.views import limits_view

#: A limit for counting that no group reaches.
_MANY = 1 << 40
_EMPTY = StreamHead()


# --- limits, groups, unique keys ------------------------------------------------------------------


def get_limits(snap: ReadSnapshot, request: lrq.GetLimits) -> lrq.Limits:
    num = snap.num(request.queue)
    starts: list[int] = []
    row = _limits(snap, num, request.queue, starts)
    groups = {name: _group(snap, num, name)[0] for name in request.groups}
    return limits_view(row, starts, groups, snap.now_ms)


def _limits(snap: ReadSnapshot, num: int, name: str, starts: list[int]) -> QueueRow:
    row = QueueRow()
    read_limits(row, starts, next(iter(snap.all("limits", num)), None), name)
    return row


def _group(snap: ReadSnapshot, num: int, name: str) -> tuple[GroupRow, Usage]:
    return group_of(next((row[1:] for row in snap.listed("grp_find", [name], num)), None), name)


def list_groups(snap: ReadSnapshot, request: lrq.ListGroups) -> lrq.GroupPage:
    num = snap.num(request.queue)
    every = _limits(snap, num, request.queue, []).every_group
    found: list[GroupInfo] = []
    name = request.cursor or ""
    while (following := _next_group(snap, num, name)) is not None:
        if len(found) == request.limit:
            return lrq.GroupPage(found, name)
        name = following
        found.append(_info(snap, num, name, every))
    return lrq.GroupPage(found)


def _next_group(snap: ReadSnapshot, num: int, after: str) -> str | None:
    names = [
        snap.all("job_grp_after", num, after)[0][0],
        snap.all("grp_after", num, after, snap.now_ms)[0][0],
    ]
    return min((name for name in names if name is not None), default=None)


def _info(snap: ReadSnapshot, num: int, name: str, every: lm.GroupLimits) -> GroupInfo:
    row, usage = _group(snap, num, name)
    limits = every if row.own is None else row.own
    ((_, *counts),) = snap.listed("group_counts", [name], num, _MANY, _MANY)
    usage.waiting, usage.active, usage.parked, *_ = counts
    return GroupInfo(
        name=name,
        size=sum(counts),
        waiting=usage.waiting,
        parked=usage.parked,
        active=usage.active,
        next_ms=_opens_at(snap, num, name, limits, usage),
        paused=row.paused,
    )


def _opens_at(snap: ReadSnapshot, num: int, name: str, limits: lm.GroupLimits, usage: Usage) -> int | None:
    """Return when the group may admit its first parked job, or None if no job is parked."""
    for row in snap.all("group_parked", num, name, 1, 0):
        job = record(row, "")
        if limits.bucket is not None:
            ((usage.waiting_cost,),) = snap.all("group_cost", num, name)
        jobs = GroupJobs(usage, Ordered(), places(snap, num, name))
        return jobs.opens_at(limits, job, snap.now_ms)
    return None


def get_unique_key(snap: ReadSnapshot, request: lrq.GetUniqueKey) -> UniqueHolder | None:
    found = snap.listed_texts("unique_key_find", [request.key], snap.num(request.queue))
    if not found:
        return None
    _, job_id, until_ms, *_ = found[0]
    live = until_ms is None or until_ms > snap.now_ms
    return UniqueHolder(request.key, job_id, until_ms) if live else None


def list_unique_keys(snap: ReadSnapshot, request: lrq.ListUniqueKeys) -> lrq.KeyPage:
    after = request.cursor or ""
    rows = snap.all("unique_key_list", snap.num(request.queue), after, snap.now_ms, request.limit + 1)
    page = [UniqueHolder(*row) for row in rows[: request.limit]]
    return lrq.KeyPage(page, page[-1].key if len(rows) > request.limit else None)


# --- flows and live output ------------------------------------------------------------------------


def get_dependencies(snap: ReadSnapshot, request: fl.GetDependencies) -> list[fl.Dependencies]:
    answers = []
    for ref in request.refs:
        num = snap.num(ref.queue)
        below = _edges(snap, snap.all("edges_of", num, ref.id), request.values)
        rows = snap.all("edges_to", num, ref.id, request.limit + 1) if request.limit else []
        above = _edges(snap, rows, request.values)
        answers.append(fl.Dependencies(below, above[: request.limit], len(above) > request.limit))
    return answers


def _edges(snap: ReadSnapshot, rows: list[Row], values: bool) -> list[Edge]:
    edges = read_edges(rows, snap.queues.name)
    if not values:
        for edge in edges:
            edge.value = None
    return edges


def read_stream(snap: ReadSnapshot, request: sm.ReadStream) -> sm.StreamPage:
    key = (snap.num(request.ref.queue), request.ref.id)
    rows = snap.all("job_codec", *key)
    if not rows:
        return sm.StreamPage([], _EMPTY.last, _EMPTY.oldest, None)
    seq, state, codec, result_codec = rows[0]
    found = snap.all("stream_of", *key)
    head = StreamHead(*found[0]) if found else _EMPTY
    chunks = [Chunk(*row) for row in snap.all("chunk_read", seq, request.after, request.limit)]
    return sm.StreamPage(chunks, head.last, head.oldest, JobState(state), result_codec or codec)


# --- roll-ups and marks ---------------------------------------------------------------------------


def progress(snap: ReadSnapshot, request: mq.MetricsProgress) -> list[MetricsCursor]:
    found = []
    for num, name in snap.all("queue_nums"):
        if request.queue not in (None, name):
            continue
        _, newest, _, floor = snap.logs(num)
        if newest:
            rows = snap.all("metrics_cursor_find", num)
            at = rows[0][0] if rows else 0
            found.append(MetricsCursor(queue=name, at=at, newest=newest, oldest=floor + 1))
    return sorted(found, key=lambda cursor: cursor.queue)


def read_metrics(snap: ReadSnapshot, request: mq.ReadMetrics) -> mq.MetricsPage:
    num, after = snap.num(request.queue), _after(request)
    rows = snap.all(
        "metrics_read",
        num,
        STEP_MS[request.step],
        *after,
        request.until_ms,
        request.task,
        request.limit + 1,
    )
    shown = rows[: request.limit]
    page = bad_records.readable(shown, lambda row: unpack_metrics(row[2]), lambda row: _rollup(num, row[1]))
    more = shown and len(rows) > len(shown)
    return mq.MetricsPage(list(page), f"{shown[-1][0]} {shown[-1][1]}" if more else None)


def _rollup(num: int, task: str) -> str:
    return f"a roll-up of task {task} in queue number {num}"


def _after(request: mq.ReadMetrics) -> tuple[int, str]:
    """Return the window and task after which the page begins. The empty name sorts before every task."""
    if request.cursor is None:
        return request.since_ms, ""
    return mq.place_of(request.cursor)


def list_marks(snap: ReadSnapshot, request: mq.ListMarks) -> list[Mark]:
    return [
        Mark(id=mark_id, at_ms=at_ms, label=label)
        for mark_id, at_ms, label in snap.all("mark_list", request.since_ms)
    ]


# --- schedules ------------------------------------------------------------------------------------


def list_schedules(snap: ReadSnapshot, request: sq.ListSchedules) -> sq.SchedulePage:
    after = ["", ""] if request.cursor is None else request.cursor.split("\n")
    if len(after) != 2:
        raise bad_cursor(request.cursor)
    wanted = (request.queue, request.name, request.source)
    rows = snap.all("schedule_list", *wanted, *after, request.limit + 1)
    shown = rows[: request.limit]
    page = list(
        bad_records.readable(
            shown, lambda row: unpack_schedule(row[2]), lambda row: f"schedule {row[1]} of queue {row[0]}"
        )
    )
    cursor = f"{shown[-1][0]}\n{shown[-1][1]}" if shown and len(rows) > len(shown) else None
    return sq.SchedulePage(page, snap.now_ms, cursor)


def due_schedules(snap: ReadSnapshot, request: sq.DueSchedules) -> sq.Due:
    rows = snap.all("schedule_due", request.limit + 1)
    count = min(sum(row[0] <= snap.now_ms for row in rows), request.limit)
    ripe = bad_records.readable(
        rows[:count], lambda row: unpack_schedule(row[1]), lambda row: f"schedule {row[3]} of queue {row[2]}"
    )
    later = rows[count:]
    return sq.Due(list(ripe), snap.now_ms, max(later[0][0] - snap.now_ms, 0) if later else None)


READS: dict[type[Any], Callable[[ReadSnapshot, Any], Any]] = {
    lrq.GetLimits: get_limits,
    lrq.ListGroups: list_groups,
    lrq.GetUniqueKey: get_unique_key,
    lrq.ListUniqueKeys: list_unique_keys,
    fl.GetDependencies: get_dependencies,
    sm.ReadStream: read_stream,
    mq.MetricsProgress: progress,
    mq.ReadMetrics: read_metrics,
    mq.ListMarks: list_marks,
    sq.ListSchedules: list_schedules,
    sq.DueSchedules: due_schedules,
}
