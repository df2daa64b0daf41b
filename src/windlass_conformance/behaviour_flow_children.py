"""Children that a running job adds and waits for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from windlass import ConfigError, Job, JobState, WaitForChildren
from windlass.backend import requests as rq
from windlass_conformance.flow_runs import run_all
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Stage

NEEDS = "flows"


class Splitter:
    """A handler that makes its children while it runs, and adds their values up."""

    def __init__(self, queue: str = "images") -> None:
        self.runs: Counter[str] = Counter()
        self._queue = queue

    async def __call__(self, job: Job[Any]) -> int:
        self.runs[job.name] += 1
        if job.name == "part":
            return int(job.data)
        values = await job.get_children_values()
        if not values:
            for n in range(1, 4):
                await job.add_child("part", n, queue=self._queue, job_id=f"{job.id}-{n}")
            raise WaitForChildren
        return int(sum(values.values()))


@pytest.mark.feature("I10", "A15")
async def test_a_running_parent_makes_children_and_waits_for_them(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("sum")
        runs = Splitter()
        await run_all(stage, runs, QUEUE, "images")
        assert await job.result() == 6
        assert (runs.runs, job.attempts, job.deliveries) == ({"sum": 2, "part": 3}, 0, 2)


@pytest.mark.feature("I2", "I10")
@pytest.mark.parametrize("named", ["mapping", "pair", "own queue"])
async def test_a_parent_is_named_by_its_queue_and_id(harness: Harness, named: str) -> None:
    async with Stage(harness) as stage:
        other = QUEUE if named == "own queue" else "parts"
        parent = await stage.queue.add("sum", delay=60)
        ref = {
            "mapping": {"queue": QUEUE, "id": parent.id},
            "pair": (QUEUE, parent.id),
            "own queue": {"id": parent.id},
        }
        child = await stage.app.queue(other).add("part", parent=ref[named])
        (edge,) = await parent.get_dependencies()
        assert (edge.child.queue, edge.child.id) == (other, child.id)
        assert await parent.is_blocked()
        with pytest.raises(ConfigError, match="a \\(queue, id\\) pair"):
            await stage.queue.add("part", parent={"queue": QUEUE, "name": parent.id})


@pytest.mark.feature("I10")
async def test_a_handler_that_waits_for_children_it_does_not_have_fails_in_the_end(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs = 0

        async def handler(job: Job[Any]) -> None:
            nonlocal runs
            runs += 1
            raise WaitForChildren

        job = await stage.queue.add(
            "sum", max_attempts=3, backoff={"type": "fixed", "delay": 10, "jitter": 0}
        )
        await stage.work(handler)
        await stage.settle()
        assert (await job.get_state(), runs) == (JobState.RETRYING, 2)
        await stage.advance(25)
        assert (await job.get_state(), job.attempts, runs) == (JobState.FAILED, 3, 4)
        assert job.failed_reason == "waits for children, but has none that are open"


@pytest.mark.feature("I10")
async def test_a_parent_that_is_killed_before_it_waits_makes_no_child_twice(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("sum")
        record = await harness.take(QUEUE)
        crashed: Job[Any] = Job(stage.queue, record, held=True)
        with pytest.raises(WaitForChildren):
            await Splitter()(crashed)
        await harness.backend.execute(_release(record))
        runs = Splitter()
        await run_all(stage, runs, QUEUE, "images")
        assert await job.result() == 6
        assert runs.runs["part"] == 3


def _release(record: Any) -> Any:
    from windlass.core.outcome import Outcome
    from windlass_conformance.harness import settlement

    return rq.Settle(items=[settlement(record, Outcome.RELEASE)])
