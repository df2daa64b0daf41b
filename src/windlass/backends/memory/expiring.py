"""Which jobs of a queue may end because their time passed, the earliest first."""

from __future__ import annotations

import heapq

from windlass.core.job import JobRecord
from windlass.core.states import PENDING

#: Entries that no longer count may be as many as those that do, and so many more.
_STALE = 64


class Expiring:
    """Pending jobs by their ``expires_ms``."""

    def __init__(self) -> None:
        # The heap keeps stale entries; an entry counts only while the table names it.
        self._heap: list[tuple[int, int, str]] = []
        self._entries: dict[str, tuple[int, int, str]] = {}

    def put(self, job: JobRecord) -> None:
        """Enter a job, or take it out when it is not pending or may wait for ever."""
        if job.expires_ms is None or job.state not in PENDING:
            self.remove(job.id)
            return
        entry = (job.expires_ms, job.seq, job.id)
        if self._entries.get(job.id) != entry:
            self._entries[job.id] = entry
            heapq.heappush(self._heap, entry)
            self._tidy()

    def remove(self, job_id: str) -> None:
        self._entries.pop(job_id, None)

    def head(self) -> tuple[int, int, str] | None:
        """When the first one ends, its number and its id; left in place."""
        while self._heap and self._entries.get(self._heap[0][2]) != self._heap[0]:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _STALE:
            self._heap = sorted(self._entries.values())
