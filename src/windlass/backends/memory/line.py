"""Who waits in a queue, in the order in which they start: priority, turn, place (``engine.filing``)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping

from windlass.backends.memory.order import Order
from windlass.core.job import JobRecord
from windlass.core.states import JobState

#: Turn, place, id.
_Entry = tuple[int, int, str]


class _Tail:
    """The jobs of one group that wait at one priority."""

    __slots__ = ("order", "size")

    def __init__(self, order: Order[_Entry]) -> None:
        self.order = order
        self.size = 0


class Line:
    """The waiting jobs of one queue, out of ``jobs``."""

    def __init__(self, jobs: Mapping[str, JobRecord]) -> None:
        self._jobs = jobs
        self._waiting: dict[str, tuple[int, int, int, str]] = {}  # id -> priority, turn, place, group
        self._orders: dict[int, Order[_Entry]] = {}
        self._priorities: list[int] = []  # negated: highest first
        #: Kept as soon as turns are counted.
        self._tails: dict[tuple[int, str], _Tail] | None = None

    def put(self, job: JobRecord) -> None:
        """Enter ``job`` if it waits, take it out if not."""
        if job.id in self._waiting:
            self.remove(job.id)
        if job.state is not JobState.WAITING:
            return
        group = job.options.group or ""
        self._waiting[job.id] = (job.priority, job.turn, job.place, group)
        order = self._orders.get(job.priority)
        if order is None:
            order = self._orders[job.priority] = self._order(job.priority)
            insort(self._priorities, -job.priority)
        entry = (job.turn, job.place, job.id)
        order.add(entry)
        if self._tails is not None:
            self._add_to_tail(job.priority, group, entry)

    def remove(self, job_id: str) -> None:
        """Take a job out, if it is there."""
        entry = self._waiting.pop(job_id, None)
        if entry is None or self._tails is None:
            return
        key = (entry[0], entry[3])
        tail = self._tails[key]
        tail.size -= 1
        if tail.size:
            tail.order.shrink(tail.size)
        else:
            del self._tails[key]

    def count_turns(self) -> None:
        """From now on the last turns of groups are asked for."""
        if self._tails is None:
            self._tails = {}
            for job_id, (priority, turn, place, group) in self._waiting.items():
                self._add_to_tail(priority, group, (turn, place, job_id))

    # --- as ``engine.work.StoredLine`` ------------------------------------------------------------

    def front(self) -> Iterator[tuple[tuple[int, int, int], str, JobRecord]]:
        for negated in list(self._priorities):
            entry: _Entry | None = None
            for entry in self._orders[-negated]:
                turn, place, job_id = entry
                yield (negated, turn, place), job_id, self._jobs[job_id]
            if entry is None:
                del self._orders[-negated], self._priorities[bisect_left(self._priorities, negated)]

    def served(self, priority: int, gone: set[str]) -> int | None:
        order = self._orders.get(priority)
        return next((entry[0] for entry in order or () if entry[2] not in gone), None)

    def last(self, priority: int, group: str, gone: set[str]) -> int | None:
        self.count_turns()
        tail = (self._tails or {}).get((priority, group))
        entries = tail.order.backwards() if tail is not None else ()
        return next((entry[0] for entry in entries if entry[2] not in gone), None)

    def _order(self, priority: int) -> Order[_Entry]:
        waiting = self._waiting

        def counts(entry: _Entry) -> bool:
            found = waiting.get(entry[2])
            return (
                found is not None and found[1] == entry[0] and found[2] == entry[1] and found[0] == priority
            )

        return Order(counts)

    def _add_to_tail(self, priority: int, group: str, entry: _Entry) -> None:
        tails = self._tails
        assert tails is not None
        tail = tails.get((priority, group))
        if tail is None:
            tail = tails[priority, group] = _Tail(self._order(priority))
        tail.order.add(entry)
        tail.size += 1
