"""The duties of a worker: periodic work for the store, each in bounded steps and at its own interval.

``Recoverer`` runs on every worker, because recovering the jobs of a dead worker must not wait for an
election. So does ``scheduler.Scheduler``. ``Pruner``, ``Aggregator`` and ``Relayer`` run on the leader. Every
step is safe if several workers run it at the same time.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Final

from windlass.api.metrics import roll_up, sample_backlog
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import Action, WorkerInfo
from windlass.core.probe import reach
from windlass.core.rollups import RECORDS_PER_STEP
from windlass.errors import WindlassError
from windlass.worker.duty import Done, Duty, all_steps
from windlass.worker.heartbeat import Heartbeat
from windlass.worker.lifecycle import Parts
from windlass.worker.parts import WorkerParts
from windlass.worker.scheduler import Scheduler
from windlass.worker.supervisor import Service, TaskSupervisor

log: Final = logging.getLogger("windlass.duties")

LEADER_ROLE = "duties"


class Recoverer:
    """Recovers active jobs whose lease has expired, and fails pending jobs that did not start in time."""

    name = "recover"
    leader_only = False

    def __init__(
        self, store: Store, every_ms: int = 15_000, on_stalled: Callable[[str], None] | None = None
    ) -> None:
        self._store = store
        self.every_ms = every_ms
        self._on_stalled = on_stalled

    async def step(self) -> Done:
        """Recover one batch. There may be more when the batch is full."""
        request = rq.Recover()
        result = await self._store.execute(request)
        done = (len(result.recovered) + len(result.failed), len(result.expired))
        return Done(self._report(result), max(done) >= request.limit)

    def _report(self, result: rq.Recovered) -> int:
        for ref in (*result.recovered, *result.failed):
            log.warning("recovered job %r of queue %r: its lease had expired", ref.id, ref.queue)
            if self._on_stalled is not None:
                self._on_stalled(ref.id)
        counts = {name: len(getattr(result, name)) for name in ("recovered", "failed", "expired")}
        reach("recover.done", **counts)
        return sum(counts.values())


class _LeaderDuty:
    """Base of duties that only the leader runs."""

    leader_only = True
    every_ms: int

    def __init__(self, store: Store, every_ms: int | None = None) -> None:
        self._store = store
        if every_ms is not None:
            self.every_ms = every_ms


class Pruner(_LeaderDuty):
    """Removes records that are past their retention."""

    name = "prune"
    every_ms = 30_000

    async def step(self) -> Done:
        pruned = await self._store.execute(rq.Prune())
        removed = pruned.jobs + pruned.ids + pruned.events + pruned.history + pruned.workers + pruned.metrics
        if not pruned.more:
            reach("prune.done", removed=removed)
        return Done(removed, pruned.more)


class Aggregator(_LeaderDuty):
    """Updates the roll-ups of the history and samples the backlog."""

    name = "roll up"
    every_ms = 10_000
    _sampled_to = ""

    async def step(self) -> Done:
        done = await roll_up(self._store, most=RECORDS_PER_STEP)
        if done >= RECORDS_PER_STEP:
            return Done(done, more=True)
        self._sampled_to = await sample_backlog(self._store, self._sampled_to)
        return Done(done)


class Relayer(_LeaderDuty):
    """Notifies jobs that depend on ended ones, if that did not fit into the request that settled them."""

    name = "relay"
    every_ms = 5_000

    async def step(self) -> Done:
        relayed = await self._store.execute(fl.Relay())
        if not relayed.more:
            reach("relay.done", count=relayed.count)
        return Done(relayed.count, relayed.more)


class Deployer:
    """Stores the schedules of this worker's code, if that failed when the worker started."""

    name = "deploy"
    leader_only = False
    every_ms = 3_600_000

    def __init__(self, deploy: Callable[[], Awaitable[None]]) -> None:
        self._deploy = deploy
        self._done = False

    async def step(self) -> Done:
        if self._done:
            return Done(0)
        await self._deploy()
        self._done = True
        return Done(1)


class Leadership:
    """The election of one leader per store: a lease that the leader renews."""

    name = "lead"
    leader_only = False
    every_ms = 10_000

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
        self._until_ms = 0.0
        self._leads = False

    @property
    def is_leader(self) -> bool:
        """Whether this worker leads. False once the leadership could not be renewed in time."""
        if self._leads and self._store.clock.monotonic_ms() >= self._until_ms:
            self._set(False)
        return self._leads

    async def step(self) -> Done:
        """Acquire or renew the leadership."""
        sent_ms = self._store.clock.monotonic_ms()
        request = rq.Elect(role=LEADER_ROLE, holder=self._holder, ttl_ms=self._ttl_ms)
        leads = await self._store.execute(request)
        self._until_ms = sent_ms + self._ttl_ms
        self._set(leads)
        return Done(int(leads))

    async def resign(self) -> None:
        """Give up the leadership, so that another worker can lead at once."""
        if self._leads:
            self._set(False)
            await self._store.execute(rq.Resign(role=LEADER_ROLE, holder=self._holder))

    def _set(self, leads: bool) -> None:
        changed, self._leads = leads is not self._leads, leads
        if changed and self._on_change is not None:
            self._on_change(leads)


