"""A process whose clock was ahead for a moment, on the stores that use the machine's clock.

Requests carry no time here: the stores ask the machine, as in production.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.harnesses import HARNESSES, make_harness
from windlass.backend import Backend, open_backend
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.clock import HOLD_MS, SystemClock
from windlass.core.job import NewJob, WorkerInfo
from windlass.core.limit_rules import Bucket, GroupLimits, Rate
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, Harness

HOUR_MS = 3_600_000
START_MS = 1_800_000_000_000


class Machine:
    """The clocks of this machine, moved by hand. ``ahead_ms``: how wrong its wall clock is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_ms = 0
        self.ahead_ms = 0
        monkeypatch.setattr(SystemClock, "now_ms", lambda clock: START_MS + self.passed_ms + self.ahead_ms)
        monkeypatch.setattr(SystemClock, "monotonic_ms", lambda clock: float(self.passed_ms))

    @property
    def now_ms(self) -> int:
        return START_MS + self.passed_ms

    async def was_ahead(self, harness: Harness) -> None:
        """The clock is right again, and the store has had its time to notice."""
        self.ahead_ms = 0
        await harness.do(rq.Beat(worker=WorkerInfo(id="w")))
        self.passed_ms += HOLD_MS
        await harness.do(rq.Beat(worker=WorkerInfo(id="w")))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture(params=HARNESSES)
async def harness(request: pytest.FixtureRequest, tmp_path: Path, machine: Machine) -> AsyncIterator[Harness]:
    """A fresh store of each backend, that goes by the machine's clock."""
    async with make_harness(request.param, tmp_path) as started:
        started.now_ms = None  # type: ignore[assignment]
        yield started


async def test_a_lease_that_was_taken_ahead_ends_in_its_length(harness: Harness, machine: Machine) -> None:
    machine.ahead_ms = HOUR_MS
    await harness.start("a")
    await machine.was_ahead(harness)
    lease_until_ms = (await harness.get("a")).lease_until_ms
    assert lease_until_ms is not None
    assert lease_until_ms <= machine.now_ms + 30_000
    machine.passed_ms += 29_999
    assert (await harness.do(rq.Recover())).recovered == []
    machine.passed_ms += 1
    assert [ref.id for ref in (await harness.do(rq.Recover())).recovered] == ["a"]


async def test_a_lease_that_was_taken_before_keeps_its_end(harness: Harness, machine: Machine) -> None:
    job = await harness.start("a")
    machine.ahead_ms = HOUR_MS
    await harness.add("b")  # the store sees the wrong time, but nobody looks for lost leases
    await machine.was_ahead(harness)
    assert (await harness.get("a")).lease_until_ms == job.lease_until_ms


async def test_time_stands_still_for_a_moment_and_then_follows_the_machine(
    harness: Harness, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.ahead_ms = HOUR_MS
    await harness.add("a")
    machine.ahead_ms = 0
    with caplog.at_level(logging.WARNING, "windlass.clock"):
        assert (await harness.add("b")).enqueued_ms == START_MS + HOUR_MS
        machine.passed_ms += HOLD_MS - 1
        assert (await harness.add("c")).enqueued_ms == START_MS + HOUR_MS
        assert not caplog.messages
        machine.passed_ms += 1
        assert (await harness.add("d")).enqueued_ms == machine.now_ms
    assert len(caplog.messages) == 1
    assert "3595.0 s ahead" in caplog.text
    machine.passed_ms += 10
    assert (await harness.add("e")).enqueued_ms == machine.now_ms
    counted = [row for row in await harness.do(rq.ReadCounters()) if row.outcome == "clock_set_back"]
    assert [(row.queue, row.total) for row in counted] == [(QUEUE, 1)]
    assert [job.id for job in await harness.claim(10)] == ["a", "b", "c", "d", "e"]


async def test_a_clock_that_is_a_little_behind_only_stands_still(harness: Harness, machine: Machine) -> None:
    machine.ahead_ms = 2_000
    first = await harness.add("a")
    machine.ahead_ms = 0
    times = []
    for n in range(5):
        machine.passed_ms += 1_000
        times.append((await harness.add(f"b{n}")).enqueued_ms)
    assert first.enqueued_ms == START_MS + 2_000
    assert times == [START_MS + at_ms for at_ms in (2_000, 2_000, 3_000, 4_000, 5_000)]


async def test_delays_and_retries_work_when_the_clock_is_right_again(
    harness: Harness, machine: Machine
) -> None:
    machine.ahead_ms = HOUR_MS
    await harness.add("wrong", delay_ms=1_000)
    await machine.was_ahead(harness)
    await harness.add("later", delay_ms=1_000)
    failed = await harness.start("failed")
    await harness.settle(failed, Outcome.RETRY, delay_ms=500)
    machine.passed_ms += 500
    assert [job.id for job in await harness.claim(10)] == ["failed"]
    machine.passed_ms += 500
    assert [job.id for job in await harness.claim(10)] == ["later"]
    assert await harness.state("wrong") is JobState.SCHEDULED  # a due time stays; the doctor lists it
    machine.passed_ms += HOUR_MS
    assert [job.id for job in await harness.claim(10)] == ["wrong"]


async def test_starts_in_the_future_are_dropped_from_rate_windows(harness: Harness, machine: Machine) -> None:
    await harness.do(lrq.SetQueueLimits(queue=QUEUE, fields=["rate"], rate=Rate(2, 60_000)))
    await harness.add_many("a", "b", "c", "d", "e")
    machine.ahead_ms = HOUR_MS
    assert len(await harness.claim(10)) == 2
    await machine.was_ahead(harness)
    assert len(await harness.claim(10)) == 2
    machine.passed_ms += 59_999
    assert await harness.claim(10) == []
    machine.passed_ms += 1
    assert len(await harness.claim(10)) == 1


@pytest.mark.parametrize("limits", [GroupLimits(rate=Rate(1, 60_000)), GroupLimits(bucket=Bucket(1, 1 / 60))])
async def test_limits_of_groups_go_on(harness: Harness, machine: Machine, limits: GroupLimits) -> None:
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=limits))
    await harness.add_many("a", "b", "c", options=StoredOptions(group="g"))
    machine.ahead_ms = HOUR_MS
    assert len(await harness.claim(10)) == 1
    await machine.was_ahead(harness)
    machine.passed_ms += 60_000
    assert len(await harness.claim(10)) == 1
    machine.passed_ms += 60_000
    assert len(await harness.claim(10)) == 1


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_hold_keeps_the_time_that_it_had_left(
    harness: Harness, machine: Machine, group: str | None
) -> None:
    await harness.add("a", options=StoredOptions(group="g"))
    machine.ahead_ms = HOUR_MS
    await harness.do(lrq.Hold(queue=QUEUE, group=group, ms=10_000))
    await machine.was_ahead(harness)
    assert await harness.claim(10) == []
    machine.passed_ms += 10_000
    assert len(await harness.claim(10)) == 1


