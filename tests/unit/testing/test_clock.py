"""The clocks of the testing kit."""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from windlass.backend import requests as rq
from windlass.core.clock import SYSTEM_CLOCK, Clock
from windlass.errors import ConfigError
from windlass.testing import ManualClock, SharedClock

if TYPE_CHECKING:
    from pathlib import Path


async def sleeper(clock: ManualClock, name: str, ms: float, seen: list[tuple[str, float]]) -> None:
    await clock.wait(asyncio.Event(), ms)
    seen.append((name, clock.monotonic_ms()))


def clock_of(kind: str, directory: Path) -> Clock:
    match kind:
        case "manual":
            return ManualClock()
        case "shared":
            return SharedClock(directory / "clock")
    return SYSTEM_CLOCK


@pytest.mark.feature("U6")
def test_both_clocks_are_driven_clocks(tmp_path: Path) -> None:
    shared = SharedClock(tmp_path / "clock")
    for clock in (ManualClock(), shared):
        assert isinstance(clock, Clock)
        request, given = rq.ListWorkers(), rq.ListWorkers(now_ms=5)
        clock.stamp(request)
        clock.stamp(given)
        assert (request.now_ms, given.now_ms) == (clock.now_ms(), 5)
    shared.close()


@pytest.mark.feature("U6")
async def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    before = clock.now_ms()
    await asyncio.sleep(0)
    assert clock.now_ms() == before == 1_893_456_000_000
    await clock.advance(1.5, ms=500)
    assert (clock.now_ms(), clock.monotonic_ms()) == (before + 2_000, 2_000)


@pytest.mark.feature("U6")
async def test_sleepers_wake_in_due_order_each_at_its_own_time() -> None:
    clock = ManualClock()
    seen: list[tuple[str, float]] = []
    tasks = [
        asyncio.create_task(sleeper(clock, name, ms, seen)) for name, ms in [("c", 30), ("a", 10), ("b", 20)]
    ]
    await clock.advance(ms=25)
    assert seen == [("a", 10), ("b", 20)]
    assert clock.sleepers == 1
    await clock.advance(ms=5)
    assert [name for name, _ in seen] == ["a", "b", "c"]
    await asyncio.gather(*tasks)


@pytest.mark.feature("U6")
async def test_a_sleeper_runs_and_sleeps_again_before_time_moves_on() -> None:
    clock, ticks = ManualClock(), list[float]()

    async def ticker() -> None:
        while True:
            await clock.wait(asyncio.Event(), 1_000)
            for _ in range(5):
                await asyncio.sleep(0)
            ticks.append(clock.monotonic_ms())

    task = asyncio.create_task(ticker())
    await clock.advance(60)
    assert ticks == [1_000 * n for n in range(1, 61)]
    task.cancel()


@pytest.mark.feature("U6")
async def test_sleepers_due_at_the_same_time_wake_in_the_order_they_fell_asleep() -> None:
    clock, seen = ManualClock(), list[tuple[str, float]]()
    tasks = [asyncio.create_task(sleeper(clock, name, 10, seen)) for name in "abc"]
    await clock.advance(ms=10)
    assert [name for name, _ in seen] == ["a", "b", "c"]
    await asyncio.gather(*tasks)


@pytest.mark.feature("U6")
async def test_an_event_ends_a_wait_before_its_time() -> None:
    clock, event = ManualClock(), asyncio.Event()
    waiting = asyncio.create_task(clock.wait(event, 1_000))
    await clock.settle()
    event.set()
    assert await waiting is True
    assert (clock.sleepers, clock.next_wake_ms) == (0, None)


@pytest.mark.feature("U6")
async def test_a_wait_whose_time_is_over_says_no() -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 1_000))
    await clock.advance(1)
    assert await waiting is False


@pytest.mark.feature("U6")
async def test_a_wait_without_time_answers_at_once() -> None:
    clock, event = ManualClock(), asyncio.Event()
    assert await clock.wait(event, 0) is False
    event.set()
    assert await clock.wait(event, 0) is True
    assert await clock.wait(event, 5) is True


@pytest.mark.feature("U6")
async def test_a_wait_without_a_limit_sleeps_until_the_event() -> None:
    clock, event = ManualClock(), asyncio.Event()
    waiting = asyncio.create_task(clock.wait(event, None))
    await clock.advance(10**6)
    assert not waiting.done()
    event.set()
    assert await waiting is True


@pytest.mark.feature("U6")
async def test_a_cancelled_sleeper_is_forgotten() -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 1_000))
    await clock.settle()
    waiting.cancel()
    await clock.advance(2)
    assert waiting.cancelled()
    assert clock.sleepers == 0


@pytest.mark.feature("U6")
async def test_setting_the_wall_clock_wakes_nobody_and_moves_no_duration() -> None:
    clock = ManualClock()
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 1_000))
    await clock.settle()
    clock.set(datetime(2040, 1, 1, tzinfo=UTC))
    await clock.settle()
    assert clock.now() == datetime(2040, 1, 1, tzinfo=UTC)
    assert (clock.monotonic_ms(), clock.next_wake_ms, waiting.done()) == (0, 1_000, False)
    await clock.advance(1)
    assert clock.now() == datetime(2040, 1, 1, 0, 0, 1, tzinfo=UTC)
    await waiting


