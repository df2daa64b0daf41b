"""The groups of one queue: what was said about them, what they use, and their lines of parked jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from copy import copy

from windlass.backends.memory.order import Order
from windlass.core import limits as lm
from windlass.core.job import JobRecord
from windlass.core.limits import GroupLimits, Role, Usage
from windlass.core.states import JobState
from windlass.engine.effects import GroupRow
from windlass.engine.work import HOLDING


class Group:
    """One group; its parked jobs are out of ``jobs``."""

    def __init__(self, name: str, jobs: Mapping[str, JobRecord]) -> None:
        self.name = name
        self._jobs = jobs
        #: ``usage`` has the same settings, and the start times.
        self.row = GroupRow()
        self.usage = Usage()
        #: What each job counts as, and its place.
        self._roles: dict[str, tuple[Role, int, bool, int]] = {}
        #: The places of those that an ordered group may have to wait for, by what they count as.
        self._places = {role: self._order(role) for role in HOLDING}
        self._parked: Order[tuple[int, int, str]] = Order(self._is_parked)

    def book(self, job: JobRecord) -> None:
        """Count ``job`` as what it is now."""
        self.forget(job.id)
        role = lm.role_of(job)
        if role is None:
            return
        ranked = lm.is_ranked(job)
        self._roles[job.id] = (role, job.options.cost, ranked, job.place)
        self.usage.count(role, job.options.cost, ranked, 1)
        if role in self._places:
            self._places[role].add((job.place, job.id))
            self._places[role].shrink(len(self._roles))
        if role is Role.PARKED:
            self._parked.add((-job.priority, job.place, job.id))

    def forget(self, job_id: str) -> None:
        """Count a job no more."""
        before = self._roles.pop(job_id, None)
        if before is not None:
            self.usage.count(*before[:3], -1)

    def parked(self) -> Iterator[tuple[tuple[int, int], str, JobRecord]]:
        """The parked jobs in their order, with (-priority, place) and id."""
        for negated, place, job_id in self._parked:
            yield (negated, place), job_id, self._jobs[job_id]

    def places(self) -> dict[Role, Iterator[tuple[tuple[int], str, int]]]:
        """The places of those that an ordered group may have to wait for, first to last."""
        return {
            role: (((place,), job_id, place) for place, job_id in order)
            for role, order in self._places.items()
        }

    def opens_at(self, limits: GroupLimits, job: JobRecord, now_ms: int) -> int | None:
        """``core.limits.opens_at`` for ``job``. It is for listings, which leave the group as it is."""
        usage = copy(self.usage)
        if limits.ordered:
            firsts = (self._places[role].head() for role in lm.holds_up(limits))
            usage.first = min((first[0] for first in firsts if first is not None), default=None)
        return lm.opens_at(limits, usage, job.options.cost, now_ms, place=job.place)

    def head(self) -> JobRecord | None:
        """The first parked job."""
        return next((job for _, _, job in self.parked()), None)

    def put(self, row: GroupRow) -> None:
        """What is said of the group from now on."""
        self.row, usage = row, self.usage
        usage.paused, usage.hold_until_ms = row.paused, row.hold_until_ms
        usage.level, usage.level_ms = row.level, row.level_ms

    def _order(self, role: Role) -> Order[tuple[int, str]]:
        def counts(entry: tuple[int, str]) -> bool:
            known = self._roles.get(entry[1])
            return known is not None and known[0] is role and known[3] == entry[0]

        return Order(counts)

    def _is_parked(self, entry: tuple[int, int, str]) -> bool:
        known = self._roles.get(entry[2])
        if known is None or known[0] is not Role.PARKED:
            return False
        job = self._jobs[entry[2]]
        return (job.state, -job.priority, job.place) == (JobState.PARKED, entry[0], entry[1])


class Groups:
    """All groups of one queue."""

    def __init__(self, jobs: Mapping[str, JobRecord]) -> None:
        self._jobs = jobs
        self._groups: dict[str, Group] = {}
        self._timed: Order[tuple[int, str]] = Order(self._is_timed)

    def __iter__(self) -> Iterator[Group]:
        return iter([self._groups[name] for name in sorted(self._groups)])

    def get(self, name: str) -> Group:
        """The group of that name, made when it is not there."""
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = Group(name, self._jobs)
        return found

    def find(self, name: str) -> Group | None:
        return self._groups.get(name)

    def put(self, name: str, row: GroupRow | None) -> None:
        """What is said of a group. None: nothing any more; jobs that it has (in a snapshot that is ahead)
        still count."""
        group = self._groups.get(name)
        if row is None:
            if group is not None and group.usage.size == 0:
                del self._groups[name]
                return
            row = GroupRow()
            if group is None:
                return
            group.usage.starts = []
        group = group or self.get(name)
        before = group.row.next_ms
        group.put(row)
        if row.next_ms is not None and row.next_ms != before:
            self._timed.add((row.next_ms, name))

    def timed(self) -> Iterable[tuple[tuple[int, str], str, tuple[int, str]]]:
        """The groups that time lets in with when, the earliest first, as things in an order."""
        return ((entry, entry[1], entry) for entry in self._timed) if self._timed else ()

    def _is_timed(self, entry: tuple[int, str]) -> bool:
        group = self._groups.get(entry[1])
        return group is not None and group.row.next_ms == entry[0]
