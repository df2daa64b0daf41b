"""The finished jobs of one queue: who ended first, and who is past its keep (``core.retention``).

Nothing here looks at all jobs: what a prune costs depends on what it removes, not on what is stored.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from heapq import heappop, heappush
from itertools import islice

from windlass.core.job import JobRecord
from windlass.core.options import GRACE_MS
from windlass.core.retention import keep_until, spare_until
from windlass.core.states import FINISHED, JobState

#: When it finished, its ``seq``, its id.
Entry = tuple[int, int, str]


class _Order:
    """Entries by time. Those that no longer count stay until the front has passed them."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._start = 0

    def add(self, entry: Entry) -> None:
        if not self._entries or entry > self._entries[-1]:
            self._entries.append(entry)
        else:
            insort(self._entries, entry, lo=self._start)

    def oldest_first(self, counts: Callable[[Entry], bool]) -> Iterator[Entry]:
        """Those that count."""
        while self._start < len(self._entries) and not counts(self._entries[self._start]):
            self._start += 1
        if self._start > 1_000 and self._start * 2 > len(self._entries):
            del self._entries[: self._start]
            self._start = 0
        return (entry for entry in islice(self._entries, self._start, None) if counts(entry))

    def newest(self, counts: Callable[[Entry], bool]) -> Entry | None:
        while len(self._entries) > self._start:
            if counts(self._entries[-1]):
                return self._entries[-1]
            self._entries.pop()
        return None


class Finished:
    """See the module."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Entry, JobState, int | None]] = {}
        self._sizes: Counter[JobState] = Counter()
        self._orders = {state: _Order() for state in FINISHED}
        self._aging: list[tuple[int, Entry]] = []
        self._overdue = _Order()

    def put(self, job: JobRecord) -> None:
        """Enter a job if it has finished, take it out if not."""
        state, job_id = job.state, job.id
        if state not in FINISHED:
            self.remove(job_id)
            return
        finished_ms = job.finished_ms or 0
        entry, until_ms = (finished_ms, job.seq, job_id), keep_until(job.options, state, finished_ms)
        before = self._known.get(job_id)
        if before == (entry, state, until_ms):
            return
        if before is None or before[:2] != (entry, state):
            self.remove(job_id)
            self._sizes[state] += 1
            self._orders[state].add(entry)
        self._known[job_id] = (entry, state, until_ms)
        if until_ms is not None:
            heappush(self._aging, (until_ms, entry))

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
        while self._aging and self._aging[0][0] <= now_ms:
            until_ms, entry = heappop(self._aging)
            known = self._known.get(entry[2])
            if known is not None and known[0] == entry and known[2] == until_ms:
                self._overdue.add(entry)
        return self._overdue.oldest_first(lambda entry: self._is_overdue(entry, now_ms))

    def _is_overdue(self, entry: Entry, now_ms: int) -> bool:
        known = self._known.get(entry[2])
        return known is not None and known[0] == entry and known[2] is not None and known[2] <= now_ms

    def _too_many(self, state: JobState, jobs: Mapping[str, JobRecord], now_ms: int) -> Iterator[Entry]:
        def counts(entry: Entry) -> bool:
            known = self._known.get(entry[2])
            return known is not None and known[0] == entry and known[1] is state

        newest = self._orders[state].newest(counts)
        count = jobs[newest[2]].options.keep_for(state).count if newest else None
        if count is None or self._sizes[state] <= count:
            return
        for entry in islice(self._orders[state].oldest_first(counts), self._sizes[state] - count):
            if entry[0] + GRACE_MS > now_ms:
                return  # those that follow finished later still
            if spare_until(jobs[entry[2]].options, entry[0]) <= now_ms:
                yield entry
