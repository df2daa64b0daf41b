"""The groups of one queue: their limits, their usage, and their parked jobs in order."""

from __future__ import annotations

from collections.abc import Iterator

from windlass.backends.memory.order import Order
from windlass.core.job import JobRecord
from windlass.core.limit_rules import Role, Usage
from windlass.engine.effects import GroupRow
from windlass.engine.unit_of_work import HOLDING, GroupJobs


class StoredGroup(GroupJobs):
    """One group of a queue."""

    parked: Order[JobRecord]
    places: dict[Role, Order[int]]

    def __init__(self, name: str) -> None:
        super().__init__(Usage(), Order[JobRecord](), {role: Order[int]() for role in HOLDING})
        self.name = name
        #: ``usage`` has the same settings, and the start times.
        self.row = GroupRow()

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
