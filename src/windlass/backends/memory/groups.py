"""The groups of one queue: what was said about them, what they use, and their lines of parked jobs."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

from windlass.core import limits as lm
from windlass.core.job import JobRecord
from windlass.core.limits import GroupLimits, Role, Usage
from windlass.core.states import JobState


class Group:
    """One group."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: Its own limits; None: those of every group.
        self.own: GroupLimits | None = None
        self.usage = Usage()
        #: When time alone may let in the head of the line.
        self.next_ms: int | None = None
        self._roles: dict[str, tuple[Role, int]] = {}
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
        self._roles[job.id] = (role, job.options.cost)
        self.usage.count(role, job.options.cost, 1)
        if role is Role.PARKED:
            heapq.heappush(self._line, (-job.priority, job.place, job.id))

    def forget(self, job_id: str) -> None:
        """Count a job no more."""
        before = self._roles.pop(job_id, None)
        if before is not None:
            self.usage.count(*before, -1)

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

    def is_full(self, name: str, coming: int = 0) -> bool:
        """Whether the group has as many unfinished jobs as it may, with ``coming`` that are to be added."""
        group = self._groups.get(name)
        limits = self.limits(group) if group else self.every
        size = group.usage.size if group else 0
        return limits.max_size is not None and size + coming >= limits.max_size

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
