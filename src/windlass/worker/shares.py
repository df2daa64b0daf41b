"""Divides free slots among queues. Pure arithmetic.

``strict``: earlier queues first. ``weighted``: start-time fair queueing. Each queue has a virtual time that
advances by 1/weight for each job; the next slot goes to the queue that is furthest behind. So shares are met
exactly while queues have jobs, an idle queue neither accumulates credit nor starves, and nothing is random.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping

from windlass.backend.requests import ClaimQueue
from windlass.core.job import JobRecord
from windlass.errors import ConfigError
from windlass.worker.options import Order, QueueSpec


class SharePlanner:
    """Splits free slots among queues, and counts the jobs that each queue got."""

    def __init__(self, specs: Mapping[str, QueueSpec], order: Order) -> None:
        self._specs = dict(specs)
        self._order = order
        self._served = dict.fromkeys(self._specs, 0.0)
        self._reserves = any(spec.reserve for spec in self._specs.values())
        #: Whether a queue has reserved slots or a maximum.
        self.is_bounded: bool = self._reserves or any(spec.cap is not None for spec in self._specs.values())
        #: With reserves: queues that returned fewer jobs than requested. Until ``refill`` they only get their
        #: own reserve, so that other queues can use the shared slots.
        self._without_jobs: set[str] = set()
        #: Queues that were added, but are not ready to be claimed from.
        self.held: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The names of the queues, in order."""
        return list(self._specs)

    @property
    def specs(self) -> dict[str, QueueSpec]:
        """The queues with their specs, in order."""
        return dict(self._specs)

    def add(self, name: str, spec: QueueSpec, *, held: bool = False) -> None:
        """Add a queue, which starts without credit. A ``held`` one gets no slots until ``admit``."""
        if held:
            self.held.add(name)
        self._specs[name] = spec
        self._served[name] = min(self._served.values(), default=0.0)
        self._reserves = self._reserves or spec.reserve > 0
        self.is_bounded = self.is_bounded or self._reserves or spec.cap is not None

    def admit(self, name: str) -> None:
        """Give slots to a queue that was added as held."""
        self.held.discard(name)

    def check_slots(self, slots: int) -> None:
        """Raise ``ConfigError`` if the reserved slots exceed ``slots``."""
        reserved = sum(spec.reserve for spec in self._specs.values())
        if reserved > slots:
            raise ConfigError(
                "concurrency",
                message=f"concurrency {slots} is less than the {reserved} slots that queues reserve",
                got=slots,
            )

    def plan(self, free: int, active: Mapping[str, int]) -> list[ClaimQueue]:
        """Return how many of ``free`` jobs each queue may contribute to a claim, first queue first."""
        if len(self._specs) == 1:
            ((name, _),) = self._specs.items()
            room_of_all = self.room(name, free, active)
            return [ClaimQueue(name, room_of_all, room_of_all)] if room_of_all > 0 else []
        room = {name: self.room(name, free, active) for name in self._specs}
        if len(room) == 1 or self._order == "strict":
            return self._in_order(free, active, room)
        shares = self._fair_shares(free, active, room)
        names = sorted((name for name in room if room[name] > 0), key=self._served.__getitem__)
        if self._reserves:  # a larger cap could use slots that are reserved for others
            return [ClaimQueue(name, shares[name], shares[name]) for name in names if shares[name]]
        return [ClaimQueue(name, shares[name], room[name]) for name in names]

    def charge(self, asked: list[ClaimQueue], jobs: list[JobRecord]) -> bool:
        """Count the claimed jobs. Returns whether another plan could fill slots that are left empty."""
        if len(self._specs) == 1:
            return False
        given = Counter(job.queue for job in jobs)
        if self._order == "weighted":
            self._advance(given)
        if not self._reserves:
            return False
        dry = {item.name for item in asked if given[item.name] < item.share} - self._without_jobs
        self._without_jobs |= dry
        return bool(dry)

    def refill(self) -> None:
        """Assume again that every queue may have jobs."""
        self._without_jobs.clear()

    def _advance(self, given: Counter[str]) -> None:
        for name, count in given.items():
            self._served[name] += count / self._specs[name].weight
        if given:  # queues without jobs do not accumulate credit
            floor = min(
                self._served[name] - count / self._specs[name].weight for name, count in given.items()
            )
            for name in self._served:
                self._served[name] = max(self._served[name], floor)

    def room(self, name: str, free: int, active: Mapping[str, int]) -> int:
        """How many of ``free`` slots the queue may fill."""
        if name in self.held:
            return 0
        cap = self._specs[name].cap
        return free if cap is None else max(min(free, cap - active.get(name, 0)), 0)

    def _in_order(self, free: int, active: Mapping[str, int], room: dict[str, int]) -> list[ClaimQueue]:
        shared = self._shared(free, active)
        plans = []
        for name in room:
            own = self._own(name, active)
            share = min(room[name], own if name in self._without_jobs else shared + own)
            if share > 0:
                plans.append(ClaimQueue(name, share, share))
                shared -= max(share - own, 0) if self._reserves else 0
        return plans

    def _fair_shares(self, free: int, active: Mapping[str, int], room: dict[str, int]) -> Counter[str]:
        shared = self._shared(free, active)
        own = {name: self._own(name, active) for name in room}
        shares: Counter[str] = Counter()
        behind = [(self._served[name], at, name) for at, name in enumerate(room)]
        heapq.heapify(behind)
        left = free
        while left and behind:
            served, at, name = behind[0]
            takes_shared = shares[name] >= own[name]
            if shares[name] >= room[name] or (takes_shared and (shared <= 0 or name in self._without_jobs)):
                heapq.heappop(behind)  # it takes no more: its room and the shared slots never grow
                continue
            left -= 1
            shared -= takes_shared
            shares[name] += 1
            heapq.heapreplace(behind, (served + 1 / self._specs[name].weight, at, name))
        return shares

    def _own(self, name: str, active: Mapping[str, int]) -> int:
        return max(self._specs[name].reserve - active.get(name, 0), 0)

    def _shared(self, free: int, active: Mapping[str, int]) -> int:
        return max(free - sum(self._own(name, active) for name in self._specs), 0)
