"""The waiting jobs of a queue in the order in which they start: priority, turn, place (``engine.saving``)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from windlass.backends.memory.order import Entry, Order
from windlass.core.job import JobRecord
from windlass.core.states import JobState

_WAITING = JobState.WAITING


class WaitingJobs:
    """The waiting jobs of one queue, by (-priority, turn, place)."""

    def __init__(self) -> None:
        self._waiting: dict[str, Entry[JobRecord]] = {}
        self._orders: dict[int, Order[JobRecord]] = {}  # by -priority
        self._priorities: list[int] = []  # negated: highest first
        #: The waiting jobs of each group and priority, and the key of each job. None until turns are needed.
        self._tails: dict[tuple[int, str], Order[JobRecord]] | None = None
        self._tail_of: dict[str, tuple[int, str]] = {}

    def put(self, job: JobRecord) -> None:
        """Add or move ``job`` if it is waiting; otherwise remove it."""
        if job.id in self._waiting:
            self.remove(job.id)
        if job.state is not _WAITING:
            return
        negated = -job.priority
        order = self._orders.get(negated)
        if order is None:
            order = self._orders[negated] = Order(self._waiting)
            insort(self._priorities, negated)
        order.put((negated, job.turn, job.place), job.id, job)
        if self._tails is not None:
            self._add_to_tail(self._waiting[job.id])

    def remove(self, job_id: str) -> None:
        """Remove a job, if it is in the list."""
        if self._waiting.pop(job_id, None) is None or self._tails is None:
            return
        key = self._tail_of.pop(job_id)
        self._tails[key].remove(job_id)
        if not self._tails[key].counted:
            del self._tails[key]

    def count_turns(self) -> None:
        """Keep track of the last turn of each group from now on."""
        if self._tails is None:
            self._tails = {}
            for entry in self._waiting.values():
                self._add_to_tail(entry)

    # --- the interface of ``engine.ordered.StoredWaiting`` ----------------------------------------------

    def front(self) -> Iterator[Entry[JobRecord]]:
        if len(self._priorities) == 1:
            return iter(self._orders[self._priorities[0]])
        return self._by_priority()

    def _by_priority(self) -> Iterator[Entry[JobRecord]]:
        for negated in list(self._priorities):
            entries = iter(self._orders[negated])
            first = next(entries, None)
            if first is None:
                del self._orders[negated], self._priorities[bisect_left(self._priorities, negated)]
            else:
                yield first
                yield from entries

    def served(self, priority: int, gone: set[str]) -> int | None:
        order = self._orders.get(-priority)
        return next((key[1] for key, job_id, _ in order or () if job_id not in gone), None)

    def last(self, priority: int, group: str, gone: set[str]) -> int | None:
        self.count_turns()
        tail = (self._tails or {}).get((-priority, group))
        entries = tail.backwards() if tail is not None else ()
        return next((key[1] for key, job_id, _ in entries if job_id not in gone), None)

    def _add_to_tail(self, entry: Entry[JobRecord]) -> None:
        assert self._tails is not None
        key, job_id, job = entry
        of = self._tail_of[job_id] = (key[0], job.options.group or "")
        self._tails.setdefault(of, Order()).put(key, job_id, job)
