"""``CommandWorker``: commands that a worker receives with its heartbeat."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import Action, Command, WorkerInfo
from windlass_conformance.harness import Harness

NEEDS = "commands"


async def beat(harness: Harness, worker_id: str = "w") -> Command | None:
    return await harness.do(rq.Beat(worker=WorkerInfo(id=worker_id)))


async def tell(harness: Harness, action: Action, command_id: str, worker_id: str = "w") -> bool:
    return await harness.do(rq.CommandWorker(worker=worker_id, action=action, id=command_id))


@pytest.mark.feature("R5")
async def test_a_command_comes_with_the_answer_to_a_beat(harness: Harness) -> None:
    assert await beat(harness) is None
    assert await tell(harness, "quiet", "c1") is True
    assert await beat(harness) == Command("quiet", "c1")
    assert await beat(harness) == Command("quiet", "c1")
    (info,) = await harness.do(rq.ListWorkers())
    assert info.command == Command("quiet", "c1")


@pytest.mark.feature("R5")
async def test_a_newer_command_replaces_the_one_before(harness: Harness) -> None:
    await beat(harness)
    await tell(harness, "quiet", "c1")
    await tell(harness, "stop", "c2")
    assert await beat(harness) == Command("stop", "c2")


@pytest.mark.feature("R5")
async def test_only_the_worker_that_is_meant_is_told(harness: Harness) -> None:
    await beat(harness, "w")
    await beat(harness, "v")
    await tell(harness, "stop", "c1")
    assert await beat(harness, "v") is None


@pytest.mark.feature("R5")
async def test_a_worker_that_is_not_there_cannot_be_told(harness: Harness) -> None:
    assert await tell(harness, "stop", "c1") is False
    await beat(harness)
    await harness.do(rq.Beat(worker=WorkerInfo(id="w"), gone=True))
    assert await tell(harness, "stop", "c2") is False
    assert await beat(harness) is None


@pytest.mark.feature("R5")
async def test_a_command_gives_the_worker_a_hint(harness: Harness) -> None:
    await beat(harness)
    listener = harness.backend.listen(["worker:w"])
    try:
        await tell(harness, "quiet", "c1")
        assert "worker:w" in await listener.wait(5_000)
    finally:
        listener.close()
