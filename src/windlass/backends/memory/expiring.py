"""Which jobs of a queue may end because their time passed, the earliest first."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.backends.memory.order import Order
from windlass.core.job import JobRecord
from windlass.core.states import PENDING

#: When it expires, its ``seq``, its id.
_Entry = tuple[int, int, str]


class Expiring:
    """Pending jobs by their ``expires_ms``."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._order: Order[_Entry] = Order(lambda entry: self._entries.get(entry[2]) == entry)

    def put(self, job: JobRecord) -> None:
        """Enter a job, or take it out when it is not pending or may wait for ever."""
        if job.expires_ms is None or job.state not in PENDING:
            self.remove(job.id)
            return
        entry = (job.expires_ms, job.seq, job.id)
        if self._entries.get(job.id) != entry:
            self._entries[job.id] = entry
            self._order.add(entry)
            self._order.shrink(len(self._entries))

    def remove(self, job_id: str) -> None:
        if self._entries:
            self._entries.pop(job_id, None)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._entries)

    def __iter__(self) -> Iterator[_Entry]:
        return iter(self._order)