@pytest.mark.feature("U6")
async def test_advance_waits_for_work_in_other_threads() -> None:
    clock, done = ManualClock(), list[float]()

    async def work() -> None:
        await clock.wait(asyncio.Event(), 10)
        with clock.working():
            await asyncio.to_thread(lambda: None)
        done.append(clock.monotonic_ms())

    task = asyncio.create_task(work())
    await clock.advance(1)
    assert done == [10]
    await task


@pytest.mark.feature("U6")
@pytest.mark.parametrize("step", [{"seconds": -1}, {"ms": -1}])
async def test_time_never_goes_back(step: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        await ManualClock().advance(**step)


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(ConfigError):
        ManualClock(datetime(2030, 1, 1))


# --- SharedClock ----------------------------------------------------------------------------------


@pytest.mark.feature("U6")
async def test_two_shared_clocks_on_one_path_show_one_time(tmp_path: Path) -> None:
    one, two = SharedClock(tmp_path / "clock"), SharedClock(tmp_path / "clock", start=0)
    assert one.now_ms() == two.now_ms() == 1_750_000_000_000
    await one.advance(5, ms=1)
    assert two.monotonic_ms() == 5_001
    two.set(datetime(2030, 1, 1, tzinfo=UTC))
    assert one.now_ms() == 1_893_456_000_000
    one.close()
    two.close()


@pytest.mark.feature("U6")
async def test_a_shared_clock_wakes_those_who_wait_for_it(tmp_path: Path) -> None:
    clock = SharedClock(tmp_path / "clock")
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 1_000))
    await asyncio.sleep(0)
    await clock.advance(0.999)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await clock.advance(0.001)
    assert await asyncio.wait_for(waiting, 5) is False
    clock.close()


@pytest.mark.feature("U6")
async def test_an_event_ends_a_wait_on_a_shared_clock(tmp_path: Path) -> None:
    clock, event = SharedClock(tmp_path / "clock"), asyncio.Event()
    waiting = asyncio.create_task(clock.wait(event, 1_000))
    await asyncio.sleep(0)
    event.set()
    assert await asyncio.wait_for(waiting, 5) is True
    assert await clock.wait(event, None) is True
    clock.close()


async def pass_a_second(clock: Clock) -> None:
    if isinstance(clock, (ManualClock, SharedClock)):
        await clock.advance(1)


@pytest.mark.parametrize("kind", ["system", "manual", "shared"])
async def test_every_clock_calls_back_in_its_own_time(kind: str, tmp_path: Path) -> None:
    clock = clock_of(kind, tmp_path)
    called, never = asyncio.Event(), list[str]()
    clock.call_later(5, called.set)
    clock.call_later(5, lambda: never.append("cancelled")).cancel()
    assert not called.is_set()
    await pass_a_second(clock)
    async with asyncio.timeout(5):
        await called.wait()
    assert never == []


@pytest.mark.parametrize("kind", ["system", "manual", "shared"])
async def test_a_timeout_runs_by_its_clock(kind: str, tmp_path: Path) -> None:
    clock = clock_of(kind, tmp_path)

    async def late() -> None:
        async with clock.timeout(5):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(late())
    await asyncio.sleep(0)
    await pass_a_second(clock)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 5)
    for limit_ms in (60_000, None):
        async with clock.timeout(limit_ms):
            await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("kind", "where"), [("system", "apart"), ("shared", "apart"), ("manual", "MainThread")]
)
async def test_what_runs_apart_is_held_up_by_nothing_that_could_hold_it(
    kind: str, where: str, tmp_path: Path
) -> None:
    clock, loop = clock_of(kind, tmp_path), asyncio.get_running_loop()
    ran: asyncio.Future[str] = loop.create_future()

    async def main() -> None:
        loop.call_soon_threadsafe(ran.set_result, threading.current_thread().name)

    clock.run_apart("apart", main)
    assert await asyncio.wait_for(ran, 5) == where


_CHILD = """
import asyncio, sys
from windlass.testing import SharedClock
async def main():
    clock = SharedClock(sys.argv[1])
    waiting = asyncio.create_task(clock.wait(asyncio.Event(), 3_600_000))
    await asyncio.sleep(0)
    print("asleep", flush=True)
    await waiting
    print(clock.monotonic_ms(), flush=True)
asyncio.run(main())
"""


@pytest.mark.feature("U6")
async def test_a_shared_clock_drives_another_process(tmp_path: Path) -> None:
    clock = SharedClock(tmp_path / "clock")
    command = [sys.executable, "-c", _CHILD, str(tmp_path / "clock")]
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert child.stdout is not None
    assert await child.stdout.readline() == b"asleep\n"
    await clock.advance(3_600)
    assert await child.stdout.readline() == b"3600000.0\n"
    assert await child.wait() == 0
    clock.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"x" * 100)
    with pytest.raises(ConfigError):
        SharedClock(path)
