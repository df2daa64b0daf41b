"""The groups of one queue: what was said about them, what they use, and their lines of parked jobs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from windlass.core import limits as lm
from windlass.core.job import JobRecord, NewJob
from windlass.core.limits import GroupLimits, Role, Usage
from windlass.core.outcome import AddOutcome
from windlass.core.states import JobState


class _Order:
    """Places of jobs, of which the first is asked for. Entries count only while ``places`` has them."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []

    def put(self, job_id: str, place: int) -> None:
        self._places[job_id] = place
        heapq.heappush(self._heap, (place, job_id))
        if len(self._heap) > 2 * len(self._places) + 16:
            self._heap = sorted((place, job_id) for job_id, place in self._places.items())

    def remove(self, job_id: str) -> None:
        self._places.pop(job_id, None)

    def first(self) -> int | None:
        while self._heap:
            place, job_id = self._heap[0]
            if self._places.get(job_id) == place:
                return place
            heapq.heappop(self._heap)
        return None


class Group:
    """One group."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Its own limits; None: those of every group.
        self.own: GroupLimits | None = None
        self.usage = Usage()
        #: When time alone may let in the head of the line.
        self.next_ms: int | None = None
        self._roles: dict[str, tuple[Role, int, bool]] = {}
        #: Those that an ordered group may have to wait for, by what they count as.
        self._orders = {role: _Order() for role in (Role.PARKED, Role.KEPT, Role.DELAYED)}
        self._line: list[tuple[int, int, str]] = []  # entries count only while they match their record

    def role(self, job_id: str) -> Role | None:
        """What a job counted as when it was last booked."""
        found = self._roles.get(job_id)
        return found[0] if found else None

    def book(self, job: JobRecord) -> None:
        """Count ``job`` as what it is now."""
        self.forget(job.id)
        role = lm.role_of(job)
        if role is None:
            return
        counted = (role, job.options.cost, lm.is_ranked(job))
        self._roles[job.id] = counted
        self.usage.count(*counted, 1)
        if role in self._orders:
            self._orders[role].put(job.id, job.place)
        if role is Role.PARKED:
            heapq.heappush(self._line, (-job.priority, job.place, job.id))

    def forget(self, job_id: str) -> None:
        """Count a job no more."""
        before = self._roles.pop(job_id, None)
        if before is not None:
            self.usage.count(*before, -1)
            if before[0] in self._orders:
                self._orders[before[0]].remove(job_id)

    def opens_at(
        self, limits: GroupLimits, job: JobRecord, now_ms: int, *, starting: bool = False
    ) -> int | None:
        """``core.limits.opens_at`` for ``job``."""
        if limits.ordered:
            firsts = (self._orders[role].first() for role in lm.holds_up(limits))
            self.usage.first = min((place for place in firsts if place is not None), default=None)
        return lm.opens_at(limits, self.usage, job.options.cost, now_ms, place=job.place, starting=starting)

    def head(self, jobs: Mapping[str, JobRecord]) -> JobRecord | None:
        """The first parked job, left in place."""
        while self._line:
            priority, place, job_id = self._line[0]
            job = jobs.get(job_id)
            if job and (job.state, -job.priority, job.place) == (JobState.PARKED, priority, place):
                return job
            heapq.heappop(self._line)
        return None


class Groups:
    """All groups of one queue."""

    def __init__(self) -> None:
        #: The limits of every group that has none of its own.
        self.every = lm.NO_GROUP_LIMITS
        self._groups: dict[str, Group] = {}
        self._timed: list[tuple[int, str]] = []  # entries count only while they match their group

    def __iter__(self) -> Iterator[Group]:
        return iter([self._groups[name] for name in sorted(self._groups)])

    def get(self, name: str) -> Group:
        """The group of that name, made when it is not there."""
        found = self._groups.get(name)
        if found is None:
            found = self._groups[name] = Group(name)
        return found

    def find(self, name: str) -> Group | None:
        return self._groups.get(name)

    def limits(self, group: Group) -> GroupLimits:
        """The limits that hold for a group."""
        return group.own if group.own is not None else self.every

    def refuses(self, new: NewJob, coming: int = 0) -> AddOutcome | None:
        """Why the group of a new job does not take it, after ``coming`` others; None when it does."""
        group = self._groups.get(new.options.group or "")
        limits = self.limits(group) if group else self.every
        return lm.refuses(limits, new, (group.usage.size if group else 0) + coming)

    def wait_until(self, group: Group, at_ms: int | None) -> None:
        """Look at the group's line again at ``at_ms`` (None: not by time)."""
        if at_ms != group.next_ms:
            group.next_ms = at_ms
            if at_ms is not None:
                heapq.heappush(self._timed, (at_ms, group.name))

    def next_timed(self) -> Group | None:
        """The group whose line time opens first."""
        while self._timed:
            at_ms, name = self._timed[0]
            group = self._groups.get(name)
            if group is not None and group.next_ms == at_ms:
                return group
            heapq.heappop(self._timed)
        return None

    def prune(self, now_ms: int) -> list[str]:
        """Forget groups that are empty and used nothing that still counts; returns which."""
        gone = [g.name for g in self if g.own is None and lm.is_idle(self.every, g.usage, now_ms)]
        for name in gone:
            del self._groups[name]
        return gone

    def remove(self, name: str) -> None:
        """Forget a group, if it is there."""
        self._groups.pop(name, None)
