"""What callers are shown of records; shared by verbs and by the stores' listings."""

from __future__ import annotations

from copy import copy

from windlass.core.job import JobRecord


def view(job: JobRecord, now_ms: int, *, late: bool = False) -> JobRecord:
    """A copy for the caller, without a result that is past its time (unless ``late``)."""
    shown = copy(job)
    shown.errors = list(job.errors)
    shown.turn = max(job.turn, 0)
    if not late and shown.result_until_ms is not None and shown.result_until_ms <= now_ms:
        shown.result = None
    return shown
