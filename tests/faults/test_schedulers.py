"""Five scheduler processes, one schedule with a slot in every second, one hour: one job per slot."""

from __future__ import annotations

import random
import signal
from typing import TYPE_CHECKING

import pytest

from tests.faults.kit import Child, Stage, staged, until
from tests.faults.scheduler import HOUR, QUEUE
from windlass.backend import requests as rq
from windlass.testing import SharedClock
from windlass.testing.clock import START_MS

if TYPE_CHECKING:
    from pathlib import Path

    from windlass.core.job import WorkerInfo

backend_name = "sqlite"


@pytest.mark.feature("B8", "B12", "B13")
@pytest.mark.serial
async def test_five_processes_fire_every_second_of_an_hour_once_though_two_are_killed(tmp_path: Path) -> None:
    rng = random.Random(2_026)
    async with staged(tmp_path) as stage:
        clock = SharedClock(stage.path("clock"))
        # Time passes quickly, so that those who do not lead fire as well: it will have had eight of 120.
        first = stage.spawn("tests.faults.scheduler", "tick", "goes", probes="schedule.firing=kill@8")
        await until(lambda: _names(stage), "the first process has brought its schedules along")
        others = [stage.spawn("tests.faults.scheduler", "tick", "goes") for _ in range(4)]
        await until(lambda: _count(stage, 5), "five processes")

        # Small steps first: a leap would end the leadership of the first, and with it its firing.
        await _drive(stage, clock, rng, until_s=120, steps=(1,))
        assert await first.ended() == -signal.SIGKILL, "killed between looking at a slot and firing it"
        await _drive(stage, clock, rng, until_s=HOUR // 2)
        assert await _names(stage) == {"tick", "goes"}

        # A deploy: the new code has one schedule less.
        others.append(stage.spawn("tests.faults.scheduler", "tick"))
        await until(lambda: _deployed(stage), "the schedule that the code no longer has is gone")
        await _drive(stage, clock, rng, until_s=HOUR * 3 // 4)
        while (victim := await _leader(stage, others)) is None:
            await _drive(stage, clock, rng, until_s=round(clock.now_ms() - START_MS) // 1_000 + 10)
        victim.signal(signal.SIGKILL)
        assert await victim.ended() == -signal.SIGKILL

        await _drive(stage, clock, rng, until_s=HOUR + 5)
        assert await _names(stage) == {"tick"}
        await _stop(others, victim)
        queue = stage.app.queue(QUEUE)
        totals = await stage.totals(QUEUE)
        ticks = await queue.get_jobs("waiting", limit=1_000, newest_first=False)
        slots = [job.slot_ms for job in ticks if job.name == "tick"]
        while ticks.cursor is not None:
            ticks = await queue.get_jobs("waiting", ticks.cursor, 1_000, newest_first=False)
            slots += [job.slot_ms for job in ticks if job.name == "tick"]
        assert slots == [START_MS + n * 1_000 for n in range(1, HOUR + 1)]
        rows = await queue.get_metrics()
        assert {row.task: row.total for row in rows if row.outcome == "enqueued"}["tick"] == HOUR
        assert totals["enqueued"] == await queue.count()
        clock.close()


async def _drive(
    stage: Stage,
    clock: SharedClock,
    rng: random.Random,
    *,
    until_s: int,
    steps: tuple[float, ...] = (0.4, 1, 3, 20, 45, 150),
) -> None:
    """Let time pass in uneven steps; after each, wait for every slot that is more than a second old."""
    while (now_s := (clock.now_ms() - START_MS) / 1000) < until_s:
        step = min(rng.choice(steps) * rng.uniform(0.5, 1.5), until_s - now_s + 0.001)
        await clock.advance(step)
        now_s = (clock.now_ms() - START_MS) / 1000
        wanted = min(int(now_s - 1.1), HOUR)
        await until(lambda wanted=wanted: _fired(stage, wanted), f"{wanted} slots are fired")  # type: ignore[misc]


async def _fired(stage: Stage, wanted: int) -> bool:
    info = await stage.app.queue(QUEUE).get_job_scheduler("tick")
    return info is not None and info.fired >= wanted


async def _names(stage: Stage) -> set[str]:
    return {info.name for info in await stage.app.schedules()}


async def _deployed(stage: Stage) -> bool:
    return await _names(stage) == {"tick"}


async def _workers(stage: Stage) -> list[WorkerInfo]:
    """Workers of any age: this process does not obey their clock."""
    return await stage.app.store.execute(rq.ListWorkers(now_ms=0))


async def _count(stage: Stage, wanted: int) -> bool:
    return len(await _workers(stage)) == wanted


async def _leader(stage: Stage, children: list[Child]) -> Child | None:
    leaders = {worker.pid for worker in await _workers(stage) if worker.leader}
    return next((child for child in children if child.pid in leaders), None)


async def _stop(children: list[Child], victim: Child) -> None:
    for child in children:
        if child is not victim:
            child.signal(signal.SIGTERM)
    for child in children:
        if child is not victim:
            assert await child.ended() == 0, child.output
