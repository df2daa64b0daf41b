"""The clock was ahead, and one of two processes sets the store's time back: the other follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.backends.harnesses import make_harness
from windlass.backend import Backend, open_backend
from windlass.backend import requests as rq
from windlass.core.job import NewJob
from windlass_conformance import Harness
from windlass_conformance.clock_ahead import HOUR_MS, Machine
from windlass_conformance.harness import QUEUE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(params=["sqlite", "file"])
async def harness(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Harness]:
    """A fresh store of each backend that processes share."""
    async with make_harness(request.param, tmp_path) as started:
        yield started


async def test_the_other_processes_follow_one_that_set_the_time_back(
    harness: Harness, tmp_path: Path
) -> None:
    other = await _other(harness, tmp_path)
    try:
        with Machine(harness) as machine:
            await _follow(harness, other, machine)
    finally:
        await other.close()


async def _follow(harness: Harness, other: Backend, machine: Machine) -> None:
    machine.ahead_ms = HOUR_MS
    await harness.add("a")
    await _add(other, "b")
    await machine.was_ahead()
    assert (await _add(other, "c")).enqueued_ms == machine.now_ms
    machine.passed_ms += 7
    assert (await _add(other, "d")).enqueued_ms == machine.now_ms
    await harness.reopen()
    assert (await harness.add("e")).enqueued_ms == machine.now_ms
    counted = [row for row in await harness.do(rq.ReadCounters()) if row.outcome == "clock_set_back"]
    assert [row.total for row in counted] == [1]


async def _other(harness: Harness, tmp_path: Path) -> Backend:
    """A client that shares nothing with the harness's, as in another process."""
    path = f"sqlite:///{tmp_path / 'jobs.db'}" if harness.name == "sqlite" else f"file://{tmp_path / 'jobs'}"
    other = open_backend(f"{path}?namespace={harness.namespace}&timeout=7")
    await other.open()
    return other


async def _add(store: Backend, job_id: str, **fields: Any) -> rq.Added:
    new = NewJob(queue=QUEUE, id=job_id, task="send", payload=b"[]", **fields)
    return (await store.execute(rq.Add(jobs=[new])))[0]
