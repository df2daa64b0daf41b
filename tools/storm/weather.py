"""Carries out the faults of a plan, and keeps the book of what was really done to whom."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

from tools.storm import plan
from tools.storm.actors import LAG_S, Role
from tools.storm.cast import Member, ProcessMember, TaskMember
from tools.storm.evidence import STANDSTILL_S, Trouble
from tools.storm.journal import Journal
from tools.storm.plan import Fault, Settings
from tools.storm.proxy import FaultyProxy
from tools.storm.skew import Skew, own_skew, store_ms
from tools.storm.stores import StormStore
from windlass import ClosedError, StorageError, Windlass
from windlass_conformance.damage import damage, kinds

#: With a full disk no file may grow beyond this: more than a file of a journal, less than any store's.
CRAMPED_BYTES = 260_000


class Company:
    """All living members of the cast, and how to bring in more."""

    def __init__(self, store: StormStore, settings: Settings, directory: str) -> None:
        self.store = store
        self.settings = settings
        self._directory = directory
        self.members: dict[tuple[str, int], Member] = {}
        self._incarnations: Counter[tuple[str, int]] = Counter()
        self._gone: list[Member] = []

    async def bring(self, kind: str, number: int) -> Member:
        """A new incarnation of an actor; the one before must be dead."""
        key = (kind, number)
        before = self.members.get(key)
        if before is not None:
            self._gone.append(before)
            if isinstance(before, ProcessMember):
                await before.close()
        wire, url = None, self.store.url
        if self.store.port is not None:
            wire = await FaultyProxy(self.store.port).open()
            url = self.store.url_by(wire.port)
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
        made = TaskMember(role, wire) if self.store.in_process else ProcessMember(role, wire)
        self.members[key] = made
        return made

    async def wait_until_up(self, patience: float = 180.0) -> None:
        """Return when everybody has begun: starting a process takes a while."""
        give_up = asyncio.get_running_loop().time() + patience
        for member in self.members.values():
            while not member.is_up:
                if asyncio.get_running_loop().time() > give_up:
                    raise TimeoutError(f"{member.name} did not start within {patience:g} s: {member.crash()}")
                await asyncio.sleep(0.02)

    def of(self, kind: str) -> list[Member]:
        return [member for (its, _), member in sorted(self.members.items()) if its == kind]

    def crashes(self) -> list[str]:
        """What members say that ended by themselves."""
        found = [member.crash() for member in [*self._gone, *self.members.values()]]
        return [text for text in found if text]

    async def close(self) -> None:
        """Kill whoever is left and wait for them all."""
        for member in [*self.members.values(), *self._gone]:
            await member.close()


class Weather:
    """One storm's faults."""

    def __init__(
        self, company: Company, admin: Windlass, skew: Skew, say: Callable[[str], None], directory: Path
    ) -> None:
        self._company = company
        self._store = company.store
        self._settings = company.settings
        self._admin = admin
        self._skew = skew
        self._say = say
        self._directory = directory
        self._journal: Journal | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._freezing: set[Member] = set()
        self._whole = asyncio.Lock()  # what hits everybody happens one at a time
        self.troubles: list[Trouble] = []
        self.done: Counter[str] = Counter()

    def now_ms(self) -> int:
        return store_ms(self._store.clock)

    async def blow(self, faults: list[Fault]) -> None:
        """Carry out the faults, each at its time; returns when the storm's time is over."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        for fault in faults:
            await asyncio.sleep(max(start + fault.at_s - loop.time(), 0))
            self._say(f"{loop.time() - start:7.2f} s  {fault.kind} {fault.target} {fault.force}")
            task = asyncio.create_task(self._carry_out(fault))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        await asyncio.sleep(max(start + self._settings.seconds - loop.time(), 0))

    async def calm_down(self) -> None:
        """Wait until the last fault is over and repair what can be repaired."""
        if self._under_way:
            await asyncio.gather(*self._under_way)
        for member in self._company.members.values():
            if member.wire is not None:
                member.wire.mend()
            member.cramp(None)
            member.thaw()

    async def _carry_out(self, fault: Fault) -> None:
        from_ms = self.now_ms()
        hit = await _HITS[fault.kind](self, fault)
        if hit is not None:
            self.note(fault.kind, hit, from_ms)
            self.done[fault.kind] += 1

    def note(self, kind: str, worker: str, from_ms: int, ahead_ms: int = 0) -> None:
        now_ms = self.now_ms()
        first, last = min(from_ms, now_ms), max(from_ms, now_ms)
        self.troubles.append(Trouble(kind=kind, worker=worker, from_ms=first, to_ms=last, ahead_ms=ahead_ms))

    async def watch_machine(self) -> None:
        """Note when this machine was too busy to run a loop in time: leases may run out then."""
        loop = asyncio.get_running_loop()
        while True:
            before, from_ms = loop.time(), self.now_ms()
            await asyncio.sleep(0.1)
            if loop.time() - before > 0.1 + LAG_S:
                self.note("busy-machine", "*", from_ms)

    # --- whom, and how long -------------------------------------------------------------------------

    def _pick(self, kind: str, target: int) -> Member:
        found = self._company.of(kind)
        return found[target % len(found)]

    def _anybody(self, target: int) -> Member:
        found = self._company.of("worker") + self._company.of("producer")
        return found[target % len(found)]

    async def _replace(self, member: Member, after_s: float) -> None:
        await asyncio.sleep(after_s)
        key = (member.role.kind, member.role.number)
        if self._company.members.get(key) is member and not member.alive:
            await self._company.bring(*key)

    # --- the faults -----------------------------------------------------------------------------------

    async def kill(self, fault: Fault) -> str | None:
        return await self._kill(self._pick("worker", fault.target), fault)

    async def kill_producer(self, fault: Fault) -> str | None:
        return await self._kill(self._pick("producer", fault.target), fault)

    async def kill_leader(self, fault: Fault) -> str | None:
        with contextlib.suppress(StorageError, ClosedError):  # closed: the power has just failed
            leaders = [info.id for info in await self._admin.workers() if info.leader]
            for member in self._company.of("worker"):
                if member.name in leaders and member.alive:
                    return await self._kill(member, fault)
        return None  # nobody leads just now

    async def _kill(self, member: Member, fault: Fault) -> str | None:
        if not member.alive:
            return None
        member.kill()
        await self._replace(member, fault.force * 0.8)
        return member.name

    async def freeze(self, fault: Fault) -> str | None:
        member = self._pick("worker", fault.target)
        if not member.alive or member in self._freezing:
            return None
        self._freezing.add(member)  # at most one freeze at a time: a second one would find it asleep
        try:
            frozen = await member.freeze()
        finally:
            self._freezing.discard(member)
        if not frozen:
            return None
        await asyncio.sleep(self._settings.lease + 0.6 + fault.force)
        member.thaw()
        return member.name

    async def lost_reply(self, fault: Fault) -> str | None:
        member = self._anybody(fault.target)
        if not member.alive or not member.is_up:
            return None
        member.lose_replies()
        return member.name

    async def cut(self, fault: Fault) -> str | None:
        member = self._anybody(fault.target)
        if member.wire is None:
            return None
        member.wire.refusing = True
        member.wire.cut()
        await asyncio.sleep(fault.force * 2)
        member.wire.mend()
        return member.name

    async def slow(self, fault: Fault) -> str | None:
        member = self._anybody(fault.target)
        if member.wire is None:
            return None
        member.wire.delay = 0.05 + fault.force * 0.4
        await asyncio.sleep(0.5 + fault.force)
        member.wire.mend()
        return member.name

    async def half_open(self, fault: Fault) -> str | None:
        member = self._anybody(fault.target)
        if member.wire is None:
            return None
        member.wire.go_dead()
        await asyncio.sleep(1 + fault.force * 3)
        member.wire.mend()
        return member.name

    async def hurt_store(self, fault: Fault) -> str | None:
        async with self._whole:
            await asyncio.to_thread(self._store.hurt, fault.kind, fault.target, fault.force)
        return "*"

    async def clock(self, fault: Fault) -> str | None:
        before_ms = self.now_ms()
        self._skew.offset_ms = round((fault.force - 0.35) * 3_000)
        self.note("clock", "*", before_ms)
        return "*"

    async def clock_ahead(self, fault: Fault) -> str | None:
        """One process believes for a moment that it is later; the store hears of it with its next request."""
        member = self._anybody(fault.target)
        if not member.alive or not member.is_up or self._whole.locked():
            return None
        async with self._whole:  # one clock at a time, until the store's time has followed back
            own, from_ms = own_skew(self._directory, member.name), self.now_ms()
            own.offset_ms = ahead_ms = round(10_000 + fault.force * 20_000)
            await asyncio.sleep(0.2 + fault.force)
            own.offset_ms = 0
            await asyncio.sleep(STANDSTILL_S)
            self.note("clock-ahead", "*", from_ms, ahead_ms)  # leases look as if they had run out, everywhere
        return member.name

    async def damaged_record(self, fault: Fault) -> str | None:
        """Add a job that waits for its time, and make its record unreadable before that time comes."""
        kind = kinds(self._store.url)[fault.target % len(kinds(self._store.url))]
        queue, job_id = plan.PLAIN, f"victim-{len(self.troubles):04}-{fault.target:03}"
        if self._journal is None:
            self._journal = Journal(self._directory, "weather-0.0")
        facts = {"id": job_id, "queue": queue, "group": None, "cost": 1}
        self._journal.write("try", jobs=[facts])
        job = await self._admin.queue(queue).add(
            "work", {"ms": 1, "fails": 0, "snooze": False}, job_id=job_id, delay=3 + 3 * fault.force
        )
        self._journal.write("ack", outcomes=[[job_id, str(job.outcome)]], at=self.now_ms())
        done = await asyncio.to_thread(damage, self._store.url, queue, job_id, kind)
        if done.ref is not None:
            self._journal.write("damaged", id=done.ref.id, queue=done.ref.queue, kind=kind)
        return ""  # nothing happened to any worker

    async def full_disk(self, fault: Fault) -> str | None:
        async with self._whole:
            for member in self._company.members.values():
                member.cramp(CRAMPED_BYTES)
            await asyncio.sleep(0.3 + fault.force)
            for member in self._company.members.values():
                member.cramp(None)
        return "*"

    async def torn(self, fault: Fault) -> str | None:
        async with self._whole:
            members = list(self._company.members.values())
            await self._admin.close()
            for member in members:
                member.kill()
            self._store.hurt(fault.kind, fault.target, fault.force)
            with contextlib.suppress(StorageError):
                await self._admin.open()
            for member in members:
                await self._company.bring(member.role.kind, member.role.number)
        return "*"


_HITS: dict[str, Callable[[Weather, Fault], Awaitable[str | None]]] = {
    "kill": Weather.kill,
    "kill-leader": Weather.kill_leader,
    "kill-producer": Weather.kill_producer,
    "freeze": Weather.freeze,
    "lost-reply": Weather.lost_reply,
    "cut": Weather.cut,
    "slow": Weather.slow,
    "half-open": Weather.half_open,
    "kill-store": Weather.hurt_store,
    "restart-store": Weather.hurt_store,
    "freeze-store": Weather.hurt_store,
    "failover": Weather.hurt_store,
    "clock": Weather.clock,
    "full-disk": Weather.full_disk,
    "torn": Weather.torn,
    "clock-ahead": Weather.clock_ahead,
    "damaged-record": Weather.damaged_record,
}
