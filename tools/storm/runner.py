"""One storm from beginning to end: set the stage, let it blow, let the work come to its end, look."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterable

import msgspec

from tools.storm import invariants, mutants, plan
from tools.storm.evidence import Evidence, gather, prune_all, unfinished
from tools.storm.invariants import INVARIANTS, Violation
from tools.storm.plan import Can, Settings
from tools.storm.skew import Skew, store_ms
from tools.storm.stores import StormStore
from tools.storm.weather import Company, Weather
from windlass import StorageError, Windlass
from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.errors import ConfigError

_STOP_S = 30.0


class Report(msgspec.Struct, kw_only=True):
    """What a storm did and what was found."""

    backend: str
    settings: Settings
    decisions: str
    #: What the store cannot do, and was therefore not asked for.
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
    """The faults that a storm has, in a fixed order: those asked for, or all that the store can suffer.

    Those of ``plan.BY_NAME`` come only when they are asked for.
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
    """A storm on ``store``, which is started for it and stopped at its end."""
    kinds = choose_faults(store, faults)
    await asyncio.to_thread(store.start)
    try:
        storm = _Storm(store, settings, kinds, say)
        evidence = await storm.run()
    finally:
        await asyncio.to_thread(store.stop)
    return _report(store, evidence, kinds, storm.done)


class _Storm:
    """The parts of a storm, in their order."""

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
        company = Company(self._store, self._settings, str(self._directory))
        try:
            await self._set_stage(admin)
            weather = Weather(company, admin, skew, self._say, self._directory)
            evidence = await self._play(admin, company, weather)
            await gather(admin, evidence, self._directory)
            # Two minutes from now every grace has passed. Nothing is read after that.
            evidence.kept = await prune_all(admin, store_ms(self._store.clock) + 120_000)
            return evidence
        finally:
            await company.close()
            await admin.close()
            undo_skew()
            if undo_mutant is not None:
                undo_mutant()

    async def _set_stage(self, admin: Windlass) -> None:
        """Limits, an archiver that holds the history, a schedule: all before the first job."""
        can = self._store.can
        # Nobody has copied anything: the store must not throw history away.
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

    async def _play(self, admin: Windlass, company: Company, weather: Weather) -> Evidence:
        settings = self._settings
        for number in range(settings.workers):
            await company.bring("worker", number)
        for number in range(settings.producers):
            await company.bring("producer", number)
        await company.bring("meddler", 0)
        await company.wait_until_up()
        watch = asyncio.create_task(weather.watch_machine())
        try:
            await weather.blow(plan.faults_of(settings, self._kinds))
            await weather.calm_down()
            await self._stop(company, "producer", "meddler")
            await self._revive(company)
            self._say("the storm is over, the work goes on to its end")
            stuck = await self._work_off(admin)
            await self._stop(company, "worker")
        finally:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        self.done = weather.done
        return Evidence(
            settings=settings,
            can=self._store.can,
            clock=self._store.clock,
            loss_window_ms=self._store.loss_window_ms,
            hearsay_ms=self._store.hearsay_ms,
            repeats_late=self._store.repeats_late,
            exempt=self._store.exempt,
            troubles=weather.troubles,
            crashes=company.crashes(),
            stuck=stuck,
        )

    async def _stop(self, company: Company, *kinds: str) -> None:
        members = [member for kind in kinds for member in company.of(kind)]
        for member in members:
            member.stop()
        for member in members:
            if not await member.ended(_STOP_S):
                self._say(f"{member.name} did not end in time and was killed")

    async def _revive(self, company: Company) -> None:
        for member in company.of("worker"):
            if not member.alive:
                await company.bring("worker", member.role.number)

    async def _work_off(self, admin: Windlass) -> dict[str, dict[str, int]]:
        """Until nothing is left, or nothing gets less for as long as patience lasts; returns what is left.

        A busy machine may need long for what it was left with: that is no fault as long as the rest shrinks.
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
    """What a store cannot do."""
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
