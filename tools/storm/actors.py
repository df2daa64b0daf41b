"""The actors of a storm: workers with their handlers, producers, and a pauser that pauses queues.

Each actor is a coroutine with its own app. The store determines whether it also has its own process: see
``process`` and ``actor_handles``. An actor writes to its journal what it is about to request and what the
store acknowledged, so that the checker can distinguish "lost" from "never acknowledged".
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import msgspec

from tools.storm import plan
from tools.storm.journal import Journal
from tools.storm.recording import RecordingBackend, Switches
from tools.storm.skew import store_ms
from windlass import FlowProducer, Job, Snooze, StorageError, Windlass, Worker, current_job
from windlass.backend import requests as rq
from windlass.core.job import NewJob
from windlass.core.outcome import AddOutcome

_CALL_TIMEOUT_S = 20.0
_MAX_ATTEMPTS = 4
#: If an event loop is late by this much, the machine is too busy to judge leases by.
LAG_S = 0.25
#: A process that is to freeze does so within this time or not at all. Later the storm does not expect it.
FREEZE_WITHIN_S = 15.0


class Role(msgspec.Struct, kw_only=True):
    """The parameters of one actor."""

    kind: str
    number: int
    incarnation: int
    url: str
    directory: str
    settings: plan.Settings
    can: plan.Can
    clock: str = "node"
    freeze_point: str = "worker.claimed"

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}.{self.incarnation}"


class StormError(RuntimeError):
    """Raised by handlers that fail on purpose."""


class Actor:
    """One actor, with its journal and its connection to the store."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.journal = Journal(Path(role.directory), role.name)
        self.switches = Switches()
        self.stopping = asyncio.Event()
        self.app = Windlass(role.url, name="storm")
        self.app.store.backend = RecordingBackend(
            self.app.store.backend, self.journal, self.switches, role.clock
        )
        self.worker: Worker | None = None

    async def run(self) -> None:
        """Run until ``stop`` is called."""
        self.journal.write("up")
        try:
            await _KINDS[self.role.kind](self)
        finally:
            with contextlib.suppress(StorageError):
                await self.app.close()
            self.journal.close()

    def stop(self) -> None:
        """Finish the present work, then end."""
        self.stopping.set()

    async def pause(self, ms: float) -> bool:
        """Wait for ``ms``; False if ``stop`` was called."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ms / 1_000):
                await self.stopping.wait()
        return not self.stopping.is_set()


# --- workers --------------------------------------------------------------------------------------


async def _work(actor: Actor) -> None:
    settings = actor.role.settings
    register_tasks(actor.app, actor.journal)
    worker = actor.worker = Worker(
        list(plan.QUEUES),
        url_or_app=actor.app,
        concurrency=settings.concurrency,
        lease=settings.lease,
        recover_every=0.3,
        poll=0.3,
        heartbeat=1,
        prune_every=2,
        grace=1,
        cancel_wait=0.5,
        id=actor.role.name,
    )
    watch = asyncio.create_task(_watch(actor))
    await _begin(worker, actor)
    await actor.stopping.wait()
    watch.cancel()
    with contextlib.suppress(StorageError):
        await worker.close(force=actor.switches.dead)


async def _watch(actor: Actor) -> None:
    """Record when this process got no time to run: then its leases may expire without a fault."""
    loop = asyncio.get_running_loop()
    while True:
        before, from_ms = loop.time(), store_ms(actor.role.clock)
        await asyncio.sleep(0.1)
        if loop.time() - before > 0.1 + LAG_S:
            actor.journal.write("late", start=from_ms, end=store_ms(actor.role.clock))


async def _begin(worker: Worker, actor: Actor) -> None:
    """Start the worker, and try again while the store is unreachable."""
    while not actor.stopping.is_set():
        try:
            await worker.start()
            return
        except StorageError:
            await actor.pause(100)


def register_tasks(app: Windlass, journal: Journal) -> None:
    """Register the handlers of a storm. Each records its start and its end with its token."""

    def begin() -> tuple[Job[Any], dict[str, Any]]:
        job = current_job()
        journal.write("start", id=job.id, queue=job.queue_name, token=job.run_id, attempt=job.attempt)
        return job, job.kwargs

    def end(job: Job[Any], facts: dict[str, Any]) -> str:
        if facts.get("snooze") and job.deliveries == 1:
            raise Snooze(0.1)
        if job.attempt <= facts.get("fails", 0):
            raise StormError(f"attempt {job.attempt} of {job.id} is to fail")
        journal.write("end", id=job.id, token=job.run_id)
        return job.id

    @app.task(name="work", queue=plan.PLAIN)
    async def work(**facts: Any) -> str:
        job, _ = begin()
        await asyncio.sleep(facts["ms"] / 1_000)
        return end(job, facts)

    @app.task(name="grind", queue=plan.PLAIN)
    def grind(**facts: Any) -> str:
        job, _ = begin()
        time.sleep(facts["ms"] / 1_000)
        return end(job, facts)

    @app.task(name="gather", queue=plan.FLOWS)
    async def gather(**facts: Any) -> str:
        job, _ = begin()
        values = await job.get_children_values()
        journal.write("gathered", id=job.id, found=sorted(values.values()))
        return end(job, facts)

    @app.task(name="tick", queue=plan.TICKS)
    async def tick() -> str:
        job, facts = begin()
        journal.write("tick", id=job.id, slot=job.slot_ms)
        return end(job, facts)


# --- producers ------------------------------------------------------------------------------------


class _Producer:
    """Adds the jobs of the plan, and repeats each request until the store has answered."""

    def __init__(self, actor: Actor) -> None:
        self.actor = actor
        self.app = actor.app
        self.journal = actor.journal
        self._flows = FlowProducer(actor.app)
        self._count = 0

    async def run(self) -> None:
        role = self.actor.role
        for step in plan.steps_of(role.settings, role.number, role.incarnation, role.can):
            await self._step(step)
            if not await self.actor.pause(step.pause_ms):
                return

    async def _step(self, step: plan.ProducerStep) -> None:
        named = [self._name(job) for job in step.jobs]
        if step.kind == "flow":
            await self._add_flow(named[0])
            return
        requests = self._prepare(named)
        await self._add(named, requests)
        if step.again:
            # A new request for the id of a failed job would add it anew, as users may do.
            fails = named[0].work.fails >= _MAX_ATTEMPTS
            await self._add(named[:1], requests[:1] if fails else self._prepare(named[:1]), op="again")
        if step.cancel:
            await self._cancel(named[0])

    def _name(self, job: plan.NewWork) -> _Named:
        """A job with its id: the producer, its incarnation, and a number that grows."""
        self._count += 1
        number = f"{self.actor.role.incarnation:03}-{self._count:06}"
        children = [self._name(child) for child in job.children]
        job_id = f"p{self.actor.role.number}-{number}"
        return _Named(job, job_id, children, keep=self.actor.role.settings.keep)

    def _prepare(self, named: list[_Named]) -> list[NewJob]:
        queue = self.app.queue(named[0].work.queue)
        return [queue.prepare(**one.item()) for one in named]

    async def _add(self, named: list[_Named], jobs: list[NewJob], op: str = "ack") -> None:
        """Add jobs, and repeat the request until it is acknowledged. ``jobs`` are those of ``named``."""
        self.journal.write("try", jobs=[one.facts() for one in named])
        answered = await self._call_until_answered(lambda: self.app.store.execute(rq.Add(jobs=jobs)))
        if answered is not None:
            outcomes = [[job.id, str(added.outcome)] for job, added in zip(jobs, answered, strict=True)]
            self.journal.write(op, outcomes=outcomes, at=store_ms(self.actor.role.clock))

    async def _add_flow(self, top: _Named) -> None:
        """Add a flow without repeating. If the answer is lost, the flow may exist or not."""
        self.journal.write("try", jobs=[one.facts() for one in (top, *top.children)], parent=top.id)
        try:
            node = await self._flows.add(top.tree())
        except StorageError:
            return
        outcomes = [[each.id, str(each.job.outcome or AddOutcome.QUEUED)] for each in node.walk()]
        self.journal.write("ack", outcomes=outcomes, at=store_ms(self.actor.role.clock))

    async def _cancel(self, one: _Named) -> None:
        self.journal.write("cancelling", id=one.id)
        queue = self.app.queue(one.work.queue)
        answer = await self._call_until_answered(lambda: queue.cancel(one.id))
        if answer is not None:
            self.journal.write("cancel", id=one.id, answer=str(answer), at=store_ms(self.actor.role.clock))

    async def _call_until_answered(self, call: Any) -> Any:
        """Repeat ``call`` until it is answered; None after a timeout or after ``stop``."""
        give_up = time.monotonic() + _CALL_TIMEOUT_S
        while time.monotonic() < give_up:
            try:
                return await call()
            except StorageError:
                if not await self.actor.pause(50):
                    return None
        return None


class _Named:
    """A job of the plan with its id."""

    def __init__(self, work: plan.NewWork, id: str, children: list[_Named], keep: int) -> None:
        self.keep = plan.KEEP_COUNT if work.queue == plan.KEPT else keep
        self.work = work
        self.id = id
        self.children = children

    def facts(self) -> dict[str, Any]:
        """The properties of the job that invariants need."""
        work = self.work
        facts: dict[str, Any] = {"id": self.id, "queue": work.queue, "group": work.group, "cost": work.cost}
        if self.children:
            facts["children"] = [[child.work.queue, child.id] for child in self.children]
        return facts

    def options(self) -> dict[str, Any]:
        work = self.work
        options: dict[str, Any] = {
            "job_id": self.id,
            "max_attempts": _MAX_ATTEMPTS,
            "backoff": {"type": "fixed", "delay": 0.1},
            "priority": work.priority,
            "max_stalls": 8,
        }
        if work.delay_ms:
            options["delay"] = work.delay_ms / 1_000
        if work.group is not None:
            options |= {"group": work.group, "cost": work.cost}
        if self.keep:
            options["keep_completed"] = self.keep
        return options

    @property
    def data(self) -> dict[str, Any]:
        return {"ms": self.work.ms, "fails": self.work.fails, "snooze": self.work.snooze}

    def item(self) -> dict[str, Any]:
        return {"name": self.work.task, "data": self.data, **self.options()}

    def tree(self) -> dict[str, Any]:
        return {
            "name": self.work.task,
            "queue": self.work.queue,
            "data": self.data,
            "options": self.options(),
            "children": [child.tree() for child in self.children],
        }


async def _produce(actor: Actor) -> None:
    await _Producer(actor).run()


# --- the pauser -----------------------------------------------------------------------------------


async def _pause_queues(actor: Actor) -> None:
    """Pause queues for short times. A pause that was acknowledged must hold until the resume is sent."""
    clock = actor.role.clock
    for name, wait_ms, hold_ms in plan.pauses_of(actor.role.settings, actor.role.incarnation):
        if not await actor.pause(wait_ms):
            return
        queue = actor.app.queue(name)
        try:
            await queue.pause()
            actor.journal.write("paused", queue=name, at=store_ms(clock))
        except StorageError:
            pass
        await actor.pause(hold_ms)
        actor.journal.write("resuming", queue=name, at=store_ms(clock))
        while not actor.switches.dead:
            try:
                await queue.resume()
                break
            except StorageError:
                await asyncio.sleep(0.05)


_KINDS = {"worker": _work, "producer": _produce, "pauser": _pause_queues}
