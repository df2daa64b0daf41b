"""Errors of jobs, counted by fingerprint while a listing goes by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from windlass.core.job import ErrorInfo, JobRecord
from windlass.core.states import JobState
from windlass.dashboard.masking import Mask
from windlass.dashboard.shapes.health import ErrorGroup, ErrorSample

_HOUR_MS = 3_600_000
_HOURS = 24
#: Most tasks and queues that one group names.
_NAMES = 20
#: Fingerprints that are counted; the rest is not.
_GROUPS = 10_000


@dataclass(slots=True)
class _Group:
    newest: JobRecord
    error: ErrorInfo
    count: int = 0
    first_ms: int = 0
    tasks: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    hours: Counter[int] = field(default_factory=Counter)


class ErrorTally:
    """The last error of each job, from ``since_ms`` on."""

    def __init__(self, mask: Mask, now_ms: int, since_ms: int) -> None:
        self._mask = mask
        self._hour = now_ms // _HOUR_MS
        self._since_ms = since_ms
        self._groups: dict[str, _Group] = {}
        self.scanned = 0
        #: Whether all jobs were looked at.
        self.done = True

    def is_past(self, record: JobRecord) -> bool:
        """Whether a listing of failed jobs by their end has left the span."""
        return record.state is JobState.FAILED and (record.finished_ms or 0) < self._since_ms

    def add(self, records: Iterable[JobRecord]) -> None:
        """Count these jobs."""
        for record in records:
            self.scanned += 1
            error = record.errors[-1] if record.errors else None
            if error is not None and error.at_ms >= self._since_ms:
                self._count(record, error)

    def _count(self, record: JobRecord, error: ErrorInfo) -> None:
        group = self._groups.get(error.fingerprint)
        if group is None:
            if len(self._groups) >= _GROUPS:
                self.done = False
                return
            group = self._groups[error.fingerprint] = _Group(record, error, first_ms=error.at_ms)
        if error.at_ms > group.error.at_ms:
            group.newest, group.error = record, error
        group.count += 1
        group.first_ms = min(group.first_ms, error.at_ms)
        group.tasks[record.task] += 1
        group.queues[record.queue] += 1
        group.states[record.state.value] += 1
        group.hours[error.at_ms // _HOUR_MS] += 1

    def groups(self) -> list[ErrorGroup]:
        """All that were counted, the most frequent first."""
        found = sorted(self._groups.values(), key=lambda group: (-group.count, -group.error.at_ms))
        return [self._entry(group) for group in found]

    def _entry(self, group: _Group) -> ErrorGroup:
        error, record = group.error, group.newest
        return ErrorGroup(
            fingerprint=error.fingerprint,
            error_class=error.error_class,
            count=group.count,
            first_ms=group.first_ms,
            last_ms=error.at_ms,
            tasks=[name for name, _ in group.tasks.most_common(_NAMES)],
            queues=[name for name, _ in group.queues.most_common(_NAMES)],
            states=dict(group.states),
            per_hour=[group.hours[hour] for hour in range(self._hour - _HOURS + 1, self._hour + 1)],
            sample=ErrorSample(
                queue=record.queue,
                id=record.id,
                task=record.task,
                message=self._mask.text(error.message),
                traceback=self._mask.text(error.traceback),
                at_ms=error.at_ms,
            ),
        )
