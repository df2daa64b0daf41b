"""Named limiters: shared by queues and processes, held by leases."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import ConfigError, Job, JobState, Limiter, Windlass
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.errors import LimiterTimeoutError
from windlass.testing.wrapper import WatchedBackend
from windlass_conformance.harness import Harness
from windlass_conformance.stage import Gate, Stage, eventually

NEEDS = "limits"


@pytest.mark.feature("H16")
async def test_one_limit_holds_over_the_handlers_of_several_queues(harness: Harness) -> None:
    async with Stage(harness) as stage:
        limiter, gate = Limiter("api", stage.app, concurrency=2), Gate()

        async def handler(job: Job[Any]) -> None:
            async with limiter.acquire():
                await gate.pass_through()

        jobs = [await stage.app.queue(name).add("n") for name in ("one", "two") * 3]
        await stage.work(handler, ["one", "two"], concurrency=6)
        await eventually(lambda: gate.count == 2)
        await stage.settle()
        assert gate.count == 2
        gate.open()
        for job in jobs:
            await job.result(20)
        assert gate.count == 6
        assert await stage.app.queue("limiter.api").count() == 0


@pytest.mark.feature("H16")
async def test_a_rate_is_shared_by_everybody_who_uses_the_name(harness: Harness) -> None:
    async with Stage(harness) as stage:
        other = Windlass("memory://", clock=stage.clock)
        other.store = Store(WatchedBackend(harness.connect(harness.namespace), stage.clock), stage.clock)
        await other.store.open()
        try:
            first, second = (Limiter("api", app, rate=(2, 6)) for app in (stage.app, other))
            start, starts = stage.clock.now_ms(), list[int]()

            async def use(limiter: Limiter) -> None:
                async with limiter.acquire(timeout=300):
                    starts.append((stage.clock.now_ms() - start) // 1_000)

            users = [asyncio.create_task(use(limiter)) for limiter in (first, second) * 2]
            await eventually(lambda: len(starts) == 2)
            await stage.settle()
            await stage.advance(7)
            await asyncio.gather(*users)
            assert starts == [0, 0, 6, 6]
        finally:
            await other.close()


@pytest.mark.feature("H16")
async def test_a_limit_is_held_though_other_code_cancels_the_task_that_renews_it(harness: Harness) -> None:
    async with Stage(harness) as stage:
        limiter = Limiter("api", stage.app, concurrency=1, lease=30)
        async with limiter.acquire():
            await stage.settle()
            (keeper,) = [task for task in asyncio.all_tasks() if task.get_name() == "windlass-limiter-api"]
            keeper.cancel()
            for _ in range(4):
                await stage.advance(10)
            await stage.app.store.execute(rq.Recover())
            with pytest.raises(LimiterTimeoutError):
                async with limiter.acquire(timeout=0):
                    raise AssertionError("there was room for two")


@pytest.mark.feature("H16")
async def test_who_waits_too_long_leaves_the_line_without_a_trace(harness: Harness) -> None:
    async with Stage(harness) as stage:
        limiter = Limiter("api", stage.app, concurrency=1)
        async with limiter.acquire():
            with pytest.raises(LimiterTimeoutError):
                async with limiter.acquire(timeout=0):
                    raise AssertionError("there was room for two")
            gone = asyncio.create_task(limiter.acquire().__aenter__())
            await stage.settle()
            gone.cancel()
            with pytest.raises(asyncio.CancelledError):
                await gone
            counts = await stage.app.queue("limiter.api").get_job_counts()
            assert (counts[JobState.WAITING], counts[JobState.ACTIVE]) == (0, 1)
        async with limiter.acquire(timeout=0):
            pass


@pytest.mark.feature("H16")
async def test_a_holder_keeps_its_turn_as_long_as_it_lives_and_no_longer(harness: Harness) -> None:
    async with Stage(harness) as stage:
        limiter = Limiter("api", stage.app, concurrency=1, lease=3)
        gate, entered = Gate(), list[str]()

        async def hold() -> None:
            async with limiter.acquire():
                await gate.pass_through()

        async def follow() -> None:
            async with limiter.acquire(timeout=3_600):
                entered.append("follower")

        holder = asyncio.create_task(hold())
        await gate.reached.wait()
        follower = asyncio.create_task(follow())
        await stage.advance(8)
        assert not entered
        stage.faults.refuse(rq.Extend, times=1_000)  # as if the holder's process had died
        await stage.advance(6)
        await follower
        assert entered == ["follower"]
        gate.open()
        await holder


@pytest.mark.feature("H16")
async def test_a_limiter_without_limits_is_refused(harness: Harness) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(ConfigError):
            Limiter("api", stage.app)
        with pytest.raises(ConfigError):
            Limiter("no spaces", stage.app, concurrency=1)
