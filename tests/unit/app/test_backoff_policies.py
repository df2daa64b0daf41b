"""How long a failed job waits: built-in policies, and strategies of the application."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.app.support import DrivenClock, reaches, work_off, working
from windlass import Job, JobState, Queue, Windlass

# --- backoff -------------------------------------------------------------------------------------------


async def _pauses(app: Windlass, clock: DrivenClock, runs: int, **options: Any) -> list[float]:
    """The seconds between the end of each failed run and the time for which the next is due."""
    pauses: list[float] = []
    queue = app.queue("default")
    job = await queue.add("work", max_attempts=runs + 1, **options)

    async def handler(job: Job[Any]) -> None:
        raise ValueError

    async with working(app, "default", handler):
        for _ in range(runs):
            await clock.settle()
            await job.refresh()
            assert job.run_at_ms is not None
            pauses.append((job.run_at_ms - clock.now_ms()) / 1000)
            await job.promote()
    return pauses


@pytest.mark.feature("C2", "A11")
async def test_the_default_backoff_doubles_from_two_seconds_up_to_its_cap(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    exact = await _pauses(timed_app, clock, 5, backoff={"jitter": 0})
    assert exact == [2, 4, 8, 16, 32]
    capped = await _pauses(timed_app, clock, 4, backoff={"delay": 10, "cap": 25, "jitter": 0})
    assert capped == [10, 20, 25, 25]


@pytest.mark.feature("C2", "A11")
async def test_a_fixed_backoff_stays_the_same(timed_app: Windlass, clock: DrivenClock) -> None:
    assert await _pauses(timed_app, clock, 3, backoff={"type": "fixed", "delay": 7, "jitter": 0}) == [7, 7, 7]
    assert await _pauses(timed_app, clock, 2, backoff=1.5) == [1.5, 1.5]


@pytest.mark.feature("C3")
async def test_the_sidekiq_backoff_follows_its_formula(timed_app: Windlass, clock: DrivenClock) -> None:
    pauses = await _pauses(timed_app, clock, 6, backoff="sidekiq")
    for failures, pause in enumerate(pauses, 1):
        least = (failures - 1) ** 4 + 15
        assert least <= pause <= least + 30 * failures


@pytest.mark.feature("C4")
async def test_jitter_only_ever_shortens_a_pause(timed_app: Windlass, clock: DrivenClock) -> None:
    pauses = await _pauses(timed_app, clock, 20, backoff={"type": "fixed", "delay": 100, "jitter": 0.5})
    assert all(50 <= pause <= 100 for pause in pauses)
    assert len(set(pauses)) > 1


# --- backoff of one's own --------------------------------------------------------------------------------


@pytest.mark.feature("C5", "A11")
async def test_a_named_strategy_decides_by_failures_and_error(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    asked: list[tuple[int, str]] = []

    def strategy(failures: int, error: BaseException) -> float | None:
        asked.append((failures, str(error)))
        return None if failures == 3 else failures * 10

    async def handler(job: Job[Any]) -> None:
        raise ValueError(f"n{job.attempt}")

    timed_app.backoff_strategies["linear"] = strategy
    job = await queue.add("work", backoff="linear", max_attempts=10)
    await clock.until(work_off(timed_app, "default", handler))
    await job.refresh()
    assert asked == [(1, "n1"), (2, "n2"), (3, "n3")]
    assert (job.state, job.attempts, job.reason) == (JobState.FAILED, 3, "gave_up")


@pytest.mark.feature("C5")
async def test_a_workers_strategies_come_before_the_apps(app: Windlass, queue: Queue) -> None:
    app.backoff_strategies["mine"] = lambda failures, error: 3_600

    async def handler(job: Job[Any]) -> None:
        raise ValueError

    job = await queue.add("work", backoff={"type": "mine"}, max_attempts=2)
    await work_off(app, "default", handler, backoff_strategies={"mine": lambda failures, error: 0})
    assert (await job.refresh()).attempts == 2


@pytest.mark.feature("C5")
@pytest.mark.parametrize("answer", [ZeroDivisionError(), "soon", float("nan")], ids=repr)
async def test_a_strategy_that_fails_does_not_lose_the_job(app: Windlass, queue: Queue, answer: Any) -> None:
    def strategy(failures: int, error: BaseException) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def handler(job: Job[Any]) -> None:
        raise ValueError("the real trouble")

    app.backoff_strategies["broken"] = strategy
    job = await queue.add("work", backoff="broken", max_attempts=2)
    async with working(app, "default", handler):
        await reaches(job, JobState.RETRYING, JobState.FAILED)
    assert job.errors[0].message == "the real trouble"


async def test_an_error_that_cannot_describe_itself_is_still_an_error(app: Windlass, queue: Queue) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    async def handler(job: Job[Any]) -> None:
        raise Mute

    job = await queue.add("work", max_attempts=1)
    async with working(app, "default", handler):
        assert await job.wait_until_finished(timeout=10) is JobState.FAILED
    assert job.errors[0].error_class == "Mute"


async def test_an_immediate_retry_goes_to_the_back_of_its_priority(app: Windlass, queue: Queue) -> None:
    order: list[str] = []

    async def handler(job: Job[Any]) -> None:
        order.append(job.data)
        if job.data == "bad":
            raise ValueError

    await queue.add("work", "bad", max_attempts=2, backoff=0)
    await queue.add("work", "b")
    await queue.add("work", "c")
    await work_off(app, "default", handler, concurrency=1)
    assert order == ["bad", "b", "c", "bad"]
