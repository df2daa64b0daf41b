"""Revoked tasks as users of queues, tasks and workers see them."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from windlass import ConfigError, Job, JobCancelledError, JobState
from windlass.core.limit_rules import Revocation
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, LiveStage, Stage

NEEDS = "revoked_tasks"


@pytest.mark.feature("F7")
async def test_a_revoked_task_does_not_run_until_it_is_restored(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        ran: list[int] = []

        @stage.app.task(queue=QUEUE, name="send")
        async def send(n: int) -> None:
            ran.append(n)

        await stage.work()
        await (await send.enqueue(1)).result(timeout=20)  # from now on the worker waits for the next one
        for n in (2, 4):
            await send.revoke()
            assert await send.is_revoked()
            job = await send.enqueue(n)
            with pytest.raises(JobCancelledError, match="task send is revoked"):
                await job.result(timeout=20)
            assert await send.restore()
            assert not await send.restore()
            assert not await send.is_revoked()
            await (await send.enqueue(n + 1)).result(timeout=20)
        assert ran == [1, 3, 5]


@pytest.mark.feature("F7")
async def test_a_task_is_revoked_until_a_date_or_for_some_seconds(harness: Harness) -> None:
    async with Stage(harness) as stage:
        ran: list[Any] = []

        async def handle(job: Job[Any]) -> None:
            ran.append(job.data)

        now = datetime.fromtimestamp(stage.clock.now_ms() / 1000, UTC)
        await stage.queue.revoke_task("a", now + timedelta(seconds=30))
        await stage.queue.revoke_task("b", until=40)
        await stage.queue.revoke_task("c", until=timedelta(seconds=50), once=True)
        at_ms = stage.clock.now_ms()
        assert await stage.queue.revoked_tasks() == {
            "a": Revocation(at_ms + 30_000),
            "b": Revocation(at_ms + 40_000),
            "c": Revocation(at_ms + 50_000, once=True),
        }
        await stage.work(handle)
        for seconds in (0, 35, 10):
            await stage.advance(seconds)
            for name in "abc":
                job = await stage.queue.add(name, f"{name} after {seconds}")
                with suppress(JobCancelledError):
                    await job.result()
        assert ran == ["a after 35", "c after 35", "a after 10", "b after 10", "c after 10"]
        assert await stage.queue.revoked_tasks() == {}
        assert (await stage.queue.get_job_counts())[JobState.CANCELLED] == 4


@pytest.mark.feature("F7")
async def test_what_cannot_be_revoked_is_refused(harness: Harness) -> None:
    async with Stage(harness) as stage:
        for name, until in (("", None), ("t", -1), ("t", "tomorrow"), ("t", datetime(2030, 1, 1))):
            with pytest.raises(ConfigError):
                await stage.queue.revoke_task(name, until)  # type: ignore[arg-type]
        assert await stage.queue.revoked_tasks() == {}
        assert await stage.app.queues() == []
