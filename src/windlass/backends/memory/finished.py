"""The finished jobs of one queue: who ended first, and who is past its keep (``core.retention``).

Nothing here looks at all jobs: what a prune costs depends on what it removes, not on what is stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice

from windlass.backends.memory.order import Order
from windlass.core.job import JobRecord
from windlass.core.options import GRACE_MS
from windlass.core.retention import keep_until, spare_until
from windlass.core.states import FINISHED, JobState

#: When it finished, its ``seq``, its id.
Entry = tuple[int, int, str]


class Finished:
    """See the module."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Entry, JobState, int | None]] = {}
        self._sizes: Counter[JobState] = Counter()
        self._orders = {state: self._order(state) for state in FINISHED}
        self._aging: list[tuple[int, Entry]] = []
        #: Those whose keep had passed at ``_now_ms``.
        self._overdue: Order[Entry] = Order(self._is_overdue)
        self._now_ms = 0

    def put(self, job: JobRecord) -> None:
        """Enter a job if it has finished, take it out if not."""
        before = self._known.get(job.id)
        if job.state not in FINISHED:
            if before is not None:
                self.remove(job.id)
            return
        finished_ms = job.finished_ms or 0
        entry = (finished_ms, job.seq, job.id)
        now = (entry, job.state, keep_until(job.options, job.state, finished_ms))
        if now == before:
            return
        if before is None or before[:2] != now[:2]:
            self.remove(job.id)
            self._sizes[job.state] += 1
            self._orders[job.state].add(entry)
        self._known[job.id] = now
        if now[2] is not None:
            heappush(self._aging, (now[2], entry))

    def remove(self, job_id: str) -> None:
        """Forget a job, if it is there."""
        before = self._known.pop(job_id, None)
        if before is not None:
            self._sizes[before[1]] -= 1

    def past_keep(self, jobs: Mapping[str, JobRecord], now_ms: int, limit: int) -> list[Entry]:
        """Jobs that may go, oldest first: as many as ``limit``, or all if there are fewer."""
        found = set(islice(self._too_old(now_ms), limit))
        for state in FINISHED:
            found.update(islice(self._too_many(state, jobs, now_ms), limit))
        return sorted(found)[:limit]

    def _too_old(self, now_ms: int) -> Iterator[Entry]:
        self._now_ms = now_ms
        while self._aging and self._aging[0][0] <= now_ms:
            _, entry = heappop(self._aging)
            if self._is_overdue(entry):
                self._overdue.add(entry)
        return iter(self._overdue)

    def _is_overdue(self, entry: Entry) -> bool:
        known = self._known.get(entry[2])
        return known is not None and known[0] == entry and known[2] is not None and known[2] <= self._now_ms

    def _too_many(self, state: JobState, jobs: Mapping[str, JobRecord], now_ms: int) -> Iterator[Entry]:
        order, size = self._orders[state], self._sizes[state]
        newest = next(order.backwards(), None)
        count = jobs[newest[2]].options.keep_for(state).count if newest else None
        if count is None or size <= count:
            return
        for entry in islice(order, size - count):
            if entry[0] + GRACE_MS > now_ms:
                return  # those that follow finished later still
            if spare_until(jobs[entry[2]].options, entry[0]) <= now_ms:
                yield entry

    def _order(self, state: JobState) -> Order[Entry]:
        def counts(entry: Entry) -> bool:
            known = self._known.get(entry[2])
            return known is not None and known[0] == entry and known[1] is state

        return Order(counts)
