"""Copies of records for callers, and the filter of listings. Verbs and stores use them."""

from __future__ import annotations

from collections.abc import Mapping

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core import limit_rules as lm
from windlass.core.job import JobRecord
from windlass.core.order import Sort, place_of
from windlass.core.patterns import matches
from windlass.core.transitions import copy
from windlass.engine.effects import GroupRow, QueueRow


def view(job: JobRecord, now_ms: int, *, late: bool = False) -> JobRecord:
    """A copy for the caller, without a result that has expired (unless ``late``)."""
    shown = copy(job)
    shown.errors = list(job.errors)
    if job.turn < 0:
        shown.turn = 0
    if not late and shown.result_until_ms is not None and shown.result_until_ms <= now_ms:
        shown.result = None
    return shown


def limits_view(
    queue: QueueRow, starts: list[int], groups: Mapping[str, GroupRow], now_ms: int
) -> lrq.Limits:
    """The limits of a queue and of some of its groups, without what has ended."""
    return lrq.Limits(
        queue=lm.without_past(queue.limits, now_ms),
        hold_until_ms=lm.hold_left(queue.hold_until_ms, now_ms),
        every_group=queue.every_group,
        groups={
            name: lm.GroupSettings(
                limits=row.own, paused=row.paused, hold_until_ms=lm.hold_left(row.hold_until_ms, now_ms)
            )
            for name, row in groups.items()
        },
        opens_in_ms=lm.opens_in(queue.limits, starts, queue.hold_until_ms, now_ms),
    )


def is_wanted(job: JobRecord, request: rq.ListJobs) -> bool:
    """Whether a job passes the filters of a listing. The store applies the position where the page begins."""
    return (
        (not request.states or job.state in request.states)
        and (request.sort is Sort.ADDED or place_of(job, request.sort) is not None)
        and (request.task is None or matches(job.task, request.task))
        and (request.tag is None or request.tag in job.options.tags)
        and (request.group is None or job.options.group == request.group)
        and (request.worker is None or job.worker == request.worker)
        and (not request.tops or job.options.root == "/".join(job.ref))
        and _ended_within(job, request.finished_from_ms, request.finished_to_ms)
        and _has_error(job, request.error_class, request.fingerprint)
    )


def _ended_within(job: JobRecord, from_ms: int | None, to_ms: int | None) -> bool:
    if from_ms is None and to_ms is None:
        return True
    at_ms = job.finished_ms
    return at_ms is not None and (from_ms is None or at_ms >= from_ms) and (to_ms is None or at_ms < to_ms)


def _has_error(job: JobRecord, error_class: str | None, fingerprint: str | None) -> bool:
    """Whether the job's last error has this class and fingerprint (None: any)."""
    if error_class is None and fingerprint is None:
        return True
    if not job.errors:
        return False
    last = job.errors[-1]
    return error_class in (None, last.error_class) and fingerprint in (None, last.fingerprint)
