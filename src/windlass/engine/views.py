"""What callers are shown of records; shared by verbs and by the stores' listings."""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller

from windlass.core.job import JobRecord

#: ``copy.copy`` without the search for a way to copy.
_copy: Callable[[JobRecord], JobRecord] = methodcaller("__copy__")


def view(job: JobRecord, now_ms: int, *, late: bool = False) -> JobRecord:
    """A copy for the caller, without a result that is past its time (unless ``late``)."""
    shown = _copy(job)
    shown.errors = list(job.errors)
    if job.turn < 0:
        shown.turn = 0
    if not late and shown.result_until_ms is not None and shown.result_until_ms <= now_ms:
        shown.result = None
    return shown
