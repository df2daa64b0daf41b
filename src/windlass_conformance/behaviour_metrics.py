"""Metrics as applications read them."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from windlass import ConfigError, Job
from windlass.api.metrics import DayTotals, roll_up
from windlass.backend import metric_requests as mq
from windlass.core.rollups import BACKLOG, Step, total
from windlass.testing.clock import START_MS
from windlass.worker.duties import Aggregator
from windlass.worker.duty import all_steps
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Gate, Stage

NEEDS = "metrics"

START = datetime.fromtimestamp(START_MS / 1000, UTC)


async def obey(job: Job[Any]) -> None:
    """A handler that fails if the data of the job says so."""
    if job.data.get("fail"):
        raise ValueError("as asked")


async def work_off(stage: Stage, *jobs: dict[str, Any]) -> None:
    """Run jobs to their end."""
    added = await stage.queue.add_bulk([{"max_attempts": 1, **job} for job in jobs])
    for job in added:
        await job.wait_until_finished()
    await stage.settle()


@pytest.mark.feature("Q1", "Q3")
async def test_outcomes_are_counted_per_minute(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(obey)
        await work_off(stage, {"name": "a", "data": {}}, {"name": "b", "data": {}})
        await stage.advance(60)
        await work_off(stage, {"name": "a", "data": {}}, {"name": "a", "data": {"fail": True}})
        start = START - timedelta(seconds=40)
        completed = await stage.queue.get_metrics("completed", start=start, end=START + timedelta(minutes=2))
        assert [(p.start - start, p.count) for p in completed.data] == [
            (timedelta(0), 2),
            (timedelta(minutes=1), 1),
            (timedelta(minutes=2), 0),
        ]
        assert completed.count == 3
        failed = await stage.queue.get_metrics("failed", step="hour", task="a")
        assert (failed.count, sum(p.count for p in failed.data)) == (1, 1)
        assert (await stage.queue.get_metrics("failed", task="b")).count == 0
        with pytest.raises(ConfigError):
            await stage.queue.get_metrics("done")


@pytest.mark.feature("Q3", "Q9")
async def test_a_task_has_totals_averages_percentiles_and_a_success_rate(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> None:
            await stage.clock.wait(asyncio.Event(), job.data["ms"])
            if job.data["ms"] == 1_000:
                raise ValueError("too slow")

        await stage.work(handler, concurrency=200)
        jobs = [{"name": "resize", "data": {"ms": n * 10}, "max_attempts": 1} for n in range(1, 101)]
        await stage.queue.add_bulk(jobs)
        await stage.advance(5)
        stats = await stage.queue.stats_for_task("resize", timedelta(minutes=10))
        assert (stats.total, stats.completed, stats.failed, stats.retried) == (100, 99, 1, 0)
        assert stats.success_rate == 0.99
        assert stats.average_ms == pytest.approx(505, rel=0.02)
        assert stats.p50_ms == pytest.approx(500, rel=0.03)
        assert stats.p95_ms == pytest.approx(950, rel=0.03)
        assert stats.p99_ms == pytest.approx(990, rel=0.03)
        assert stats.max_ms == pytest.approx(1_000, rel=0.02)
        assert stats.wait_p99_ms == 0
        nothing = await stage.queue.stats_for_task("unknown", 600)
        assert (nothing.total, nothing.success_rate, nothing.p50_ms) == (0, None, None)
        await stage.advance(1_200)
        assert (await stage.queue.stats_for_task("resize", 600)).total == 0
        assert (await stage.queue.stats_for_task(None, 7 * 86_400)).total == 100


@pytest.mark.feature("Q4")
async def test_totals_of_each_day_are_kept(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(obey)
        await work_off(stage, {"name": "a", "data": {}}, {"name": "a", "data": {"fail": True}})
        stage.clock.set(START + timedelta(days=2))
        await work_off(stage, {"name": "a", "data": {}})
        days = await stage.queue.get_daily_totals()
        assert len(days) == 30
        assert days[-3:] == [
            DayTotals(date(2025, 6, 15), 2, 1),
            DayTotals(date(2025, 6, 16), 0, 0),
            DayTotals(date(2025, 6, 17), 1, 0),
        ]
        # 15:06:40 UTC is past midnight there, and days begin on a half hour
        (today,) = await stage.queue.get_daily_totals(1, timezone="Australia/Adelaide")
        assert today == DayTotals(date(2025, 6, 18), 1, 0)


@pytest.mark.feature("Q7")
async def test_latency_and_utilisation_are_gauges(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> None:
            await gate.pass_through()

        assert await stage.queue.get_latency() == 0
        assert await stage.queue.get_utilisation() is None
        worker = await stage.work(handler, concurrency=4, heartbeat=1)
        await stage.queue.add_bulk([{"name": "n"}] * 6)
        await gate.reached.wait()
        await stage.advance(7)
        assert await stage.queue.get_latency() == 7
        assert await stage.queue.get_utilisation() == 1
        gate.open()
        await worker.drain()
        assert await stage.queue.get_latency() == 0


@pytest.mark.feature("Q3")
async def test_a_worker_keeps_the_roll_ups_up_to_date(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(obey, duties=True)
        await work_off(stage, *[{"name": "a", "data": {}}] * 5)
        await stage.advance(15)
        assert await roll_up(stage.app.store) == 0  # nothing was left to do


@pytest.mark.feature("Q3")
async def test_rolling_up_on_many_nodes_counts_every_attempt_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(obey, concurrency=50)
        for _ in range(5):
            await work_off(stage, *[{"name": "a", "data": {}}] * 50)
            for _ in range(3):
                await all_steps(Aggregator(stage.app.store))
        rows = await stage.queue.get_rollups("hour")
        assert sum(row.outcomes["completed"] for row in rows) == 250
        assert sum(row.duration.count for row in rows) == 250


@pytest.mark.feature("Q3")
async def test_a_worker_samples_the_backlog_also_of_queues_that_no_worker_serves(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add_bulk([{"name": "a", "data": {}}] * 5)
        await all_steps(Aggregator(stage.app.store))
        await stage.advance(20)
        await stage.queue.add_bulk([{"name": "a", "data": {}}] * 3)
        await all_steps(Aggregator(stage.app.store))
        steps: tuple[Step, ...] = ("minute", "hour")
        for step in steps:
            found = await stage.app.store.execute(mq.ReadMetrics(queue=QUEUE, step=step, task=BACKLOG))
            whole = total(found.rows)
            assert (whole.depth.count, whole.depth.sum_ms, whole.depth.max_ms) == (2, 13, 8)
            assert whole.age.max_ms >= 20_000
        assert await stage.queue.get_rollups("hour") == []  # no run ended
        await (await stage.work(obey)).drain()
        await all_steps(Aggregator(stage.app.store))
        (row,) = await stage.queue.get_rollups("hour")
        assert (row.task, row.runs, row.depth.count) == ("a", 8, 0)


@pytest.mark.feature("Q3")
async def test_steps_that_sample_few_queues_take_turns(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.api.metrics._SAMPLED", 2)
    async with Stage(harness) as stage:
        names = [f"many{n}" for n in range(5)]
        for name in names:
            await stage.app.queue(name).add("a", {})
        aggregator = Aggregator(stage.app.store)
        samples = []
        for _ in range(6):
            await aggregator.step()
            samples.append([await _samples(stage, name) for name in names])
        assert samples[2] == [1, 1, 1, 1, 1]
        assert samples[-1] == [2, 2, 2, 2, 2]


async def _samples(stage: Stage, queue: str) -> int:
    found = await stage.app.store.execute(mq.ReadMetrics(queue=queue, step="minute", task=BACKLOG))
    return total(found.rows).depth.count


@pytest.mark.feature("Q9")
async def test_deploys_can_be_marked(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.app.mark("v41")
        await stage.advance(10)
        mark = await stage.app.mark("v42")
        assert [m.label for m in await stage.app.marks()] == ["v41", "v42"]
        assert await stage.app.marks(START + timedelta(seconds=5)) == [mark]
