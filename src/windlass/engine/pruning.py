"""Prune: remove records, ids and history whose retention has passed."""

from __future__ import annotations

from windlass.backend import requests as rq
from windlass.core import limit_rules as lm
from windlass.core.job import (
    ARCHIVER_KEPT_MS,
    HISTORY_HELD,
    HISTORY_KEPT,
    HISTORY_KEPT_MS,
    ArchiverInfo,
)
from windlass.engine.effects import Cursor, Table
from windlass.engine.reads import STEP, LogSpan, MoreReads, Verb
from windlass.engine.saving import drop, limits_of, prepare
from windlass.engine.unit_of_work import GroupView, UnitOfWork


def prune(work: UnitOfWork, request: rq.Prune) -> Verb[rq.Pruned]:
    """Remove a bounded number of entries whose retention has passed. ``more``: call again.

    Reads: 1, with unique keys 2.
    """
    most = max(request.limit, STEP)
    yield MoreReads(
        past_keep=request.limit + 1,
        past_time=most,
        history=work.now_ms - HISTORY_KEPT_MS,
    )
    old = work.found[: request.limit]
    yield from prepare(work, old)
    for job in old:
        drop(work, job)
    past = work.past
    more = len(work.found) > request.limit or past.cut
    for table, gone in (
        (Table.KEPT_ID, past.kept_ids),
        (Table.KEY, past.keys),
        (Table.WORKER, past.workers),
        (Table.STUB, past.stubs),
        (Table.ROLLUP, past.rollups[: request.limit]),
    ):
        more = more or len(gone) >= most
        for key in gone:
            work.put_row(table, tuple(key), None)
    idle = [key for key in past.groups if _is_idle(work, work.groups[key])]
    work.effects.rows.update(((Table.GROUP, key), None) for key in idle)
    metrics = min(len(past.rollups), request.limit)
    return rq.Pruned(
        jobs=len(old),
        ids=len(past.kept_ids),
        keys=len(past.keys),
        history=_trim_all(work),
        workers=len(past.workers),
        metrics=metrics,
        more=more or metrics == request.limit or len(idle) >= most,
    )


def _is_idle(work: UnitOfWork, group: GroupView) -> bool:
    return lm.is_idle(limits_of(work, group), group.usage, work.now_ms)


def _trim_all(work: UnitOfWork) -> int:
    """Trim the history of all queues. Returns how many records are removed."""
    since_ms = work.now_ms - ARCHIVER_KEPT_MS
    archivers: list[ArchiverInfo] = [
        value
        for (table, _), value in work.rows.items()
        if table is Table.ARCHIVER and value.seen_ms > since_ms
    ]
    count = 0
    for queue, span in work.logs.items():
        copied = min((info.cursors.get(queue, 0) for info in archivers), default=span.newest)
        cursor: Cursor | None = work.rows.get((Table.CURSOR, (queue,)))
        if cursor is not None and cursor.seen_ms > since_ms:
            copied = min(copied, cursor.at)
        oldest = oldest_kept(span, copied)
        if oldest > span.oldest:
            work.effects.trims[queue] = oldest
            count += oldest - span.oldest
            lost = oldest - max(span.oldest, copied + 1)
            if lost > 0:
                work.effects.count(queue, "", "history_dropped", lost)
    return count


def oldest_kept(span: LogSpan, copied: int) -> int:
    """The number of the oldest history record that stays.

    Records that are too old or too many are removed once all live archivers have ``copied`` them. Records
    that are not copied yet are removed only beyond ``HISTORY_HELD``.
    """
    wanted = max(span.young, span.newest - HISTORY_KEPT + 1)
    held = span.newest - HISTORY_HELD + 1
    return max(min(wanted, copied + 1), held, span.oldest)
