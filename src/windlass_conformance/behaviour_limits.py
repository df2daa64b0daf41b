"""Limits and groups as users of queues and workers see them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from windlass import ConfigError, GroupLimits, Job, JobState, Rate, RateLimitError
from windlass.errors import GroupFullError, OrderedGroupError
from windlass.limits import Bucket
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage

NEEDS = "groups"


class Meter:
    """A handler that takes some time and records start times and concurrent runs by group."""

    def __init__(self, stage: Stage, seconds: float = 1) -> None:
        self._stage = stage
        self._seconds = seconds
        self.busy: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[Any] = []
        self.starts: list[float] = []

    async def __call__(self, job: Job[Any]) -> None:
        self.starts.append(self._stage.clock.now_ms() / 1000)
        self.order.append(job.data)
        for name in {job.group or "", "all"}:
            self.busy[name] += 1
            self.most[name] = max(self.most[name], self.busy[name])
        if self._seconds:
            await self._stage.clock.wait(asyncio.Event(), self._seconds * 1000)
        for name in {job.group or "", "all"}:
            self.busy[name] -= 1


@pytest.mark.feature("H2")
async def test_global_concurrency_holds_over_all_workers(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.set_global_concurrency(3)
        assert await stage.queue.get_global_concurrency() == 3
        meter = Meter(stage)
        for _ in range(3):
            await stage.work(meter)
        await stage.queue.add_bulk([{"name": "t", "data": n} for n in range(12)])
        await stage.advance(4.5)
        assert meter.most["all"] == 3
        assert await stage.queue.count() == 0
        await stage.queue.set_global_concurrency(None)
        assert await stage.queue.get_global_concurrency() is None


@pytest.mark.feature("H3", "H4")
async def test_a_workers_limiter_holds_over_all_workers_and_wastes_nothing(harness: Harness) -> None:
    async with Stage(harness) as stage:
        meter = Meter(stage, 0)
        for _ in range(2):
            await stage.work(meter, limiter={"max": 2, "duration": 1})
        assert await stage.queue.get_global_rate_limit() == Rate(2, 1_000)
        await stage.queue.add_bulk([{"name": "t", "data": n} for n in range(9)])
        await stage.advance(4.4)
        began = [round(at - meter.starts[0], 1) for at in meter.starts]
        assert began == [0, 0, 1, 1, 2, 2, 3, 3, 4]


@pytest.mark.feature("H4")
async def test_a_global_rate_limit_is_set_read_changed_and_removed_live(harness: Harness) -> None:
    async with Stage(harness) as stage:
        meter = Meter(stage, 0)
        await stage.queue.set_global_rate_limit({"max": 1, "duration": 60})
        assert await stage.queue.get_global_rate_limit() == Rate.per_minute(1)
        await stage.work(meter)
        await stage.queue.add_bulk([{"name": "t"} for _ in range(4)])
        await stage.advance(1)
        assert len(meter.starts) == 1
        await stage.queue.set_global_rate_limit((2, 60))
        await stage.settle()
        assert len(meter.starts) == 2
        await stage.queue.remove_global_rate_limit()
        await stage.settle()
        assert len(meter.starts) == 4
        assert await stage.queue.get_global_rate_limit() is None


@pytest.mark.feature("H2")
async def test_a_worker_can_set_the_global_concurrency(harness: Harness) -> None:
    async with Stage(harness) as stage:
        meter = Meter(stage)
        await stage.work(meter, global_concurrency=2)
        await stage.queue.add_bulk([{"name": "t"} for _ in range(6)])
        await stage.advance(3.5)
        assert (meter.most["all"], len(meter.starts)) == (2, 6)


@pytest.mark.feature("H6", "H13")
async def test_every_group_has_its_own_slots(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.set_group_limits(concurrency=2)
        assert await stage.queue.get_group_limits() == GroupLimits(concurrency=2)
        meter = Meter(stage)
        await stage.work(meter, concurrency=50)
        jobs = [{"name": "t", "group": f"tenant{n % 3}"} for n in range(12)]
        await stage.queue.add_bulk(jobs)
        await stage.settle()
        infos = await stage.queue.list_groups()
        assert [(info.name, info.active, info.parked) for info in infos] == [
            ("tenant0", 2, 2),
            ("tenant1", 2, 2),
            ("tenant2", 2, 2),
        ]
        await stage.advance(2.5)
        assert await stage.queue.count() == 0
        assert {meter.most[f"tenant{n}"] for n in range(3)} == {2}


@pytest.mark.feature("H12")
async def test_a_task_has_a_rate_of_its_own_over_all_workers(harness: Harness) -> None:
    async with Stage(harness) as stage:
        starts: list[float] = []
        others: list[int] = []

        @stage.app.task(queue=QUEUE, name="report", rate=(5, 1))
        async def report(n: int) -> None:
            starts.append(stage.clock.now_ms() / 1000)

        @stage.app.task(queue=QUEUE, name="mail")
        async def mail(n: int) -> None:
            others.append(n)

        await report.enqueue(0)
        await stage.work(concurrency=8)
        await stage.work(concurrency=8)  # sets the rate again; what started before still counts
        for n in range(1, 12):
            await report.enqueue(n)
        await mail.map(range(20))
        await stage.advance(0.5)
        assert (len(starts), len(others)) == (5, 20)
        await stage.advance(2)
        assert [round(at - starts[0], 1) for at in starts] == [0] * 5 + [1] * 5 + [2] * 2
        with pytest.raises(ConfigError, match=r"a task with a group .* cannot have a rate"):
            stage.app.task(queue=QUEUE, name="other", rate=(5, 1), group="g")(lambda: None)
        with pytest.raises(ConfigError, match=r"a task with a group .* cannot have a rate"):
            report.options(group="g")


@pytest.mark.feature("H7", "H12")
async def test_a_rate_per_task_by_a_group_of_its_name(harness: Harness) -> None:
    async with Stage(harness) as stage:
        starts: list[float] = []

        @stage.app.task(queue=QUEUE, group="report")
        async def report(n: int) -> None:
            starts.append(stage.clock.now_ms() / 1000)

        await stage.queue.set_group_limits("report", rate=Rate.per_second(5))
        await stage.work()
        for n in range(12):
            await report.enqueue(n)
        await stage.advance(2.5)
        assert [round(at - starts[0], 1) for at in starts] == [0] * 5 + [1] * 5 + [2] * 2


@pytest.mark.feature("H6")
async def test_how_long_a_rate_or_a_hold_lasts_can_be_asked(harness: Harness) -> None:
    async with Stage(harness) as stage:
        queue = stage.queue
        assert await queue.get_rate_limit_ttl() == 0
        await queue.set_global_rate_limit((2, 60))
        await stage.work(lambda job: None)
        await (await queue.add("n")).result()
        assert await queue.get_rate_limit_ttl() == 0  # one more may start
        await stage.advance(10)
        await (await queue.add("n")).result()
        assert await queue.get_rate_limit_ttl() == 50  # until the first is a minute old
        await stage.advance(20)
        assert await queue.get_rate_limit_ttl() == 30
        await queue.rate_limit(45)
        assert await queue.get_rate_limit_ttl() == 45
        await queue.rate_limit(0)
        assert await queue.get_rate_limit_ttl() == 30
        await stage.advance(31)
        assert await queue.get_rate_limit_ttl() == 0
        await queue.set_global_rate_limit((1, 60))
        await queue.remove_global_rate_limit()
        assert await queue.get_rate_limit_ttl() == 0


@pytest.mark.feature("H8")
async def test_a_bucket_with_costs(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.set_group_limits("api", bucket=Bucket(10, 1))
        meter = Meter(stage, 0)
        await stage.work(meter)
        for cost in (6, 4, 5):
            await stage.queue.add("t", cost, group="api", cost=cost)
        too_dear = await stage.queue.add("t", group="api", cost=11)
        assert ((await too_dear.refresh()).cost, (await stage.queue.add("t", delay=60)).cost) == (11, 1)
        assert too_dear.state is JobState.FAILED
        await stage.advance(4.5)
        assert meter.order == [6, 4]
        await stage.advance(1)
        assert meter.order == [6, 4, 5]


@pytest.mark.feature("H5")
async def test_an_ordering_key_keeps_strict_order_through_retries(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.set_group_limits(ordered=True)
        seen: list[tuple[str | None, Any]] = []

        async def handler(job: Job[Any]) -> None:
            seen.append((job.group, job.data))
            if job.data == 1 and job.attempt == 1:
                raise ConnectionError("once more")

        await stage.work(handler, concurrency=8)
        for n in range(4):
            for account in ("ada", "bob"):
                await stage.queue.add("t", n, group=account, backoff=5)
        await stage.advance(20)
        for account in ("ada", "bob"):
            assert [data for group, data in seen if group == account] == [0, 1, 1, 2, 3]


@pytest.mark.feature("H14")
async def test_a_429_stops_the_group_and_its_job_goes_first_afterwards(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen: list[tuple[Any, float]] = []

        async def handler(job: Job[Any]) -> None:
            seen.append((job.data, round(stage.clock.now_ms() / 1000 - began, 1)))
            if job.data == 0 and job.deliveries == 1:
                raise RateLimitError(30)

        began = stage.clock.now_ms() / 1000
        await stage.work(handler, concurrency=1)
        await stage.queue.add_bulk([{"name": "t", "data": n, "group": "api"} for n in range(3)])
        await stage.queue.add("t", "other", group="else")
        await stage.advance(31)
        assert seen == [(0, 0), ("other", 0), (0, 30), (1, 30), (2, 30)]
        job = (await stage.queue.get_jobs("completed", newest_first=False))[0]
        assert (job.data, job.attempts, job.deliveries) == (0, 0, 2)


@pytest.mark.feature("H14")
async def test_groups_and_queues_can_be_paused_and_held_by_hand(harness: Harness) -> None:
    async with Stage(harness) as stage:
        meter = Meter(stage, 0)
        await stage.work(meter)
        await stage.queue.pause_group("a")
        await stage.queue.rate_limit_group("b", 10)
        for group in "abc":
            await stage.queue.add("t", group, group=group)
        await stage.settle()
        assert meter.order == ["c"]
        await stage.advance(10.1)
        assert meter.order == ["c", "b"]
        await stage.queue.resume_group("a")
        await stage.settle()
        assert meter.order == ["c", "b", "a"]
        await stage.queue.rate_limit(10)
        await stage.queue.add("t", "late")
        await stage.advance(9)
        assert meter.order == ["c", "b", "a"]
        await stage.advance(1.1)
        assert meter.order == ["c", "b", "a", "late"]


@pytest.mark.feature("H14")
async def test_a_full_group_refuses_with_a_typed_error(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.set_group_limits("small", max_size=2)
        await stage.queue.add("t", 1, group="small")
        jobs = [{"name": "t", "data": n, "group": "small"} for n in (2, 3)]
        with pytest.raises(GroupFullError) as caught:
            await stage.queue.add_bulk(jobs)
        assert [job.data for job in caught.value.added] == [2]
        assert (caught.value.group, len(caught.value.refused)) == ("small", 1)
        with pytest.raises(GroupFullError):
            await stage.queue.add("t", 4, group="small")
        assert await stage.queue.count() == 2


@pytest.mark.feature("H6")
async def test_a_burst_ends_only_when_nothing_is_parked(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.set_group_limits(concurrency=1)
        meter = Meter(stage, 0)
        await stage.queue.add_bulk([{"name": "t", "group": "g"} for _ in range(5)])
        worker = await stage.work(meter, burst=True)
        await stage.settle()
        assert len(meter.starts) == 5
        await worker.close()


@pytest.mark.feature("H6")
async def test_own_limits_can_be_removed(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.set_group_limits(concurrency=5)
        await stage.queue.set_group_limits("g", concurrency=1, rate=(3, 10))
        assert await stage.queue.get_group_limits("g") == GroupLimits(concurrency=1, rate=Rate(3, 10_000))
        await stage.queue.remove_group_limits("g")
        assert await stage.queue.get_group_limits("g") == GroupLimits(concurrency=5)
        await stage.queue.remove_group_limits()
        assert await stage.queue.get_group_limits("g") == GroupLimits()


@pytest.mark.feature("H6", "H8")
async def test_limits_that_cannot_work_are_refused_and_change_nothing(harness: Harness) -> None:
    async with Stage(harness) as stage:
        queue = stage.queue
        for bad in (
            {"concurrency": 0},
            {"rate": (0, 1)},
            {"rate": (10_001, 1)},
            {"rate": "often"},
            {"bucket": (1, 0)},
            {"max_size": -1},
            {"concurency": 1},
        ):
            with pytest.raises(ConfigError):
                await queue.set_group_limits("g", **bad)
        for name in ("*", "", "x" * 257):
            with pytest.raises(ConfigError):
                await queue.set_group_limits(name, concurrency=1)
        with pytest.raises(ConfigError):
            await queue.set_global_concurrency(0)
        with pytest.raises(ConfigError):
            await queue.add("t", group="*")
        with pytest.raises(ConfigError):
            await queue.add("t", group="g", cost=0)
        assert await queue.list_groups() == []


@pytest.mark.feature("H5")
async def test_jobs_of_an_ordered_group_run_in_the_order_of_adding_or_are_refused(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.set_group_limits(ordered=True)
        with pytest.raises(OrderedGroupError) as caught:
            await stage.queue.add_bulk(
                [
                    {"name": "t", "data": n, "group": "g", "priority": rank}
                    for n, rank in enumerate((0, 0, 5, 9))
                ]
            )
        assert [job.data for job in caught.value.added] == [0, 1]
        assert len(caught.value.refused) == 2
        with pytest.raises(OrderedGroupError, match="without"):
            await stage.queue.add("t", 2, group="g", lifo=True)
        jobs = [await stage.queue.add("t", n, group="g", delay=delay) for n, delay in ((2, 5), (3, 0))]
        with pytest.raises(OrderedGroupError, match="order in which they were added"):
            await jobs[1].change_priority(5)
        meter = Meter(stage, 0)
        await stage.work(meter, concurrency=8)
        await stage.settle()
        assert meter.order == [0, 1]
        await stage.advance(5.5)
        assert meter.order == [0, 1, 2, 3]


@pytest.mark.feature("H5")
async def test_an_ordered_group_can_skip_what_is_not_due_yet(harness: Harness) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(ConfigError, match="ordered=True"):
            await stage.queue.set_group_limits(skip_delayed=True)
        await stage.queue.set_group_limits(ordered=True, skip_delayed=True)
        assert await stage.queue.get_group_limits() == GroupLimits(ordered=True, skip_delayed=True)
        meter = Meter(stage, 0)
        await stage.work(meter, concurrency=8)
        for n, delay in ((0, 5), (1, 0), (2, 0)):
            await stage.queue.add("t", n, group="g", delay=delay)
        await stage.settle()
        assert meter.order == [1, 2]
        await stage.advance(5.5)
        assert meter.order == [1, 2, 0]


async def test_a_group_is_not_made_ordered_while_jobs_with_a_priority_wait(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("t", group="g", priority=5)
        with pytest.raises(OrderedGroupError, match="finished"):
            await stage.queue.set_group_limits("g", ordered=True)
        await job.remove()
        await stage.queue.set_group_limits("g", ordered=True)