class _Runner(Service):
    """Runs one duty at its own interval, so that no duty waits for one that fails or hangs."""

    def __init__(self, duty: Duty, leads: Callable[[], bool], first_ms: float) -> None:
        super().__init__(duty.name)
        self._duty = duty
        self._leads = leads
        self._first_ms = first_ms

    def first_pause_ms(self) -> float:
        return self._first_ms

    async def run_once(self) -> int:
        """Run all steps, unless the duty is left to the leader. Returns how much was done."""
        return await all_steps(self._duty) if self._is_ours else 0

    async def step(self) -> float:
        more = (await self._duty.step()).more if self._is_ours else False
        return 0 if more else self._duty.every_ms

    @property
    def _is_ours(self) -> bool:
        return not self._duty.leader_only or self._leads()


class Duties:
    """Runs the duties when they are due, including the election. Leader duties run only on the leader."""

    def __init__(
        self, supervisor: TaskSupervisor, leadership: Leadership, duties: list[Duty], rng: random.Random
    ) -> None:
        self._supervisor = supervisor
        self._leadership = leadership
        leads = lambda: leadership.is_leader  # noqa: E731 - evaluated at every step
        self._runners = [_Runner(leadership, leads, 0)]
        for duty in duties:  # the first run comes soon, but not at the same time on all workers
            self._runners.append(_Runner(duty, leads, rng.uniform(0, min(duty.every_ms, 2_000))))

    def start(self) -> None:
        """Start all duties on the running event loop."""
        for runner in self._runners:
            self._supervisor.serve(runner)

    async def stop(self) -> None:
        """End every duty after its current step, then resign."""
        try:
            await asyncio.gather(*(self._supervisor.stop(runner.name) for runner in self._runners))
            await self._leadership.resign()
        except WindlassError as exc:
            log.warning("could not resign as leader; another worker takes over when the term ends: %s", exc)

    async def run_once(self) -> int:
        """Run every duty once, now. Returns how much was done."""
        await self._leadership.step()
        return sum([await runner.run_once() for runner in self._runners[1:]])


class Services:
    """The heartbeat and the duties of one worker."""

    _heartbeat: Heartbeat
    _leadership: Leadership
    _duties: Duties

    def __init__(
        self, shared: WorkerParts, info: Callable[[], WorkerInfo], on_command: Callable[[Action], None]
    ) -> None:
        self._shared = shared
        self._info = info
        self._on_command = on_command

    def open(self, parts: Parts, *, deployed: bool) -> None:
        """Create heartbeat and duties. ``deployed``: whether the store has the schedules of the code."""
        shared, store = self._shared, self._shared.app.store
        self._heartbeat = Heartbeat(store, shared.options.ms("heartbeat"), self._info, self._on_command)
        self._leadership = Leadership(store, shared.worker_id, on_change=self._on_leader)
        duties = self._make_duties(deployed=deployed)
        self._duties = Duties(shared.supervisor, self._leadership, duties, shared.rng)
        parts.opened("duties and heartbeat", self._stop)

    def start(self) -> None:
        """Start them on the running event loop."""
        self._shared.supervisor.serve(self._heartbeat)
        if self._shared.options.duties:
            self._duties.start()

    @property
    def is_leader(self) -> bool:
        """Whether this worker is the leader."""
        return self._leadership.is_leader

    async def beat(self) -> None:
        """Send a heartbeat now; the answer may carry a command."""
        await self._heartbeat.run_once()

    async def _stop(self) -> None:
        supervisor = self._shared.supervisor
        await asyncio.wait([supervisor.over("relay-now")])
        await asyncio.gather(self._duties.stop(), supervisor.stop("heartbeat"))

    def _make_duties(self, *, deployed: bool) -> list[Duty]:
        """Return the duties that the app's store supports."""
        app, options, leadership = self._shared.app, self._shared.options, self._leadership
        store = app.store
        duties: list[Duty] = [Pruner(store, options.ms("prune_every"))]
        if store.capabilities.schedules:
            leads = lambda: leadership.is_leader  # noqa: E731 - evaluated at every slot
            duties.append(Scheduler(store, app.schedule_strategies, leads, app.hooks))
        if store.capabilities.metrics:
            duties.append(Aggregator(store))
        duties.append(Recoverer(store, options.recover_ms, self._on_stalled))
        if not deployed:
            duties.append(Deployer(app.deploy_schedules))
        if store.capabilities.flows:
            duties.append(Relayer(store))
        return duties

    def _on_stalled(self, job_id: str) -> None:
        self._shared.emitter.emit("stalled", job_id)

    def _on_leader(self, leads: bool) -> None:
        if leads:
            self._shared.supervisor.run_now(Scheduler.name)  # fire the slots that were left to the leader
        self._shared.emitter.emit("leadership_acquired" if leads else "leadership_lost")
