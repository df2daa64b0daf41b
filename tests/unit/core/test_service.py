"""Services: start and stop in any order, never die quietly."""

from __future__ import annotations

import asyncio

import pytest

from windlass.core.service import Service
from windlass.errors import StorageError
from windlass.testing import ManualClock


class Ticker(Service):
    """Counts a step every second; fails when told to."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__("ticker", clock)
        self.ticks = 0
        self.stops = 0
        self.failures: list[Exception] = []

    async def _step(self) -> float:
        if self.failures:
            raise self.failures.pop(0)
        self.ticks += 1
        return 1_000

    async def _stopped(self) -> None:
        self.stops += 1


@pytest.mark.feature("V2")
async def test_a_service_runs_until_it_is_stopped() -> None:
    clock = ManualClock()
    ticker = Ticker(clock)
    ticker.start()
    await clock.advance(3)
    assert (ticker.ticks, ticker.running) == (4, True)
    await ticker.stop()
    assert (ticker.running, ticker.stops) == (False, 1)
    await clock.advance(10)
    assert ticker.ticks == 4


@pytest.mark.feature("V2")
async def test_starting_twice_and_stopping_at_any_time_is_legal() -> None:
    clock = ManualClock()
    ticker = Ticker(clock)
    await ticker.stop()
    ticker.start()
    ticker.start()
    await clock.settle()
    assert ticker.ticks == 1
    await ticker.stop()
    await ticker.stop()
    ticker.start()
    await clock.settle()
    assert ticker.ticks == 2
    await ticker.stop()


@pytest.mark.feature("Z14")
async def test_a_service_that_meets_errors_goes_on_with_growing_pauses() -> None:
    clock = ManualClock()
    ticker = Ticker(clock)
    ticker.failures = [StorageError("away"), RuntimeError("bug"), StorageError("away")]
    ticker.start()
    await clock.advance(0.4)
    assert ticker.ticks == 0
    await clock.advance(0.5 + 1 + 2)
    assert ticker.ticks >= 1
    await ticker.stop()


@pytest.mark.feature("Z14")
async def test_a_service_recovers_its_pace_after_an_isolated_error() -> None:
    clock = ManualClock()
    ticker = Ticker(clock)
    ticker.start()
    await clock.settle()
    for _ in range(10):
        ticker.failures = [StorageError("away")]
        before = ticker.ticks
        await clock.advance(1)  # the step that fails ...
        await clock.advance(0.5)  # ... and the next one, after the first and shortest of pauses
        assert ticker.ticks == before + 1
    await ticker.stop()


async def test_stopping_does_not_wait_for_a_pause_to_end() -> None:
    clock = ManualClock()
    ticker = Ticker(clock)
    ticker.start()
    await clock.settle()
    await asyncio.wait_for(ticker.stop(), 5)
    assert clock.monotonic_ms() == 0
