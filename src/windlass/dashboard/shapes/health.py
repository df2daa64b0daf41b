"""Health, and errors by fingerprint."""

from __future__ import annotations

from windlass.dashboard.shapes.base import Shape
from windlass.dashboard.shapes.figures import LakeState
from windlass.dashboard.shapes.workers import LostWorker


class FindingEntry(Shape):
    """One finding of the checks.

    ``check`` is its stable name, such as ``unserved``; ``level`` is ``warning`` or ``problem``.
    """

    level: str
    check: str
    text: str
    advice: str
    queue: str | None
    worker: str | None
    group: str | None
    #: How many jobs are affected, if known.
    count: int | None
    #: Since when, if known.
    since_ms: int | None


class HealthReport(Shape):
    """The findings of ``windlass doctor`` that can change from minute to minute."""

    healthy: bool
    at_ms: int
    findings: list[FindingEntry]
    lost_workers: list[LostWorker]
    #: Null: this dashboard has no lake.
    lake: LakeState | None = None


class ErrorSample(Shape):
    """The newest job with such an error."""

    queue: str
    id: str
    task: str
    message: str
    traceback: str
    at_ms: int


class ErrorGroup(Shape):
    """Errors that differ only in numbers and quoted values."""

    fingerprint: str
    error_class: str
    #: Jobs that failed or wait for a retry with this error.
    count: int
    first_ms: int
    last_ms: int
    tasks: list[str]
    queues: list[str]
    #: Jobs by state.
    states: dict[str, int]
    #: Jobs by hour of their last error, oldest first, up to the current one (24 numbers).
    per_hour: list[int]
    sample: ErrorSample


class ErrorGroups(Shape):
    """Errors of failed and retrying jobs, the most frequent first.

    ``done`` false: only the newest of each queue were read, ``scanned`` in all.
    """

    groups: list[ErrorGroup]
    scanned: int
    done: bool
