"""The conformance suite notices what it is there for, and asks of a store what fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.backends.harnesses import HARNESSES, make_harness
from windlass.backend import requests as rq
from windlass.core.job import JobRef, WorkerInfo
from windlass_conformance import UrlHarness, behaviour_reopening, clock_ahead
from windlass_conformance.behaviour_long_queues import fill

if TYPE_CHECKING:
    from pathlib import Path


class LosingHarness(UrlHarness):
    """A store that forgets all large jobs but one when it is opened anew."""

    async def reopen(self) -> None:
        await super().reopen()
        names = [f"large{n}" for n in range(1, behaviour_reopening.MEGABYTES)]
        await self.do(rq.RemoveJobs(refs=[JobRef(behaviour_reopening.LARGE, name) for name in names]))


async def test_jobs_that_are_lost_when_a_store_is_reopened_are_noticed() -> None:
    test = behaviour_reopening.test_all_that_is_kept_is_there_after_much_was_written_and_the_store_is_reopened
    async with LosingHarness("memory", "memory://") as harness:
        with pytest.raises(AssertionError, match="large1"):
            await test(harness)


@pytest.mark.parametrize("name", HARNESSES)
async def test_a_clock_that_was_ahead_begins_after_the_time_at_which_the_store_was_opened(
    name: str, tmp_path: Path
) -> None:
    async with make_harness(name, tmp_path) as harness:
        machine = clock_ahead.Machine(harness)
        await harness.do(rq.Beat(worker=WorkerInfo(id="w")))  # at the real time
        with machine:
            assert (await harness.add("a")).enqueued_ms == machine.now_ms


async def test_a_long_queue_is_as_long_as_its_harness_says(tmp_path: Path) -> None:
    async with UrlHarness("memory", "memory://") as harness:
        harness.long_queue = 40
        await fill(harness)
        assert sum((await harness.counts()).values()) == 40
    assert make_harness("sqlite", tmp_path).long_queue > 20_000
    assert make_harness("file", tmp_path).long_queue <= 5_000
