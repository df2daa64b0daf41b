"""Errors of failed and retrying jobs, by fingerprint.

To count them, their records must be read. A summary of each queue is cached while the queue's counters show
that no job has failed since and none has left. So a page that polls every few seconds reads only the queues
that have changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from windlass.api.app import Windlass
from windlass.backend import requests as rq
from windlass.core.job import AttemptOutcome, CounterRow, ErrorInfo, JobRecord, JobRef, QueueInfo
from windlass.core.order import Sort
from windlass.core.patterns import matches
from windlass.core.states import JobState
from windlass.dashboard.masking import Mask
from windlass.dashboard.shapes.health import ErrorGroup, ErrorSample

_HOUR_MS = 3_600_000
_HOURS = 24
#: Maximum number of tasks and queues that one group names.
_NAMES = 20
#: Maximum number of fingerprints that are counted.
_GROUPS = 10_000
#: Jobs that are read for one answer, and for each queue at least.
_SCAN = 20_000
_STEP = 1_000
#: Jobs in cached summaries of all queues together, and how long a summary is valid.
_KEPT = 100_000
_KEPT_MS = 60_000

#: Counters that do not concern failed and retrying jobs.
_HARMLESS = frozenset({"enqueued", AttemptOutcome.COMPLETED.value})
_ORDERS = ((JobState.FAILED, Sort.FINISHED), (JobState.RETRYING, Sort.DUE))
#: Counters of a queue: while they are equal, no job has become failed or retrying, and none has left.
_Stamp = tuple[int, int, int, int]


class _Sample(NamedTuple):
    """The newest job with an error."""

    ref: JobRef
    task: str
    error: ErrorInfo


class _Fact(NamedTuple):
    """The last error of one job."""

    fingerprint: str
    at_ms: int
    task: str
    state: str


@dataclass(slots=True)
class QueueErrors:
    """The cached summary of one queue."""

    stamp: _Stamp
    read_ms: float
    facts: list[_Fact] = field(default_factory=list)
    #: Keyed by fingerprint and task.
    newest: dict[tuple[str, str], _Sample] = field(default_factory=dict)
    scanned: int = 0
    #: Whether all jobs were read.
    done: bool = True

    def add(self, record: JobRecord) -> None:
        """Add the last error of a job."""
        self.scanned += 1
        if not record.errors:
            return
        error = record.errors[-1]
        self.facts.append(_Fact(error.fingerprint, error.at_ms, record.task, record.state.value))
        key = (error.fingerprint, record.task)
        known = self.newest.get(key)
        if known is None or error.at_ms > known.error.at_ms:
            self.newest[key] = _Sample(record.ref, record.task, error)


class ErrorsSeen:
    """The errors of a store, cached by queue and number of hours."""

    def __init__(self, app: Windlass) -> None:
        self._app = app
        self._read: dict[tuple[str, int], QueueErrors] = {}

    async def of(
        self, infos: Sequence[QueueInfo], counters: Iterable[CounterRow], hours: int
    ) -> dict[str, QueueErrors]:
        """The errors of these queues in the last ``hours``."""
        runs: Counter[str] = Counter()
        for row in counters:
            if row.outcome not in _HARMLESS:
                runs[row.queue] += row.total
        holding = [info for info in infos if any(info.counts.get(state.value) for state, _ in _ORDERS)]
        most = max(_SCAN // max(len(holding), 1), _STEP)
        found: dict[str, QueueErrors] = {}
        for info in holding:
            counts = [info.counts.get(state.value, 0) for state, _ in _ORDERS]
            stamp = (runs[info.name], counts[0], counts[1], most)
            found[info.name] = await self._of_queue(info.name, hours, stamp)
        return found

    async def _of_queue(self, queue: str, hours: int, stamp: _Stamp) -> QueueErrors:
        now_ms = self._app.clock.monotonic_ms()
        known = self._read.pop((queue, hours), None)
        if known is None or known.stamp != stamp or now_ms - known.read_ms > _KEPT_MS:
            known = await self._look(queue, self._app.clock.now_ms() - hours * _HOUR_MS, stamp)
        self._read[queue, hours] = known
        while len(self._read) > 1 and sum(len(one.facts) + 1 for one in self._read.values()) > _KEPT:
            self._read.pop(next(iter(self._read)))
        return known

    async def _look(self, queue: str, since_ms: int, stamp: _Stamp) -> QueueErrors:
        found = QueueErrors(stamp, self._app.clock.monotonic_ms())
        *_, most = stamp
        for state, sort in _ORDERS:
            request = rq.ListJobs(queue=queue, states=[state], sort=sort, limit=_STEP)
            while found.scanned < most:
                page = await self._app.store.execute(request)
                records = [one for one in page.jobs if not _is_past(one, since_ms)]
                for record in records:
                    found.add(record)
                request.cursor = page.cursor if len(records) == len(page.jobs) else None
                if request.cursor is None:
                    break
            else:
                found.done = False
        return found


def _is_past(record: JobRecord, since_ms: int) -> bool:
    """Whether a listing of failed jobs by end time has left the period."""
    return record.state is JobState.FAILED and (record.finished_ms or 0) < since_ms


@dataclass(slots=True)
class _Group:
    newest: _Sample
    count: int = 0
    first_ms: int = 0
    tasks: Counter[str] = field(default_factory=Counter)
    queues: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    hours: Counter[int] = field(default_factory=Counter)


class ErrorTally:
    """Counts the last error of each job since ``since_ms``; with ``task`` (``*``, ``?`` match) only its."""

    def __init__(self, mask: Mask, now_ms: int, since_ms: int, task: str | None = None) -> None:
        self._mask = mask
        self._task = task
        self._hour = now_ms // _HOUR_MS
        self._since_ms = since_ms
        self._groups: dict[str, _Group] = {}
        self.scanned = 0
        #: Whether all jobs were read.
        self.done = True

    def add(self, queue: str, errors: QueueErrors) -> None:
        """Count the errors of a queue."""
        self.scanned += errors.scanned
        self.done = self.done and errors.done
        for fact in errors.facts:
            if fact.at_ms >= self._since_ms and (self._task is None or matches(fact.task, self._task)):
                self._count(queue, fact, errors.newest[fact.fingerprint, fact.task])

    def _count(self, queue: str, fact: _Fact, newest: _Sample) -> None:
        group = self._groups.get(fact.fingerprint)
        if group is None:
            if len(self._groups) >= _GROUPS:
                self.done = False
                return
            group = self._groups[fact.fingerprint] = _Group(newest, first_ms=fact.at_ms)
        if newest.error.at_ms > group.newest.error.at_ms:
            group.newest = newest
        group.count += 1
        group.first_ms = min(group.first_ms, fact.at_ms)
        group.tasks[fact.task] += 1
        group.queues[queue] += 1
        group.states[fact.state] += 1
        group.hours[fact.at_ms // _HOUR_MS] += 1

    def groups(self) -> list[ErrorGroup]:
        """All groups, the most frequent first."""
        found = sorted(self._groups.values(), key=lambda group: (-group.count, -group.newest.error.at_ms))
        return [self._entry(group) for group in found]

    def _entry(self, group: _Group) -> ErrorGroup:
        ref, task, error = group.newest
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
                queue=ref.queue,
                id=ref.id,
                task=task,
                message=self._mask.text(error.message),
                traceback=self._mask.text(error.traceback),
                at_ms=error.at_ms,
            ),
        )
