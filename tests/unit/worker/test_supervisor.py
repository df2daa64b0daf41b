"""The supervisor: services start and stop in any order, and no task of a worker ends silently."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from windlass import Job, Windlass, Worker
from windlass.errors import StorageError
from windlass.testing import ManualClock
from windlass.worker.supervisor import Service, TaskSupervisor


class Ticker(Service):
    """Counts a step every second; fails when told to."""

    def __init__(self) -> None:
        super().__init__("ticker")
        self.ticks = 0
        self.stops = 0
        self.failures: list[Exception] = []
        self.broken_stop: Exception | None = None

    async def step(self) -> float:
        if self.failures:
            raise self.failures.pop(0)
        self.ticks += 1
        return 1_000

    async def stopped(self) -> None:
        self.stops += 1
        if self.broken_stop is not None:
            raise self.broken_stop


class Stage:
    """A ticker, its supervisor and their clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.supervisor = TaskSupervisor(self.clock)
        self.ticker = Ticker()

    def start(self) -> None:
        self.supervisor.serve(self.ticker)

    async def stop(self) -> None:
        await self.supervisor.stop("ticker")


def cancel(name: str) -> None:
    """What a rude handler does."""
    (task,) = [task for task in asyncio.all_tasks() if task.get_name() == f"windlass-{name}"]
    task.cancel()


@pytest.mark.feature("V2")
async def test_a_service_runs_until_it_is_stopped() -> None:
    stage = Stage()
    stage.start()
    await stage.clock.advance(3)
    assert (stage.ticker.ticks, stage.supervisor.over("ticker").done()) == (4, False)
    await stage.stop()
    assert (stage.ticker.stops, stage.supervisor.over("ticker").done()) == (1, True)
    await stage.clock.advance(10)
    assert stage.ticker.ticks == 4


@pytest.mark.feature("V2")
async def test_starting_twice_and_stopping_at_any_time_is_legal() -> None:
    stage = Stage()
    await stage.stop()
    stage.start()
    stage.start()
    await stage.clock.settle()
    assert stage.ticker.ticks == 1
    await stage.stop()
    await stage.stop()
    stage.start()
    await stage.clock.settle()
    assert stage.ticker.ticks == 2
    await stage.stop()


@pytest.mark.feature("Z14")
async def test_a_service_that_meets_errors_goes_on_with_growing_pauses() -> None:
    stage = Stage()
    stage.ticker.failures = [StorageError("away"), RuntimeError("bug"), StorageError("away")]
    stage.start()
    await stage.clock.advance(0.4)
    assert stage.ticker.ticks == 0
    await stage.clock.advance(0.5 + 1 + 2)
    assert stage.ticker.ticks >= 1
    await stage.stop()


@pytest.mark.feature("Z14")
async def test_a_service_recovers_its_pace_after_an_isolated_error() -> None:
    stage = Stage()
    stage.start()
    await stage.clock.settle()
    for _ in range(10):
        stage.ticker.failures = [StorageError("away")]
        before = stage.ticker.ticks
        await stage.clock.advance(1)  # the step that fails ...
        await stage.clock.advance(0.5)  # ... and the next one, after the first and shortest of pauses
        assert stage.ticker.ticks == before + 1
    await stage.stop()


async def test_stopping_does_not_wait_for_a_pause_to_end() -> None:
    stage = Stage()
    stage.start()
    await stage.clock.settle()
    await asyncio.wait_for(stage.stop(), 5)
    assert stage.clock.monotonic_ms() == 0


