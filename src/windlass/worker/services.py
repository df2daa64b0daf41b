"""Duties that somebody must do for a store, each as one bounded step.

``Recoverer`` runs on every worker: taking back a silent worker's jobs must not wait for an election.
``Pruner``, ``Aggregator`` and ``Relayer`` run on the one worker that holds the leadership. Every step is safe
on any number of nodes.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from windlass.backend import flows as fl
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.probe import reach
from windlass.core.service import Service
from windlass.metrics import roll_up

log: Final = logging.getLogger("windlass.duties")

LEADER_ROLE = "duties"


class Duty(Protocol):
    """Something to do now and then."""

    @property
    def name(self) -> str: ...

    @property
    def every_ms(self) -> int: ...

    @property
    def leader_only(self) -> bool: ...

    async def run_once(self) -> int:
        """One bounded step; returns how much was done."""
        ...


class Recoverer:
    """Takes back jobs whose lease ran out."""

    name = "recover"
    leader_only = False

    def __init__(
        self, store: Store, every_ms: int = 15_000, on_stalled: Callable[[str], None] | None = None
    ) -> None:
        self._store = store
        self.every_ms = every_ms
        self._on_stalled = on_stalled

    async def run_once(self) -> int:
        result = await self._store.execute(rq.Recover())
        for ref in (*result.recovered, *result.failed):
            log.warning("took back job %s of queue %s: its worker went silent", ref.id, ref.queue)
            if self._on_stalled is not None:
                self._on_stalled(ref.id)
        reach("recover.done", recovered=len(result.recovered), failed=len(result.failed))
        return len(result.recovered) + len(result.failed)


class Pruner:
    """Removes what is past its keep, step by step until nothing is left to do."""

    name = "prune"
    leader_only = True

    def __init__(self, store: Store, every_ms: int = 30_000) -> None:
        self._store = store
        self.every_ms = every_ms

    async def run_once(self) -> int:
        total = 0
        while True:
            pruned = await self._store.execute(rq.Prune())
            total += (
                pruned.jobs + pruned.ids + pruned.events + pruned.history + pruned.workers + pruned.metrics
            )
            if not pruned.more:
                reach("prune.done", removed=total)
                return total


class Aggregator:
    """Keeps the roll-ups of the history up to date, so that whoever asks for them finds little to do."""

    name = "roll up"
    leader_only = True

    def __init__(self, store: Store, every_ms: int = 10_000) -> None:
        self._store = store
        self.every_ms = every_ms

    async def run_once(self) -> int:
        return await roll_up(self._store)


class Relayer:
    """Tells jobs about the ends of those that they wait for, where the end itself could not."""

    name = "relay"
    leader_only = True

    def __init__(self, store: Store, every_ms: int = 5_000) -> None:
        self._store = store
        self.every_ms = every_ms

    async def run_once(self) -> int:
        """Step by step, until nothing is left to tell."""
        total = 0
        while True:
            relayed = await self._store.execute(fl.Relay())
            total += relayed.count
            if not relayed.more:
                reach("relay.done", told=total)
                return total


class Deployer:
    """Brings the store the schedules of this worker's code, when that could not be done at its start."""

    name = "deploy"
    leader_only = False
    every_ms = 3_600_000

    def __init__(self, deploy: Callable[[], Awaitable[None]]) -> None:
        self._deploy = deploy
        self._done = False

    async def run_once(self) -> int:
        if self._done:
            return 0
        await self._deploy()
        self._done = True
        return 1


class Leadership:
    """One holder per store, by a lease that is renewed while its holder lives."""

    def __init__(
        self,
        store: Store,
        holder: str,
        ttl_ms: int = 30_000,
        on_change: Callable[[bool], None] | None = None,
    ) -> None:
        self._store = store
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._on_change = on_change
        self.is_leader: bool = False

    async def campaign(self) -> bool:
        """Take or keep the leadership; whether we have it."""
        request = rq.Elect(role=LEADER_ROLE, holder=self._holder, ttl_ms=self._ttl_ms)
        self._set(await self._store.execute(request))
        return self.is_leader

    async def resign(self) -> None:
        """Let somebody else lead, at once."""
        if self.is_leader:
            self._set(False)
            await self._store.execute(rq.Resign(role=LEADER_ROLE, holder=self._holder))

    def _set(self, leads: bool) -> None:
        changed, self.is_leader = leads is not self.is_leader, leads
        if changed and self._on_change is not None:
            self._on_change(leads)


class Duties(Service):
    """Runs duties when they are due, those of the leader only while leading."""

    def __init__(self, store: Store, leadership: Leadership, duties: list[Duty], rng: random.Random) -> None:
        super().__init__("windlass-duties", store.clock)
        self._leadership = leadership
        self._duties = duties
        self._rng = rng
        self._hurried: set[str] = set()

    def hurry(self, name: str) -> None:
        """Do the duty of that name now: something may have become due."""
        self._hurried.add(name)
        self._wake.set()

    async def run_once(self) -> int:
        """Every duty once, now; returns how much was done."""
        await self._leadership.campaign()
        return sum([await self._run(duty) for duty in self._duties])

    async def _serve(self) -> None:
        clock = self._clock
        # The first round comes early and not for everybody at once.
        next_ms = {
            duty.name: clock.monotonic_ms() + self._rng.uniform(0, min(duty.every_ms, 2_000))
            for duty in self._duties
        }
        lead_ms = 0.0
        while not self.stopping:
            now, hurried, self._hurried = clock.monotonic_ms(), self._hurried, set()
            if now >= lead_ms:
                await self._leadership.campaign()
                lead_ms = now + 10_000
            for duty in self._duties:
                if now >= next_ms[duty.name] or duty.name in hurried:
                    await self._run(duty)
                    next_ms[duty.name] = clock.monotonic_ms() + duty.every_ms
            pause_ms = min(lead_ms, *next_ms.values()) - clock.monotonic_ms()
            await self.pause(max(pause_ms, 1))
            if not self.stopping:
                self._wake.clear()

    async def _run(self, duty: Duty) -> int:
        if duty.leader_only and not self._leadership.is_leader:
            return 0
        return await duty.run_once()

    async def _stopped(self) -> None:
        await self._leadership.resign()