async def test_a_leader_that_was_elected_ahead_and_died_is_replaced(
    harness: Harness, machine: Machine
) -> None:
    machine.ahead_ms = HOUR_MS
    assert await harness.do(rq.Elect(role="duties", holder="dead", ttl_ms=15_000))
    await machine.was_ahead(harness)
    assert not await harness.do(rq.Elect(role="duties", holder="heir", ttl_ms=15_000))
    machine.passed_ms += 15_000
    assert await harness.do(rq.Elect(role="duties", holder="heir", ttl_ms=15_000))


async def test_a_worker_that_beat_ahead_and_died_is_not_taken_for_alive(
    harness: Harness, machine: Machine
) -> None:
    machine.ahead_ms = HOUR_MS
    await harness.do(rq.Beat(worker=WorkerInfo(id="dead")))
    await machine.was_ahead(harness)
    assert {info.id for info in await harness.do(rq.ListWorkers(stale_ms=20_000))} == {"dead", "w"}
    machine.passed_ms += 20_000
    assert await harness.do(rq.ListWorkers(stale_ms=20_000)) == []


@pytest.mark.parametrize("mode", [UniqueMode.THROTTLE, UniqueMode.UNTIL_DONE])
async def test_a_unique_key_keeps_the_time_that_it_had_left(
    harness: Harness, machine: Machine, mode: UniqueMode
) -> None:
    options = StoredOptions(unique=StoredUnique(key="k", mode=mode, ttl_ms=10_000))
    machine.ahead_ms = HOUR_MS
    await harness.add("a", options=options)
    await machine.was_ahead(harness)
    assert (await harness.add("b", options=options)).outcome is AddOutcome.DUPLICATE
    machine.passed_ms += 10_000
    assert (await harness.add("c", options=options)).outcome is AddOutcome.QUEUED


async def test_events_and_history_are_read_on_by_their_numbers(harness: Harness, machine: Machine) -> None:
    machine.ahead_ms = HOUR_MS
    await harness.finish("a")
    at = await harness.mark()
    await machine.was_ahead(harness)
    await harness.finish("b")
    events = await harness.events(after=at)
    assert {event.job_id for event in events} <= {"", "b"}
    assert [event.id for event in events] == [at + n for n in range(1, len(events) + 1)]
    page = await harness.do(rq.ReadHistory(queue=QUEUE, after=1))
    assert [record.job_id for record in page.records] == ["b"]
    await harness.do(rq.Prune())
    assert len(await harness.history()) == 2


async def test_the_other_processes_follow_one_that_set_the_time_back(
    harness: Harness, machine: Machine, tmp_path: Path
) -> None:
    if harness.name == "memory":
        return  # one process has it
    other = await _other(harness, tmp_path)
    try:
        machine.ahead_ms = HOUR_MS
        await harness.add("a")
        await _add(other, "b")
        await machine.was_ahead(harness)
        assert (await _add(other, "c")).enqueued_ms == machine.now_ms
        machine.passed_ms += 7
        assert (await _add(other, "d")).enqueued_ms == machine.now_ms
        await harness.reopen()
        assert (await harness.add("e")).enqueued_ms == machine.now_ms
        counted = [row for row in await harness.do(rq.ReadCounters()) if row.outcome == "clock_set_back"]
        assert [row.total for row in counted] == [1]
    finally:
        await other.close()


async def _other(harness: Harness, tmp_path: Path) -> Backend:
    """A client that shares nothing with the harness's, as in another process."""
    path = f"sqlite:///{tmp_path / 'jobs.db'}" if harness.name == "sqlite" else f"file://{tmp_path / 'jobs'}"
    other = open_backend(f"{path}?namespace={harness.namespace}&timeout=7")
    await other.open()
    return other


async def _add(store: Backend, job_id: str, **fields: Any) -> rq.Added:
    new = NewJob(queue=QUEUE, id=job_id, task="send", payload=b"[]", **fields)
    return (await store.execute(rq.Add(jobs=[new])))[0]
