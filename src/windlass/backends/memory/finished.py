"""The finished jobs of one queue: who ended first, and who is past its keep (``core.retention``).

Nothing here looks at all jobs: what a prune costs depends on what it removes, not on what is stored.
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

#: When it finished and its ``seq``.
_Key = tuple[int, int]


class Finished:
    """See the module."""

    def __init__(self) -> None:
        #: The jobs in each state, with when they are too old (None: never).
        self._orders: dict[JobState, Order[int | None]] = {state: Order() for state in FINISHED}
        #: When a job is too old, and its entry; some count no more.
        self._aging: list[tuple[int, Entry[int | None]]] = []
        #: Those that were too old at the last look, with since when.
        self._overdue: Order[int] = Order()

    def put(self, job: JobRecord) -> None:
        """Enter a job that has finished, which is not there."""
        job_id, finished_ms = job.id, job.finished_ms or 0
        key, until_ms = (finished_ms, job.seq), keep_until(job.options, job.state, finished_ms)
        order = self._orders[job.state]
        order.put(key, job_id, until_ms)
        if until_ms is not None:
            heappush(self._aging, (until_ms, order.counted[job_id]))

    def remove(self, job_id: str) -> None:
        """Forget a job, if it is there."""
        for order in self._orders.values():
            order.counted.pop(job_id, None)
        self._overdue.remove(job_id)

    def past_keep(self, jobs: Mapping[str, JobRecord], now_ms: int, limit: int) -> list[str]:
        """The ids of jobs that may go, oldest first: as many as ``limit``, or all if there are fewer."""
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
                return  # those that follow finished later still
            if spare_until(jobs[job_id].options, key[0]) <= now_ms:
                yield key, job_id
