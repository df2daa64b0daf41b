"""Injects the faults of a plan, and records which faults were injected, when and into which actor."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from tools.storm import plan
from tools.storm.actor_handles import ActorHandle, ProcessHandle, TaskHandle
from tools.storm.actors import LAG_S, Role
from tools.storm.evidence import STANDSTILL_S, Incident
from tools.storm.journal import Journal
from tools.storm.plan import Fault, Settings
from tools.storm.proxy import FaultyProxy
from tools.storm.skew import Skew, own_skew, store_ms
from tools.storm.stores import StormStore
from windlass import ClosedError, StorageError, Windlass
from windlass_conformance.damage import damage, kinds

#: The largest file size during ``full-disk``. A file of a journal is smaller, the files of stores are larger.
FULL_DISK_BYTES = 260_000


class ActorPool:
    """All actors of a storm. Starts them, and starts them again after a fault."""

    def __init__(self, store: StormStore, settings: Settings, directory: str) -> None:
        self.store = store
        self.settings = settings
        self._directory = directory
        self.actors: dict[tuple[str, int], ActorHandle] = {}
        self._incarnations: Counter[tuple[str, int]] = Counter()
        self._gone: list[ActorHandle] = []

    async def start_actor(self, kind: str, number: int) -> ActorHandle:
        """Start a new incarnation of an actor. The one before must be dead."""
        key = (kind, number)
        before = self.actors.get(key)
        if before is not None:
            self._gone.append(before)
            if isinstance(before, ProcessHandle):
                await before.close()
        proxy, url = None, self.store.url
        if self.store.port is not None:
            proxy = await FaultyProxy(self.store.port).open()
            url = self.store.url_by(proxy.port)
        role = Role(
            kind=kind,
            number=number,
            incarnation=self._incarnations[key],
            url=url,
            directory=self._directory,
            settings=self.settings,
            can=self.store.can,
            clock=self.store.clock,
            freeze_point=self.store.freeze_point,
        )
        self._incarnations[key] += 1
        made = TaskHandle(role, proxy) if self.store.in_process else ProcessHandle(role, proxy)
        self.actors[key] = made
        return made

    async def wait_until_up(self, patience: float = 180.0) -> None:
        """Return when all actors have started. Raises ``TimeoutError``."""
        give_up = asyncio.get_running_loop().time() + patience
        for actor in self.actors.values():
            while not actor.is_up:
                if asyncio.get_running_loop().time() > give_up:
                    raise TimeoutError(f"{actor.name} did not start within {patience:g} s: {actor.crash()}")
                await asyncio.sleep(0.02)

    def of(self, kind: str) -> list[ActorHandle]:
        return [actor for (name, _), actor in sorted(self.actors.items()) if name == kind]

    def crashes(self) -> list[str]:
        """The errors of actors that ended by themselves."""
        found = [actor.crash() for actor in [*self._gone, *self.actors.values()]]
        return [text for text in found if text]

    async def close(self) -> None:
        """Kill all actors that are left, and wait for them."""
        for actor in [*self.actors.values(), *self._gone]:
            await actor.close()


class FaultInjector:
    """Injects the faults of one storm. ``incidents`` lists what was done, ``done`` counts it by kind."""

    def __init__(
        self, pool: ActorPool, admin: Windlass, skew: Skew, say: Callable[[str], None], directory: Path
    ) -> None:
        self._pool = pool
        self._store = pool.store
        self._settings = pool.settings
        self._admin = admin
        self._skew = skew
        self._say = say
        self._directory = directory
        self._journal: Journal | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._freezing: set[ActorHandle] = set()
        self._whole = asyncio.Lock()  # faults that affect all actors are injected one at a time
        self.incidents: list[Incident] = []
        self.done: Counter[str] = Counter()

    def now_ms(self) -> int:
        return store_ms(self._store.clock)

    async def inject(self, faults: list[Fault]) -> None:
        """Inject the faults, each at its time; returns at the end of the storm."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        for fault in faults:
            await asyncio.sleep(max(start + fault.at_s - loop.time(), 0))
            self._say(f"{loop.time() - start:7.2f} s  {fault.kind} {fault.target} {fault.force}")
            task = asyncio.create_task(self._inject_one(fault))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        await asyncio.sleep(max(start + self._settings.seconds - loop.time(), 0))

    async def end_faults(self) -> None:
        """Wait until the last fault is over, and undo lasting effects such as frozen processes."""
        if self._under_way:
            await asyncio.gather(*self._under_way)
        for actor in self._pool.actors.values():
            if actor.proxy is not None:
                actor.proxy.repair()
            actor.limit_file_size(None)
            actor.thaw()

    async def _inject_one(self, fault: Fault) -> None:
        from_ms = self.now_ms()
        hit = await _INJECTORS[fault.kind](self, fault)
        if hit is not None:
            self.note(fault.kind, hit, from_ms)
            self.done[fault.kind] += 1

    def note(self, kind: str, worker: str, from_ms: int, ahead_ms: int = 0) -> None:
        now_ms = self.now_ms()
        first, last = min(from_ms, now_ms), max(from_ms, now_ms)
        self.incidents.append(
            Incident(kind=kind, worker=worker, from_ms=first, to_ms=last, ahead_ms=ahead_ms)
        )

    async def watch_machine(self) -> None:
        """Record when this machine was too busy to run an event loop in time: then leases may expire."""
        loop = asyncio.get_running_loop()
        while True:
            before, from_ms = loop.time(), self.now_ms()
            await asyncio.sleep(0.1)
            if loop.time() - before > 0.1 + LAG_S:
                self.note("busy-machine", "*", from_ms)

    # --- choosing and replacing actors --------------------------------------------------------------

    def _pick(self, kind: str, target: int) -> ActorHandle:
        found = self._pool.of(kind)
        return found[target % len(found)]

    def _pick_any(self, target: int) -> ActorHandle:
        found = self._pool.of("worker") + self._pool.of("producer")
        return found[target % len(found)]

    async def _replace(self, actor: ActorHandle, after_s: float) -> None:
        await asyncio.sleep(after_s)
        key = (actor.role.kind, actor.role.number)
        if self._pool.actors.get(key) is actor and not actor.alive:
            await self._pool.start_actor(*key)

    # --- the faults: each returns the name of the actor, "*" for all, or None if it was not injected ----

    async def kill(self, fault: Fault) -> str | None:
        return await self._kill(self._pick("worker", fault.target), fault)

    async def kill_producer(self, fault: Fault) -> str | None:
        return await self._kill(self._pick("producer", fault.target), fault)

    async def kill_leader(self, fault: Fault) -> str | None:
        with contextlib.suppress(StorageError, ClosedError):  # ``torn`` closes the client
            leaders = [info.id for info in await self._admin.workers() if info.leader]
            for actor in self._pool.of("worker"):
                if actor.name in leaders and actor.alive:
                    return await self._kill(actor, fault)
        return None  # there is no leader now

    async def _kill(self, actor: ActorHandle, fault: Fault) -> str | None:
        if not actor.alive:
            return None
        actor.kill()
        await self._replace(actor, fault.force * 0.8)
        return actor.name

    async def freeze(self, fault: Fault) -> str | None:
        actor = self._pick("worker", fault.target)
        if not actor.alive or actor in self._freezing:
            return None
        self._freezing.add(actor)  # a process that is frozen already cannot be frozen again
        try:
            frozen = await actor.freeze()
        finally:
            self._freezing.discard(actor)
        if not frozen:
            return None
        await asyncio.sleep(self._settings.lease + 0.6 + fault.force)
        actor.thaw()
        return actor.name

    async def lost_reply(self, fault: Fault) -> str | None:
        actor = self._pick_any(fault.target)
        if not actor.alive or not actor.is_up:
            return None
        actor.lose_replies()
        return actor.name

    async def cut(self, fault: Fault) -> str | None:
        actor = self._pick_any(fault.target)
        if actor.proxy is None:
            return None
        actor.proxy.refusing = True
        actor.proxy.cut()
        await asyncio.sleep(fault.force * 2)
        actor.proxy.repair()
        return actor.name

    async def slow(self, fault: Fault) -> str | None:
        actor = self._pick_any(fault.target)
        if actor.proxy is None:
            return None
        actor.proxy.delay = 0.05 + fault.force * 0.4
        await asyncio.sleep(0.5 + fault.force)
        actor.proxy.repair()
        return actor.name

    async def half_open(self, fault: Fault) -> str | None:
        actor = self._pick_any(fault.target)
        if actor.proxy is None:
            return None
        actor.proxy.stall()
        await asyncio.sleep(1 + fault.force * 3)
        actor.proxy.repair()
        return actor.name

    async def store_fault(self, fault: Fault) -> str | None:
        async with self._whole:
            await asyncio.to_thread(self._store.inject_fault, fault.kind, fault.target, fault.force)
        return "*"

    async def clock(self, fault: Fault) -> str | None:
        before_ms = self.now_ms()
        self._skew.offset_ms = round((fault.force - 0.35) * 3_000)
        self.note("clock", "*", before_ms)
        return "*"

    async def clock_ahead(self, fault: Fault) -> str | None:
        """Set the clock of one process ahead for a moment. Its next request gives that time to the store."""
        actor = self._pick_any(fault.target)
        if not actor.alive or not actor.is_up or self._whole.locked():
            return None
        async with self._whole:  # one clock at a time, until the time of the store is right again
            own, from_ms = own_skew(self._directory, actor.name), self.now_ms()
            own.offset_ms = ahead_ms = round(10_000 + fault.force * 20_000)
            await asyncio.sleep(0.2 + fault.force)
            own.offset_ms = 0
            await asyncio.sleep(STANDSTILL_S)
            self.note("clock-ahead", "*", from_ms, ahead_ms)  # leases of all workers may seem to have expired
        return actor.name

    async def damaged_record(self, fault: Fault) -> str | None:
        """Add a scheduled job, and make its record unreadable before it is due."""
        kind = kinds(self._store.url)[fault.target % len(kinds(self._store.url))]
        queue, job_id = plan.PLAIN, f"victim-{len(self.incidents):04}-{fault.target:03}"
        if self._journal is None:
            self._journal = Journal(self._directory, "injector-0.0")
        facts = {"id": job_id, "queue": queue, "group": None, "cost": 1}
        self._journal.write("try", jobs=[facts])
        job = await self._admin.queue(queue).add(
            "work", {"ms": 1, "fails": 0, "snooze": False}, job_id=job_id, delay=3 + 3 * fault.force
        )
        self._journal.write("ack", outcomes=[[job_id, str(job.outcome)]], at=self.now_ms())
        done = await asyncio.to_thread(damage, self._store.url, queue, job_id, kind)
        if done.ref is not None:
            self._journal.write("damaged", id=done.ref.id, queue=done.ref.queue, kind=kind)
        return ""  # no worker was affected

    async def full_disk(self, fault: Fault) -> str | None:
        async with self._whole:
            for actor in self._pool.actors.values():
                actor.limit_file_size(FULL_DISK_BYTES)
            await asyncio.sleep(0.3 + fault.force)
            for actor in self._pool.actors.values():
                actor.limit_file_size(None)
        return "*"

    async def torn(self, fault: Fault) -> str | None:
        async with self._whole:
            actors = list(self._pool.actors.values())
            await self._admin.close()
            for actor in actors:
                actor.kill()
            self._store.inject_fault(fault.kind, fault.target, fault.force)
            with contextlib.suppress(StorageError):
                await self._admin.open()
            for actor in actors:
                await self._pool.start_actor(actor.role.kind, actor.role.number)
        return "*"


_INJECTORS: dict[str, Callable[[FaultInjector, Fault], Awaitable[str | None]]] = {
    "kill": FaultInjector.kill,
    "kill-leader": FaultInjector.kill_leader,
    "kill-producer": FaultInjector.kill_producer,
    "freeze": FaultInjector.freeze,
    "lost-reply": FaultInjector.lost_reply,
    "cut": FaultInjector.cut,
    "slow": FaultInjector.slow,
    "half-open": FaultInjector.half_open,
    "kill-store": FaultInjector.store_fault,
    "restart-store": FaultInjector.store_fault,
    "freeze-store": FaultInjector.store_fault,
    "failover": FaultInjector.store_fault,
    "clock": FaultInjector.clock,
    "full-disk": FaultInjector.full_disk,
    "torn": FaultInjector.torn,
    "clock-ahead": FaultInjector.clock_ahead,
    "damaged-record": FaultInjector.damaged_record,
}
