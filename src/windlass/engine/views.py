"""What callers are shown of records; shared by verbs and by the stores' listings."""

from __future__ import annotations

from windlass.backend import requests as rq
from windlass.core.job import JobRecord
from windlass.core.order import Sort, place_of
from windlass.core.patterns import matches
from windlass.core.transitions import copy


def view(job: JobRecord, now_ms: int, *, late: bool = False) -> JobRecord:
    """A copy for the caller, without a result that is past its time (unless ``late``)."""
    shown = copy(job)
    shown.errors = list(job.errors)
    if job.turn < 0:
        shown.turn = 0
    if not late and shown.result_until_ms is not None and shown.result_until_ms <= now_ms:
        shown.result = None
    return shown


def is_wanted(job: JobRecord, request: rq.ListJobs) -> bool:
    """Whether a listing asks for this job; where it begins is left to the store."""
    return (
        (not request.states or job.state in request.states)
        and (request.sort is Sort.ADDED or place_of(job, request.sort) is not None)
        and (request.task is None or matches(job.task, request.task))
        and (request.tag is None or request.tag in job.options.tags)
        and (
            request.error_class is None
            or (bool(job.errors) and job.errors[-1].error_class == request.error_class)
        )
    )
