"""Run one storm: prepare the store, start the actors, inject faults, drain the queues, check invariants."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from tools.storm import invariants, mutants, plan
from tools.storm.evidence import Evidence, gather, prune_all, unfinished
from tools.storm.fault_injection import ActorPool, FaultInjector
from tools.storm.invariants import INVARIANTS, Violation
from tools.storm.plan import Can, Settings
from tools.storm.skew import Skew, store_ms
from tools.storm.stores import StormStore
from windlass import StorageError, Windlass
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.errors import ConfigError

_STOP_S = 30.0


class Report(msgspec.Struct, kw_only=True):
    """What happened in a storm, and the violations that were found."""

    backend: str
    settings: Settings
    decisions: str
    #: Features that were not used because the store does not have them.
    left_out: list[str]
    faults: dict[str, int]
    acknowledged: int
    unanswered: int
    attempts: int
    outcomes: dict[str, int]
    recovered: int
    lost_replies: int
    lost_in_lag: int
    history_gone: int = 0
    invariants: int
    violations: list[Violation]

    @property
    def ok(self) -> bool:
        return not self.violations


def choose_faults(store: StormStore, wanted: Iterable[str] | None) -> list[str]:
    """The faults of a storm in a fixed order: the ``wanted`` ones, or all that apply to the store.

    Faults of ``plan.BY_NAME`` are included only if they are in ``wanted``. Raises ``ConfigError`` for a fault
    that does not apply to the store.
    """
    if wanted is None:
        return [kind for kind in plan.FAULTS if kind in store.faults]
    chosen = set(wanted)
    for kind in chosen - store.faults:
        raise ConfigError("faults", f"some of {', '.join(sorted(store.faults))} on {store.name}", kind)
    return [kind for kind in (*plan.FAULTS, *plan.BY_NAME) if kind in chosen]


async def run_storm(
    store: StormStore,
    settings: Settings,
    *,
    faults: Iterable[str] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Report:
    """Run a storm on ``store``, which is started before and stopped afterwards."""
    kinds = choose_faults(store, faults)
    await asyncio.to_thread(store.start)
    try:
        storm = _Storm(store, settings, kinds, say)
        evidence = await storm.run()
    finally:
        await asyncio.to_thread(store.stop)
    return _report(store, evidence, kinds, storm.done)


class _Storm:
    """The phases of a storm."""

    def __init__(
        self, store: StormStore, settings: Settings, kinds: list[str], say: Callable[[str], None]
    ) -> None:
        self._store = store
        self._settings = settings
        self._kinds = kinds
        self._say = say
        self._directory = store.directory / "journals"
        self._directory.mkdir(parents=True, exist_ok=True)
        self.done: Counter[str] = Counter()

    async def run(self) -> Evidence:
        skew = Skew(self._directory / "skew")
        undo_skew = skew.install()
        undo_mutant = mutants.install(self._settings.mutant) if self._store.in_process else None
        admin = Windlass(self._store.url, name="storm")
        pool = ActorPool(self._store, self._settings, str(self._directory))
        try:
            await self._prepare(admin)
            injector = FaultInjector(pool, admin, skew, self._say, self._directory)
            evidence = await self._run_phases(admin, pool, injector)
            await gather(admin, evidence, self._directory)
            # In two minutes every grace period has passed. No evidence is read after this.
            evidence.kept = await prune_all(admin, store_ms(self._store.clock) + 120_000)
            return evidence
        finally:
            await pool.close()
            await admin.close()
            undo_skew()
            if undo_mutant is not None:
                undo_mutant()

    async def _prepare(self, admin: Windlass) -> None:
        """Set limits and a schedule, and register an archiver, before the first job is added."""
        can = self._store.can
        # An archiver that has copied nothing makes the store keep its whole history.
        await admin.store.execute(rq.Archive(name="storm", cursors=dict.fromkeys(plan.QUEUES, 0)))
        if can.limits:
            limited = admin.queue(plan.LIMITED)
            await limited.set_global_concurrency(plan.QUEUE_CONCURRENCY)
            most, per_ms = plan.QUEUE_RATE
            await limited.set_global_rate_limit((most, per_ms / 1_000))
        if can.groups:
            grouped = admin.queue(plan.GROUPED)
            most, per_ms = plan.GROUP_RATE
            await grouped.set_group_limits(plan.ORDERED, ordered=True)
            await grouped.set_group_limits(plan.NARROW, concurrency=plan.GROUP_CONCURRENCY)
            await grouped.set_group_limits(plan.RATED, rate=(most, per_ms / 1_000))
            await grouped.set_group_limits(plan.BUCKET, bucket=plan.GROUP_BUCKET)
        if can.schedules:
            rule = {"every": plan.TICK_MS / 1_000}
            await admin.queue(plan.TICKS).upsert_job_scheduler("tick", rule, {"name": "tick"})

    async def _run_phases(self, admin: Windlass, pool: ActorPool, injector: FaultInjector) -> Evidence:
        settings = self._settings
        for number in range(settings.workers):
            await pool.start_actor("worker", number)
        for number in range(settings.producers):
            await pool.start_actor("producer", number)
        await pool.start_actor("pauser", 0)
        await pool.wait_until_up()
        watch = asyncio.create_task(injector.watch_machine())
        try:
            await injector.inject(plan.faults_of(settings, self._kinds))
            await injector.end_faults()
            await self._stop(pool, "producer", "pauser")
            await self._restart_dead_workers(pool)
            self._say("the faults are over, the remaining jobs are processed")
            stuck = await self._drain(admin)
            await self._stop(pool, "worker")
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        self.done = injector.done
        return Evidence(
            settings=settings,
            can=self._store.can,
            clock=self._store.clock,
            loss_window_ms=self._store.loss_window_ms,
            pause_delay_ms=self._store.pause_delay_ms,
            repeats_late=self._store.repeats_late,
            exempt=self._store.exempt,
            incidents=injector.incidents,
            crashes=pool.crashes(),
            stuck=stuck,
        )

    async def _stop(self, pool: ActorPool, *kinds: str) -> None:
        actors = [actor for kind in kinds for actor in pool.of(kind)]
        for actor in actors:
            actor.stop()
        for actor in actors:
            if not await actor.ended(_STOP_S):
                self._say(f"{actor.name} did not end in time and was killed")

    async def _restart_dead_workers(self, pool: ActorPool) -> None:
        for actor in pool.of("worker"):
            if not actor.alive:
                await pool.start_actor("worker", actor.role.number)

    async def _drain(self, admin: Windlass) -> dict[str, dict[str, int]]:
        """Wait until no job is left, or until there is no progress for ``patience`` seconds.

        Returns the counts of the jobs that are left. A busy machine may take long, which is fine as long as
        the number of jobs decreases.
        """
        loop = asyncio.get_running_loop()
        patience = self._settings.patience
        give_up, least = loop.time() + patience, sys.maxsize
        left: dict[str, dict[str, int]] = {"store": {"unreachable": 1}}
        opened = False
        while loop.time() < give_up:
            with contextlib.suppress(StorageError):
                if not opened:
                    await self._open_all(admin)
                    opened = True
                if self._store.can.flows:
                    await admin.store.execute(fl.Relay())
                left = await unfinished(admin)
                if not left:
                    return {}
                open_jobs = sum(count for counts in left.values() for count in counts.values())
                if open_jobs < least:
                    give_up, least = loop.time() + patience, open_jobs
            await asyncio.sleep(0.1)
        return left

    async def _open_all(self, admin: Windlass) -> None:
        if self._store.can.schedules:
            await admin.queue(plan.TICKS).remove_job_scheduler("tick")
        for name in plan.QUEUES:
            await admin.queue(name).resume()


def left_out(can: Can) -> list[str]:
    """The features that a store does not have."""
    return [name for name in Can.__struct_fields__ if not getattr(can, name)]


def _report(store: StormStore, evidence: Evidence, kinds: list[str], done: Counter[str]) -> Report:
    outcomes = Counter(row.outcome.value for row in evidence.history)
    acknowledged = evidence.acknowledged()
    lost = [job_id for job_id, at_ms in invariants.lost_jobs(evidence) if evidence.in_lag(at_ms)]
    return Report(
        backend=store.name,
        settings=evidence.settings,
        decisions=plan.digest(evidence.settings, kinds, evidence.can),
        left_out=left_out(evidence.can),
        faults={kind: done[kind] for kind in kinds},
        acknowledged=len(acknowledged),
        unanswered=len(set(evidence.tried()) - set(acknowledged)),
        attempts=sum(row.started_ms is not None for row in evidence.history),
        outcomes=dict(sorted(outcomes.items())),
        recovered=outcomes["stalled"],
        lost_replies=len(evidence.of("lost")),
        lost_in_lag=len(lost),
        history_gone=evidence.history_gone,
        invariants=len(INVARIANTS) - len(store.exempt),
        violations=invariants.check(evidence),
    )
