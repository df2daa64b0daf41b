"""The groups of one queue: their limits, their usage, and their parked jobs in order."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

from windlass.backends.memory.order import Order
from windlass.core import limit_rules as lm
from windlass.core.job import JobRecord
from windlass.core.limit_rules import GroupLimits, Role, Usage
from windlass.engine.effects import GroupRow
from windlass.engine.unit_of_work import HOLDING


class StoredGroup:
    """One group of a queue."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: ``usage`` has the same settings, and the start times.
        self.row = GroupRow()
        self.usage = Usage()
        #: How each job is counted in ``usage``.
        self._roles: dict[str, tuple[Role, int, bool]] = {}
        #: The places of jobs that other jobs of an ordered group wait for, by role.
        self.places: dict[Role, Order[int]] = {role: Order() for role in HOLDING}
        #: The parked jobs by (-priority, place).
        self.parked: Order[JobRecord] = Order()

    def count_job(self, job: JobRecord) -> None:
        """Count ``job`` by its present state."""
        self.forget(job.id)
        role = lm.role_of(job)
        if role is None:
            return
        counted = self._roles[job.id] = (role, job.options.cost, lm.is_ranked(job))
        self.usage.count(*counted, 1)
        if role in self.places:
            self.places[role].put((job.place,), job.id, job.place)
        if role is Role.PARKED:
            self.parked.put((-job.priority, job.place), job.id, job)

    def forget(self, job_id: str) -> None:
        """Stop counting a job."""
        before = self._roles.pop(job_id, None)
        if before is None:
            return
        self.usage.count(*before, -1)
        if before[0] in self.places:
            self.places[before[0]].remove(job_id)
        if before[0] is Role.PARKED:
            self.parked.remove(job_id)

    def opens_at(self, limits: GroupLimits, job: JobRecord, now_ms: int) -> int | None:
        """``core.limit_rules.opens_at`` for ``job``. Does not change the group."""
        usage = copy(self.usage)
        if limits.ordered:
            firsts = (self.places[role].head() for role in lm.holds_up(limits))
            usage.first = min((first[2] for first in firsts if first is not None), default=None)
        return lm.opens_at(limits, usage, job.options.cost, now_ms, place=job.place)

    def head(self) -> JobRecord | None:
        """The first parked job."""
        first = self.parked.head()
        return None if first is None else first[2]

    def put(self, row: GroupRow) -> None:
        """Replace the settings of the group."""
        self.row, usage = row, self.usage
        usage.paused, usage.hold_until_ms = row.paused, row.hold_until_ms
        usage.level, usage.level_ms = row.level, row.level_ms


class StoredGroups:
    """All groups of one queue."""

    def __init__(self) -> None:
        self._groups: dict[str, StoredGroup] = {}
        #: Groups whose parked jobs may start at a known time, ordered by that time.
        self.timed: Order[tuple[int, str]] = Order()

    def __iter__(self) -> Iterator[StoredGroup]:
        return iter([self._groups[name] for name in sorted(self._groups)])

    def get(self, name: str) -> StoredGroup:
        """The group of that name. Creates it if needed."""
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = StoredGroup(name)
        return found

    def find(self, name: str) -> StoredGroup | None:
        return self._groups.get(name)

    def put(self, name: str, row: GroupRow | None) -> None:
        """Replace the settings of a group; None removes them.

        A group that still has jobs stays: a snapshot of the file store may contain jobs that a later step
        removes.
        """
        group = self._groups.get(name)
        if row is None:
            self.timed.remove(name)
            if group is not None and group.usage.size == 0:
                del self._groups[name]
                return
            row = GroupRow()
            if group is None:
                return
            group.usage.starts = []
        (group or self.get(name)).put(row)
        if row.next_ms is None:
            self.timed.remove(name)
        else:
            entry = (row.next_ms, name)
            self.timed.put(entry, name, entry)