@pytest.mark.parametrize("error", [StorageError("away"), RuntimeError("bug")])
async def test_a_service_that_cannot_clean_up_is_stopped_and_logged(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    stage.ticker.broken_stop = error
    stage.start()
    await stage.clock.settle()
    await stage.stop()
    assert "windlass-ticker could not clean up" in caplog.text


async def test_a_service_that_was_cancelled_is_started_again_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.start()
    await stage.clock.settle()
    cancel("ticker")
    await stage.clock.advance(0.09)
    assert "started again" not in caplog.text
    await stage.clock.advance(0.02)
    assert "the worker's task ticker ended unexpectedly and is started again: it was cancelled" in caplog.text
    await stage.clock.advance(1)
    assert stage.ticker.ticks == 2
    await stage.stop()
    assert stage.ticker.stops == 1


async def test_a_service_that_rests_after_a_cancel_cleans_up_when_it_is_stopped() -> None:
    stage = Stage()
    stage.start()
    await stage.clock.settle()
    cancel("ticker")
    await stage.clock.settle()
    await asyncio.wait_for(stage.stop(), 5)
    assert (stage.ticker.ticks, stage.ticker.stops) == (1, 1)
    await stage.clock.advance(60)
    assert stage.ticker.ticks == 1


async def test_a_task_that_keeps_ending_rests_longer_and_longer() -> None:
    clock, begun = ManualClock(), list[float]()
    supervisor = TaskSupervisor(clock)

    async def main() -> None:
        begun.append(clock.monotonic_ms())
        raise RuntimeError("bug")

    supervisor.start("pump", main)
    await clock.advance(17)
    assert begun == [0, 100, 300, 700, 1_500, 3_100, 6_300, 11_300, 16_300]
    supervisor.release("pump")
    assert supervisor.over("pump").done()
    await clock.advance(60)
    assert len(begun) == 9


async def test_a_task_that_lived_long_rests_briefly_again() -> None:
    clock, begun = ManualClock(), list[float]()
    supervisor = TaskSupervisor(clock)

    async def main() -> None:
        begun.append(clock.monotonic_ms())
        await asyncio.Event().wait()

    supervisor.start("pump", main)
    for _ in range(3):
        await clock.advance(10)
        cancel("pump")
    await clock.advance(10)
    assert begun == [0, 10_100, 20_100, 30_100]
    supervisor.release("pump")
    await clock.settle()
    assert supervisor.over("pump").done()


async def test_a_task_that_returns_is_over_and_may_be_started_again() -> None:
    supervisor, ran = TaskSupervisor(ManualClock()), list[str]()

    async def main() -> None:
        ran.append("once")

    for _ in range(2):
        supervisor.start("tell", main)
        await asyncio.wait([supervisor.over("tell")])
    assert ran == ["once", "once"]


async def test_hurrying_a_task_that_rests_starts_it_at_once() -> None:
    clock, begun = ManualClock(), list[float]()
    supervisor = TaskSupervisor(clock)

    async def main() -> None:
        begun.append(clock.monotonic_ms())
        if len(begun) == 1:
            raise RuntimeError("bug")

    supervisor.start("pump", main)
    await clock.settle()
    supervisor.run_now("pump")
    supervisor.run_now("pump")
    await asyncio.wait([supervisor.over("pump")])
    await clock.advance(60)
    assert begun == [0, 0]


async def test_cancelling_a_stop_cancels_the_step_that_it_waits_for() -> None:
    supervisor, cancelled = TaskSupervisor(ManualClock()), list[str]()

    class Stuck(Service):
        async def step(self) -> float:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(self.name)
            return 0

    supervisor.serve(Stuck("stuck"))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(supervisor.stop("stuck"))
    await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.wait([stopping])
    await asyncio.wait([supervisor.over("stuck")])
    assert cancelled == ["stuck"]


def test_leases_run_out_when_the_loop_ends_without_a_close(caplog: pytest.LogCaptureFixture) -> None:
    begun = threading.Event()

    async def handler(job: Job[Any]) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> list[threading.Thread]:
        app = Windlass("memory://ends-without-a-close")
        await app.queue("mail").add("n")
        await Worker("mail", handler, url_or_app=app, lease=1).start()
        await asyncio.to_thread(begun.wait, 10)
        return [thread for thread in threading.enumerate() if thread.name in threads]

    threads = {"windlass-leases", "windlass-loop-watch"}
    running = asyncio.run(main())
    assert {thread.name for thread in running} == threads
    for thread in running:
        thread.join(10)
        assert not thread.is_alive()
    assert "started again" not in caplog.text
