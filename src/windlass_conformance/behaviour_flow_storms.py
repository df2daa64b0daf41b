"""Large flows while workers die."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from windlass import FlowProducer, Job, JobState, UnrecoverableError
from windlass.testing.kit import drain
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage

NEEDS = "flows"


_QUEUES = [f"q{n}" for n in range(10)]


class Storm:
    """A handler that counts ended runs and records what each parent gets; the child "bad" fails."""

    def __init__(self) -> None:
        self.parents: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.done: set[str] = set()

    async def __call__(self, job: Job[Any]) -> Any:
        if job.name == "parent":
            values = await job.get_children_values()
            failed = await job.get_failed_children()
            self.parents.append((job.id, values, failed))
            return len(values)
        await asyncio.sleep(0)
        if job.data == "bad":
            raise UnrecoverableError("bad")
        self.done.add(job.id)
        return job.data


class Doomed:
    """The handler of a worker that will be killed: some of its jobs hang until then."""

    def __init__(self, runs: Storm, dice: random.Random) -> None:
        self._runs = runs
        self._dice = dice
        self.hangs = asyncio.Event()

    async def __call__(self, job: Job[Any]) -> Any:
        if self._dice.random() < 0.1:
            self.hangs.set()
            await asyncio.Event().wait()
        return await self._runs(job)


async def _storm(stage: Stage, runs: Storm) -> None:
    """Run workers that are killed while they run jobs, one after the other, then one that stays."""
    dice = random.Random(7)
    queues = [*_QUEUES, QUEUE]
    for _ in range(8):
        doomed = Doomed(runs, dice)
        victim = await stage.work(doomed, queues, concurrency=8)
        await doomed.hangs.wait()
        await victim.close(force=True)
    await drain(await stage.work(runs, queues, concurrency=8))


@pytest.mark.feature("I1", "I2", "I3", "Z14")
async def test_a_thousand_children_in_ten_queues_while_workers_die(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs = Storm()
        children = [{"name": "child", "queue": _QUEUES[n % 10], "data": n} for n in range(1_000)]
        node = await FlowProducer(stage.app).add({"name": "parent", "queue": QUEUE, "children": children})
        await _storm(stage, runs)
        assert await node.job.result() == 1_000
        ((_, values, failed),) = runs.parents
        assert (sorted(values.values()), failed) == (list(range(1_000)), {})
        assert len(runs.done) == 1_000
        assert node.job.deliveries == 1


@pytest.mark.feature("I9", "Z14")
@pytest.mark.parametrize("on_failure", ["fail", "ignore", "continue"])
async def test_one_of_many_children_fails_while_workers_die(harness: Harness, on_failure: str) -> None:
    async with Stage(harness) as stage:
        runs = Storm()
        children = [
            {
                "name": "child",
                "queue": _QUEUES[n % 10],
                "data": "bad" if n == 50 else n,
                "on_failure": on_failure,
            }
            for n in range(200)
        ]
        node = await FlowProducer(stage.app).add({"name": "parent", "queue": QUEUE, "children": children})
        await _storm(stage, runs)
        bad = f"{node.children[50].queue_name}:{node.children[50].id}"
        assert set(await node.job.get_failed_children()) == {bad}
        if on_failure == "fail":
            assert (await node.job.get_state(), runs.parents) == (JobState.FAILED, [])
            return
        assert await node.job.get_state() is JobState.COMPLETED
        ((_, values, failed),) = runs.parents
        assert set(failed) == {bad}
        expected = 199 if on_failure == "ignore" else len(values)
        assert len(values) == expected
        assert len(await node.job.get_children_values()) == 199


@pytest.mark.feature("I9", "I3")
async def test_a_retried_parent_gets_the_value_of_its_retried_child(harness: Harness) -> None:
    async with Stage(harness) as stage:
        child = await stage.queue.add("child", "part", max_attempts=1)
        parent = await stage.queue.add("parent", "whole", depends_on=[child])
        seen: dict[str, Any] = {}

        async def handler(job: Job[Any]) -> Any:
            seen[job.name] = await job.get_children_values()
            if job.name == "child" and job.deliveries == 1:
                raise ConnectionError("not now")
            return job.data

        await stage.work(handler)
        await stage.settle()
        assert (await child.get_state(), await parent.get_state()) == (JobState.FAILED, JobState.FAILED)
        await child.retry()
        await stage.settle()
        assert (await child.get_state(), await parent.get_state()) == (JobState.COMPLETED, JobState.FAILED)
        await parent.retry()
        await stage.settle()
        assert await parent.get_state() is JobState.COMPLETED
        assert seen["parent"] == {f"{QUEUE}:{child.id}": "part"}
        assert await parent.get_failed_children() == {}
