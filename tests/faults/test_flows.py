"""Flows, suspensions and live output of real processes that are killed and started again."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.faults.kit import Child, Stage, staged, until
from windlass import FlowProducer, JobState
from windlass.flows import JobNode
from windlass.jobs import StreamChunk

if TYPE_CHECKING:
    from pathlib import Path

backend_name = "sqlite"
QUEUES = [f"q{n}" for n in range(10)]
CHILDREN = 1_000


def victim(stage: Stage, dice: random.Random) -> Child:
    """A worker on all queues that hangs in every job after its first few."""
    env = {"STAGE_ROLE": "victim", "STAGE_HANG_AFTER": str(dice.randrange(10, 100))}
    return stage.worker(queues=["q", *QUEUES], env=env)


async def storm(stage: Stage, dice: random.Random, victims: int = 4) -> None:
    """Kill workers in the middle of their jobs, then let one finish."""
    for n in range(1, victims + 1):
        child = victim(stage, dice)
        await _hangs(stage, 8 * n)
        child.signal(signal.SIGKILL)
        assert await child.ended() == -signal.SIGKILL
    stage.worker(queues=["q", *QUEUES])


async def _hangs(stage: Stage, jobs: int) -> None:
    await until(lambda: len(stage.lines("hanging")) >= jobs, "the victim hangs in its jobs")


async def add_flow(stage: Stage, children: list[dict[str, Any]]) -> JobNode:
    flow = {"name": "gather", "queue": "q", "children": children}
    return await FlowProducer(stage.app).add(flow)


def child_of(n: int) -> dict[str, Any]:
    return {"name": "noop", "queue": QUEUES[n % 10], "data": {"n": n}, "max_stalls": 10}


@pytest.mark.feature("I1", "I2", "I3", "J8")
async def test_a_thousand_children_in_ten_queues_though_workers_are_killed(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        node = await add_flow(stage, [child_of(n) for n in range(CHILDREN)])
        await storm(stage, random.Random(4))
        found = await node.job.result(timeout=50)
        assert found == {"values": list(range(CHILDREN)), "failed": []}
        assert stage.lines("gathered") == [node.id], "the parent ran once"
        ended = [row for row in await stage.history() if row.job_id == node.id]
        assert ended[0].started_ms is not None
        for queue in QUEUES:
            for row in await stage.history(queue):
                assert row.finished_ms <= ended[0].started_ms, "no parent before its children"


@pytest.mark.feature("I9", "J8")
@pytest.mark.parametrize("on_failure", ["fail", "ignore", "continue"])
async def test_one_child_fails_for_good_though_workers_are_killed(tmp_path: Path, on_failure: str) -> None:
    async with staged(tmp_path) as stage:
        await check_one_failure(stage, on_failure, 300)


async def check_one_failure(stage: Stage, on_failure: str, size: int) -> None:
    """One of ``size`` children fails for good, while workers are killed: the parent does as its edge says."""
    children = [child_of(n) for n in range(size)]
    children[7] = {"name": "fail", "queue": QUEUES[7], "on_failure": on_failure}
    node = await add_flow(stage, children)
    await storm(stage, random.Random(5), victims=2)
    state = await node.job.wait_until_finished(timeout=50)
    bad = f"{QUEUES[7]}:{node.children[7].id}"
    if on_failure == "fail":
        assert (state, node.job.reason, stage.lines("gathered")) == (
            JobState.FAILED,
            "dependency_failed",
            [],
        )
        return
    assert stage.lines("gathered") == [node.id]
    found = node.job.return_value
    assert found["failed"] == [bad]
    if on_failure == "ignore":
        assert found["values"] == [n for n in range(size) if n != 7]

    async def all_told() -> bool:
        return len(await node.job.get_children_values()) == size - 1

    await until(all_told, "every other child is done")


@pytest.mark.feature("F8", "J8")
async def test_a_suspended_job_resumes_after_every_process_was_restarted(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        job = await stage.app.queue("q").add("ask")
        first = stage.worker()
        await until(job.is_suspended, "the job is suspended")
        first.signal(signal.SIGKILL)
        await first.ended()
    async with staged(tmp_path) as stage:  # the producer is another client, too
        await stage.app.queue("q").signal(job.id, "answer", {"yes": [1, 2]})
    async with staged(tmp_path) as stage:
        stage.worker()
        again = await stage.app.queue("q").get_job(job.id)
        assert again is not None
        assert await again.result(timeout=40) == {"yes": [1, 2]}
        assert len(set(stage.lines("asked"))) == 2


@pytest.mark.feature("E10")
async def test_a_reader_in_another_process_sees_every_chunk_across_a_reconnect(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        job = await stage.app.queue("q").add("talk", {"chunks": 500, "hold_at": 200})
        stage.worker()
        seen: list[StreamChunk] = []
        async with asyncio.timeout(40):
            async for chunk in stage.app.queue("q").read_stream(job.id):
                seen.append(chunk)
                if len(seen) == 150:
                    break
        await stage.app.close()
        await stage.app.open()
        stage.path("go").touch()
        async with asyncio.timeout(40):
            rest = [chunk async for chunk in stage.app.queue("q").read_stream(job.id, seen[-1].index)]
        assert [chunk.value for chunk in seen + rest] == list(range(500))
        assert [chunk.index for chunk in seen + rest] == list(range(1, 501))
