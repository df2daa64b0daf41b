"""Roll-ups of the history, and marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from windlass.backend import metrics as mq
from windlass.backends.sqlite.rows import pack
from windlass.core import damage
from windlass.core.job import ARCHIVER_KEPT_MS
from windlass.core.metrics import (
    KEPT_MS,
    MARKS_KEPT,
    STEP_MS,
    Mark,
    MetricsCursor,
    MetricsRow,
    merged,
)

if TYPE_CHECKING:
    from windlass.backends.sqlite.tx import Step
    from windlass.backends.sqlite.verbs_reads import Snapshot

unpack = msgspec.msgpack.Decoder(MetricsRow).decode


def add(step: Step, request: mq.AddMetrics) -> bool:
    num = step.queue(request.queue)
    at, _ = step.one("metrics_cursor", num) or (0, 0)
    if at != request.after:
        return False
    step.run("metrics_cursor_save", num, request.upto, step.now_ms)
    for name, step_ms in STEP_MS.items():
        for row in merged(request.rows, name):
            found = step.one("metrics_row", num, step_ms, row.start_ms, row.task)
            known = None if found is None else damage.read_or_none(found[0], unpack, _name(num, row.task))
            if known is not None:
                row.merge(known)
            step.run("metrics_save", num, step_ms, row.start_ms, row.task, pack(row))
    return True


def holds_from(step: Step, num: int) -> int | None:
    """The record after which a queue's history is held; None when nobody rolls it up any more."""
    at, seen_ms = step.one("metrics_cursor", num) or (0, 0)
    return at if seen_ms > step.now_ms - ARCHIVER_KEPT_MS else None


def prune(step: Step, limit: int) -> int:
    """Remove roll-ups that are past their time; returns how many."""
    count = 0
    for name, step_ms in STEP_MS.items():
        count += step.run("metrics_prune", step_ms, step.now_ms - KEPT_MS[name], limit - count)
    return count


def add_mark(step: Step, request: mq.AddMark) -> Mark:
    found = step.one("mark", request.id)
    if found is not None:
        return Mark(id=request.id, at_ms=found[0], label=found[1])
    step.run("mark_insert", request.id, step.now_ms, request.label)
    step.run("mark_trim", MARKS_KEPT)
    return Mark(id=request.id, at_ms=step.now_ms, label=request.label)


# --- reads ------------------------------------------------------------------------------------------


def progress(snap: Snapshot, request: mq.MetricsProgress) -> list[MetricsCursor]:
    found = []
    for num, name in snap.all("queue_nums"):
        if request.queue not in (None, name):
            continue
        _, newest, _, floor = snap.logs(num)
        if newest:
            rows = snap.all("metrics_cursor", num)
            at = rows[0][0] if rows else 0
            found.append(MetricsCursor(queue=name, at=at, newest=newest, oldest=floor + 1))
    return sorted(found, key=lambda cursor: cursor.queue)


def read(snap: Snapshot, request: mq.ReadMetrics) -> mq.MetricsPage:
    num = snap.queues.num(request.queue)
    if num is None:
        return mq.MetricsPage([])
    after = _after(request)
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
    page = damage.readable(shown, lambda row: unpack(row[2]), lambda row: _name(num, row[1]))
    more = shown and len(rows) > len(shown)
    return mq.MetricsPage(list(page), f"{shown[-1][0]} {shown[-1][1]}" if more else None)


def _name(num: int, task: str) -> str:
    return f"a roll-up of task {task} in queue number {num}"


def _after(request: mq.ReadMetrics) -> tuple[int, str]:
    """The window and task after which the page begins; every task's name is greater than the empty one."""
    if request.cursor is None:
        return request.since_ms, ""
    return mq.place_of(request.cursor)


def list_marks(snap: Snapshot, request: mq.ListMarks) -> list[Mark]:
    return [
        Mark(id=mark_id, at_ms=at_ms, label=label)
        for mark_id, at_ms, label in snap.all("mark_list", request.since_ms)
    ]
