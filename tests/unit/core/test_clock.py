"""The machine's own clocks, and the one of stores that go by them."""

from __future__ import annotations

import asyncio

import pytest

from windlass.backend import requests as rq
from windlass.core.clock import HOLD_MS, SYSTEM_CLOCK, Clock, SteadyClock, SystemClock, Timed


class Hands(SystemClock):
    """A clock whose hands a test moves."""

    def __init__(self, now_ms: int) -> None:
        self.ms = now_ms
        self.monotonic = 0

    def now_ms(self) -> int:
        return self.ms

    def stamp(self, request: Timed) -> None:
        request.now_ms = self.ms

    def monotonic_ms(self) -> float:
        return float(self.monotonic)


def test_the_system_clock_is_a_clock_that_nobody_drives() -> None:
    assert isinstance(SYSTEM_CLOCK, Clock)
    request = rq.ListWorkers()
    SYSTEM_CLOCK.stamp(request)
    assert request.now_ms is None
    assert 1_700_000_000_000 < SYSTEM_CLOCK.now_ms() < 10_000_000_000_000


def test_the_monotonic_clock_does_not_go_back() -> None:
    readings = [SYSTEM_CLOCK.monotonic_ms() for _ in range(100)]
    assert readings == sorted(readings)


async def test_a_wait_ends_with_its_event_or_its_time() -> None:
    event = asyncio.Event()
    assert await SYSTEM_CLOCK.wait(event, 1) is False
    event.set()
    assert await SYSTEM_CLOCK.wait(event, 1_000) is True
    assert await SYSTEM_CLOCK.wait(event, None) is True
    assert await SYSTEM_CLOCK.wait(event, 0) is True


async def test_a_sleeping_waiter_is_woken_by_its_event() -> None:
    event = asyncio.Event()
    waiting = asyncio.create_task(SYSTEM_CLOCK.wait(event, None))
    await asyncio.sleep(0)
    assert not waiting.done()
    event.set()
    assert await waiting is True


async def test_cancelling_a_wait_is_not_mistaken_for_its_time_running_out() -> None:
    waiting = asyncio.create_task(SYSTEM_CLOCK.wait(asyncio.Event(), 60_000))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_a_steady_clock_stands_still_when_the_machine_is_set_back_a_little() -> None:
    hands = Hands(1_000)
    steady = SteadyClock(hands)
    assert steady.now_ms() == 1_000
    hands.ms = 500
    assert steady.now_ms() == 1_000
    hands.ms = 1_001
    assert steady.now_ms() == 1_001


def test_a_steady_clock_follows_the_machine_when_it_stood_still_long_enough() -> None:
    hands = Hands(1_000)
    steady = SteadyClock(hands)
    assert steady.now_ms(50_000) == 50_000
    hands.monotonic = HOLD_MS - 1
    assert steady.now_ms(50_000) == 50_000
    hands.monotonic = HOLD_MS
    assert steady.now_ms(50_000) == 1_000
    assert steady.now_ms(50_000) == 1_000  # nobody wrote it down yet
    hands.ms = 1_001
    assert steady.now_ms(1_000) == 1_001
    assert steady.now_ms(60_000) == 60_000  # ahead again: another moment


def test_a_steady_clock_follows_a_store_that_was_set_back() -> None:
    hands = Hands(1_000)
    steady = SteadyClock(hands)
    assert steady.now_ms(50_000) == 50_000
    assert steady.now_ms(990) == 1_000


def test_a_steady_clock_may_be_read_by_two_threads() -> None:
    """One that finds the machine ahead again does not disturb one that found it behind."""

    class Disturbed(SteadyClock):
        def __setattr__(self, name: str, value: object) -> None:
            super().__setattr__(name, None if name == "_behind_since" else value)

    hands = Hands(1_000)
    steady = Disturbed(hands)
    assert steady.now_ms() == 1_000
    hands.ms = 500
    assert steady.now_ms() == 1_000
