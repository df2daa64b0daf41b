"""Why attempts started more than once in a campaign of restarts (see ``tools.restarts``).

Each start is recorded with its delivery, the end of its handler, and what the worker reported afterwards. A
repeat is classified by the state of the earlier start.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from windlass import Job

#: The events of a worker after the store accepted a settlement.
SETTLED = ("completed", "retrying", "failed")


@dataclass
class Run:
    """One start of an attempt, by the monotonic clock."""

    delivery: int
    started: float
    ended: float | None = None
    #: When the store accepted its settlement, or refused it (``lease_lost``).
    settled: float | None = None
    refused: float | None = None


@dataclass
class Repeats:
    """All starts of a campaign, and when the broker was down."""

    runs: dict[tuple[str, int], list[Run]] = field(default_factory=dict)
    #: For each restart, when it began and when the broker answered again.
    outages: list[tuple[float, float]] = field(default_factory=list)

    def start(self, job: Job[Any]) -> Run:
        run = Run(job.deliveries, time.monotonic())
        self.runs.setdefault((job.id, job.attempt), []).append(run)
        return run

    def settle(self, job: Job[Any]) -> None:
        """Record that the store accepted a settlement."""
        self._find(job).settled = time.monotonic()

    def refuse(self, job: Job[Any]) -> None:
        """Record that the store refused a settlement."""
        self._find(job).refused = time.monotonic()

    def _find(self, job: Job[Any]) -> Run:
        runs = self.runs[job.id, job.attempt]
        return next((run for run in runs if run.delivery == job.deliveries), runs[-1])

    @property
    def starts(self) -> int:
        return sum(len(runs) for runs in self.runs.values())

    @property
    def count(self) -> int:
        """The number of repeats."""
        return self.starts - len(self.runs)

    def causes(self) -> Counter[str]:
        """The number of repeats by cause."""
        return Counter(
            self._cause(before, after)
            for runs in self.runs.values()
            for before, after in itertools.pairwise(runs)
        )

    def _cause(self, before: Run, after: Run) -> str:
        crossed = [down for down, up in self.outages if before.started < up and down < after.started]
        where = f"over {len(crossed)} restart(s)" if crossed else "without a restart"
        same = ", as the same delivery" if before.delivery == after.delivery else ""
        return f"{self._state(before, after)}, {where}{same}"

    def _state(self, before: Run, after: Run) -> str:
        """The state of a start when its attempt started again."""
        at = after.started
        if before.settled is not None and before.settled <= at:
            return "settled"
        if before.ended is None or before.ended > at:
            return "running"
        if before.refused is not None and before.refused <= at:
            return "ended and refused"
        return "ended, not yet settled"

    def table(self) -> str:
        rows = [f"{count:6}  {cause}" for cause, count in self.causes().most_common()]
        return "\n".join(["repeats by what had become of the start before:", *rows]) if rows else ""
