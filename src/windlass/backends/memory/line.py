"""Who waits in a queue, in the order in which they start: priority, turn, place.

Turns make groups share a queue: a job that joins gets the turn after the last one of its group that waits
at its priority, but none before the turn that is being served. So the second job of a busy group comes
after the first of every other. Jobs without a group form one group. As long as a queue never saw a group all
turns are 0, and the order is that of places alone.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter

from windlass.core.job import JobRecord
from windlass.core.states import JobState


class _Tail:
    """The turns of those jobs of one group that wait at one priority, and the last of them."""

    __slots__ = ("last", "turns")

    def __init__(self) -> None:
        self.turns: Counter[int] = Counter()
        self.last = -1

    def add(self, turn: int) -> None:
        self.turns[turn] += 1
        self.last = max(self.last, turn)

    def remove(self, turn: int) -> None:
        self.turns[turn] -= 1
        if self.turns[turn] == 0:
            del self.turns[turn]
            if turn == self.last:
                self.last = max(self.turns, default=-1)


class Line:
    """The waiting jobs of one queue."""

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, int, int, str]] = {}  # id -> priority, turn, place, group
        # One heap per priority; an entry counts only while its job waits at that turn and place.
        self._heaps: dict[int, list[tuple[int, int, str]]] = {}
        self._priorities: list[int] = []  # negated: highest first
        self._tails: dict[tuple[int, str], _Tail] = {}
        #: Whether the queue ever saw a group: then turns are counted.
        self.grouped = False

    def put(self, job: JobRecord) -> None:
        """Enter ``job`` if it waits, take it out if not. A job without a turn gets one."""
        self.remove(job.id)
        if job.state is not JobState.WAITING:
            return
        group = job.options.group or ""
        if job.turn < 0:
            job.turn = self._fresh_turn(job.priority, group)
        tail = self._tails.get((job.priority, group))
        if tail is None:
            tail = self._tails[job.priority, group] = _Tail()
        tail.add(job.turn)
        self._waiting[job.id] = (job.priority, job.turn, job.place, group)
        heap = self._heaps.get(job.priority)
        if heap is None:
            heap = self._heaps[job.priority] = []
            insort(self._priorities, -job.priority)
        heapq.heappush(heap, (job.turn, job.place, job.id))

    def remove(self, job_id: str) -> None:
        """Take a job out, if it is there."""
        entry = self._waiting.pop(job_id, None)
        if entry is None:
            return
        priority, turn, _, group = entry
        tail = self._tails[priority, group]
        tail.remove(turn)
        if not tail.turns:
            del self._tails[priority, group]

    def head(self) -> str | None:
        """The id of the job that is first in line."""
        while self._priorities:
            priority = -self._priorities[0]
            first = self._head_of(priority)
            if first is not None:
                return first[2]
            del self._heaps[priority], self._priorities[0]
        return None

    def _head_of(self, priority: int) -> tuple[int, int, str] | None:
        heap = self._heaps.get(priority)
        while heap:
            turn, place, job_id = heap[0]
            entry = self._waiting.get(job_id)
            if entry is not None and entry[:3] == (priority, turn, place):
                return heap[0]
            heapq.heappop(heap)
        return None

    def _fresh_turn(self, priority: int, group: str) -> int:
        self.grouped = self.grouped or bool(group)
        if not self.grouped:
            return 0
        tail = self._tails.get((priority, group))
        head = self._head_of(priority)
        return max(tail.last + 1 if tail else 0, head[0] if head else 0)
