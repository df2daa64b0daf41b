"""Roll-ups of the history: attempts by task, minute and hour, as integers that can be added up.

A row counts the attempts that ended in its window by outcome, and has histograms of their waits and run
times. Rows can be merged, in any order, into the figures of a longer time.

Rows without a task (``BACKLOG``) have samples of the waiting jobs of the whole queue, because the history
does not contain jobs that are not claimed yet.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable
from typing import Literal

import msgspec

from windlass.core import histogram
from windlass.core.job import AttemptOutcome, AttemptRecord, QueueInfo
from windlass.core.states import JobState

Step = Literal["minute", "hour"]

STEP_MS: dict[Step, int] = {"minute": 60_000, "hour": 3_600_000}
#: How long roll-ups are kept.
KEPT_MS: dict[Step, int] = {"minute": 90 * 86_400_000, "hour": 5 * 365 * 86_400_000}
#: The maximum number of history records that are rolled up at once.
RECORDS_PER_STEP = 1_000
#: The newest marks that are kept.
MARKS_KEPT = 1_000

#: The task of rows that hold samples of a queue's backlog; no task has this name.
BACKLOG = ""
#: Outcomes of attempts that ran to their end, successfully or not.
RAN = (AttemptOutcome.COMPLETED, AttemptOutcome.FAILED, AttemptOutcome.RETRYING)


class Measure(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Milliseconds of many attempts: how many, their sum, the longest, and a histogram by bucket."""

    count: int = 0
    sum_ms: int = 0
    max_ms: int = 0
    buckets: dict[int, int] = {}

    def add(self, ms: int, count: int = 1) -> None:
        """Add a value ``count`` times. A negative value (the clock was set back) counts as zero."""
        ms = max(ms, 0)
        bucket = histogram.bucket_of(ms)
        self.count += count
        self.sum_ms += ms * count
        self.max_ms = max(self.max_ms, ms)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    def merge(self, other: Measure) -> None:
        """Add all values of another measure."""
        self.count += other.count
        self.sum_ms += other.sum_ms
        self.max_ms = max(self.max_ms, other.max_ms)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    @property
    def average_ms(self) -> float | None:
        return self.sum_ms / self.count if self.count else None

    def percentile_ms(self, per_mille: int) -> float | None:
        """The value that ``per_mille`` thousandths do not exceed, within 2 %; None without values."""
        found = histogram.percentile(sorted(self.buckets.items()), per_mille)
        return None if found is None else min(found, float(self.max_ms))


class MetricsRow(msgspec.Struct, kw_only=True):
    """The attempts of one task of a queue in one time window."""

    #: The beginning of the window, in milliseconds since 1970.
    start_ms: int
    task: str
    #: Attempts by outcome, as in the history.
    outcomes: dict[str, int] = {}
    wait: Measure = msgspec.field(default_factory=Measure)
    duration: Measure = msgspec.field(default_factory=Measure)
    #: Samples of how many jobs waited, and of how long the first of them had waited, in milliseconds.
    depth: Measure = msgspec.field(default_factory=Measure)
    age: Measure = msgspec.field(default_factory=Measure)

    def merge(self, other: MetricsRow) -> None:
        """Add the figures of another row."""
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        self.wait.merge(other.wait)
        self.duration.merge(other.duration)
        self.depth.merge(other.depth)
        self.age.merge(other.age)

    @property
    def runs(self) -> int:
        """Attempts that ran to their end."""
        return sum(self.outcomes.get(outcome, 0) for outcome in RAN)


class MetricsCursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far a queue's history is rolled up, and the range of its log."""

    queue: str
    at: int
    newest: int
    oldest: int


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A label on the timeline of the metrics, such as a deploy."""

    id: str
    at_ms: int
    label: str


def window_start(at_ms: int, step: Step) -> int:
    """The start of the window that contains this time."""
    return at_ms - at_ms % STEP_MS[step]


def rows_of(records: Iterable[AttemptRecord]) -> list[MetricsRow]:
    """The minute rows of some attempts of one queue, by time and task."""
    rows: dict[tuple[int, str], MetricsRow] = {}
    minute = STEP_MS["minute"]
    alike = Counter(  # where much happens, much is alike
        [(one.finished_ms // minute, one.task, one.outcome, one.wait_ms, one.duration_ms) for one in records]
    )
    for (start, task, outcome, wait_ms, duration_ms), count in alike.items():
        row = rows.get((start, task))
        if row is None:
            row = rows[start, task] = MetricsRow(start_ms=start * minute, task=task)
        row.outcomes[str(outcome)] = row.outcomes.get(str(outcome), 0) + count
        if wait_ms is not None:
            row.wait.add(wait_ms, count)
        if duration_ms is not None:
            row.duration.add(duration_ms, count)
    return [rows[key] for key in sorted(rows)]


def backlog_of(info: QueueInfo, at_ms: int) -> MetricsRow:
    """One sample of a queue's waiting jobs, as a minute row."""
    row = MetricsRow(start_ms=window_start(at_ms, "minute"), task=BACKLOG)
    row.depth.add(info.counts.get(JobState.WAITING.value, 0))
    row.age.add(0 if info.oldest_ready_ms is None else at_ms - info.oldest_ready_ms)
    return row


def merged(rows: Iterable[MetricsRow], step: Step) -> list[MetricsRow]:
    """Merge rows into windows of ``step``, sorted by time and task."""
    found: dict[tuple[int, str], MetricsRow] = {}
    for row in rows:
        key = (window_start(row.start_ms, step), row.task)
        if key in found:
            found[key].merge(row)
        else:
            found[key] = copy.deepcopy(row)
            found[key].start_ms = key[0]
    return [found[key] for key in sorted(found)]


def total(rows: Iterable[MetricsRow], task: str = "") -> MetricsRow:
    """The sum of all rows."""
    result = MetricsRow(start_ms=0, task=task)
    for row in rows:
        result.merge(row)
    return result
