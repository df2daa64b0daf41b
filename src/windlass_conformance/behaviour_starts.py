"""Starting and closing a worker, in any order and at any point, leaves nothing behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from windlass import StorageError, Worker
from windlass.backend import requests as rq
from windlass.backend.protocol import Listener
from windlass.core.probe import Probe
from windlass.errors import ClosedError
from windlass.testing.faults import probing
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Gate, LiveStage, Stage, eventually, in_time
from windlass_conformance.stop_support import BOUND, HASTY, check_gone, gated, tasks, threads


def _every_point() -> Iterable[int]:
    return range(1, 8)


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("force", [False, True])
async def test_a_close_at_any_point_of_a_start_leaves_nothing_behind(harness: Harness, force: bool) -> None:
    async with LiveStage(harness) as stage:
        for point in _every_point():
            before, closing = threads(), list[asyncio.Task[None]]()
            worker = Worker(QUEUE, gated(Gate()), url_or_app=stage.app, heartbeat=0.05)

            def close(worker: Worker = worker, closing: Any = closing) -> None:
                closing.append(asyncio.ensure_future(worker.close(force)))

            with probing(_at("worker.opened", point, lambda: close())) as probe:
                try:
                    await worker.start()
                except ClosedError:
                    assert closing
                await worker.close(force)
            for task in closing:
                await task
            assert probe.count("worker.opened") >= len(closing)
            await check_gone(stage, worker, before)


@pytest.mark.feature("V2", "V3")
@pytest.mark.parametrize("how", ["fail", "cancel"])
async def test_a_start_that_breaks_at_any_point_is_undone_and_may_be_tried_again(
    harness: Harness, how: str
) -> None:
    async with LiveStage(harness) as stage:
        for point in _every_point():
            before = threads()
            worker = Worker(QUEUE, lambda job: "ran", url_or_app=stage.app, heartbeat=0.05)

            def breaks(how: str = how) -> None:
                if how == "fail":
                    raise StorageError("broken on purpose")
                task = asyncio.current_task()
                assert task is not None
                task.cancel()

            with probing(_at("worker.opened", point, breaks)) as probe:
                try:
                    await worker.start()
                except (StorageError, asyncio.CancelledError):
                    assert probe.count("worker.opened") >= point
                    await eventually(lambda: threads() <= before and not tasks())  # noqa: B023 - used at once
                    assert await stage.app.workers() == []
            await worker.start()
            assert await (await stage.queue.add("n")).result(timeout=10) == "ran"
            await worker.close()
            await check_gone(stage, worker, before)


def _at(point: str, count: int, action: Callable[[], None]) -> Probe:
    """A probe that does ``action`` at the ``count``-th time that ``point`` is reached."""
    probe = Probe()
    if count > 1:
        probe.arm(point, lambda name, facts: None, times=count - 1)
    probe.arm(point, lambda name, facts: action())
    return probe


@pytest.mark.feature("V2")
async def test_a_worker_that_cannot_listen_does_not_start_and_leaves_nothing_behind(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        before, listen = threads(), stage.faults.listen
        refusals = [StorageError("no more connections")]

        def refuse(topics: Iterable[str]) -> Listener:
            if refusals:
                raise refusals.pop()
            return listen(topics)

        stage.faults.listen = refuse  # type: ignore[method-assign]
        worker = Worker(QUEUE, lambda job: "ran", url_or_app=stage.app, heartbeat=0.05)
        with pytest.raises(StorageError, match="no more connections"):
            await worker.start()
        await eventually(lambda: threads() <= before and not tasks())
        assert await stage.app.workers() == []
        await worker.start()
        assert await (await stage.queue.add("n")).result(timeout=10) == "ran"
        await worker.close()
        await check_gone(stage, worker, before)


@pytest.mark.feature("V2")
async def test_a_start_that_the_store_does_not_answer_can_be_closed_and_cancelled(harness: Harness) -> None:
    async with LiveStage(harness) as stage:
        stage.faults.hang(rq.Request, times=1_000_000)
        for end in ("close", "cancel"):
            before = threads()
            worker = Worker(QUEUE, gated(Gate()), url_or_app=stage.app, **HASTY)
            sent = stage.faults.sent.total()
            starting = asyncio.create_task(worker.start())
            others = asyncio.create_task(worker.start())
            await eventually(lambda: stage.faults.sent.total() > sent)  # noqa: B023 - used at once
            if end == "cancel":
                starting.cancel()
            assert await in_time(worker.close()) < BOUND + 0.5
            with pytest.raises((ClosedError, asyncio.CancelledError)):
                await starting
            with pytest.raises((ClosedError, asyncio.CancelledError)):
                await others
            assert threads() <= before
        stage.faults.heal()


@pytest.mark.feature("V2")
async def test_a_worker_that_was_closed_before_its_start_does_not_start(harness: Harness) -> None:
    async with Stage(harness) as stage:
        worker = Worker(QUEUE, gated(Gate()), url_or_app=stage.app)
        await worker.close()
        await worker.close(force=True)
        for verb in (worker.start, worker.run, worker.drain, worker.wait_until_ready):
            with pytest.raises(ClosedError, match="make another"):
                await verb()
        assert await stage.app.workers() == []
