"""The finished jobs of one queue, ordered by when they ended, and which may be removed (``core.retention``).

The cost of a prune depends on how many jobs it removes, not on how many are stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice

from windlass.backends.memory.order import Entry, Order
from windlass.core.job import JobRecord
from windlass.core.option_values import GRACE_MS
from windlass.core.retention import keep_until, spare_until
from windlass.core.states import FINISHED, JobState

#: The time when a job finished, and its ``seq``.
_Key = tuple[int, int]


class Finished:
    """An index of the finished jobs of one queue."""

    def __init__(self) -> None:
        #: The jobs in each state, with the time when each becomes too old (None: never).
        self._orders: dict[JobState, Order[int | None]] = {state: Order() for state in FINISHED}
        #: A heap of the time when a job becomes too old, and its entry. Some entries are outdated.
        self._aging: list[tuple[int, Entry[int | None]]] = []
        #: Jobs that have left the heap because they were too old, with the time since when.
        self._overdue: Order[int] = Order()

    def put(self, job: JobRecord) -> None:
        """Add a finished job that is not in the index."""
        job_id, finished_ms = job.id, job.finished_ms or 0
        key, until_ms = (finished_ms, job.seq), keep_until(job.options, job.state, finished_ms)
        order = self._orders[job.state]
        order.put(key, job_id, until_ms)
        if until_ms is not None:
            heappush(self._aging, (until_ms, order.counted[job_id]))

    def remove(self, job_id: str) -> None:
        """Remove a job, if it is in the index."""
        for order in self._orders.values():
            order.counted.pop(job_id, None)
        self._overdue.remove(job_id)

    def past_keep(self, jobs: Mapping[str, JobRecord], now_ms: int, limit: int) -> list[str]:
        """The ids of up to ``limit`` jobs that may be removed, oldest first."""
        found = set(islice(self._too_old(now_ms), limit))
        for state in FINISHED:
            found.update(islice(self._too_many(state, jobs, now_ms), limit))
        return [job_id for _, job_id in sorted(found)[:limit]]

    def _too_old(self, now_ms: int) -> Iterator[tuple[_Key, str]]:
        while self._aging and self._aging[0][0] <= now_ms:
            until_ms, entry = heappop(self._aging)
            if any(order.counted.get(entry[1]) is entry for order in self._orders.values()):
                self._overdue.put(entry[0], entry[1], until_ms)
        return ((key, job_id) for key, job_id, until_ms in self._overdue if until_ms <= now_ms)

    def _too_many(
        self, state: JobState, jobs: Mapping[str, JobRecord], now_ms: int
    ) -> Iterator[tuple[_Key, str]]:
        order = self._orders[state]
        newest = next(order.backwards(), None)
        count = jobs[newest[1]].options.keep_for(state).count if newest else None
        if count is None or len(order.counted) <= count:
            return
        for key, job_id, _ in islice(order, len(order.counted) - count):
            if key[0] + GRACE_MS > now_ms:
                return  # the following jobs finished even later
            if spare_until(jobs[job_id].options, key[0]) <= now_ms:
                yield key, job_id
