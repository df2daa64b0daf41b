"""Lifetime totals from the store's counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from windlass.core.rollups import RAN
from windlass.dashboard.store_view import StoreView

_RAN = {outcome.value for outcome in RAN}
_FAILED = {"failed", "retrying"}


@dataclass(slots=True)
class Totals:
    """Attempts by queue and outcome since the store was created."""

    queues: dict[str, dict[str, int]] = field(default_factory=dict)

    def of(self, queue: str) -> tuple[int, int]:
        """The number of runs, and of failed runs (final or to be retried)."""
        outcomes = self.queues.get(queue, {})
        return _sum(outcomes, _RAN), _sum(outcomes, _FAILED)

    def all(self) -> dict[str, int]:
        """The totals of all queues, by outcome."""
        found: dict[str, int] = {}
        for outcomes in self.queues.values():
            for outcome, count in outcomes.items():
                found[outcome] = found.get(outcome, 0) + count
        return found

    def runs(self) -> tuple[int, int]:
        """Runs and failed runs of all queues."""
        everything = self.all()
        return _sum(everything, _RAN), _sum(everything, _FAILED)


def _sum(outcomes: dict[str, int], names: set[str]) -> int:
    return sum(count for outcome, count in outcomes.items() if outcome in names)


async def queue_totals(store_view: StoreView, queue: str | None = None) -> Totals:
    """The totals of all visible queues, or of one."""
    totals = Totals()
    for row in await store_view.counters(queue):
        outcomes = totals.queues.setdefault(row.queue, {})
        outcomes[row.outcome] = outcomes.get(row.outcome, 0) + row.total
    return totals
