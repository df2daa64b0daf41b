"""A machine whose clock was ahead for a moment. For stores that use the clock of the machine.

Requests carry no time here: the stores read the clock, as in production.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self
from unittest import mock

import pytest

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.clock import HOLD_MS, SystemClock
from windlass.core.edges import Dependency
from windlass.core.job import WorkerInfo
from windlass.core.limit_rules import Bucket, GroupLimits, Rate
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, Harness

HOUR_MS = 3_600_000
#: The time at which these tests start, in 2096: the store was opened at the real time, and must not see the
#: clock go back.
START_MS = 4_000_000_000_000


class Machine:
    """The clocks of this machine, which the test moves. ``ahead_ms`` is the error of its wall clock."""

    def __init__(self, harness: Harness) -> None:
        self.passed_ms = 0
        self.ahead_ms = 0
        self._harness = harness
        self._patches = ExitStack()
        harness.variant = harness.variant._replace(own=True)

    def __enter__(self) -> Self:
        for name, read in (
            ("now_ms", lambda clock: self.now_ms + self.ahead_ms),
            ("monotonic_ms", lambda clock: float(self.passed_ms)),
        ):
            self._patches.enter_context(mock.patch.object(SystemClock, name, read))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patches.close()

    @property
    def now_ms(self) -> int:
        """The correct time."""
        return START_MS + self.passed_ms

    async def was_ahead(self) -> None:
        """Correct the clock, and give the store time to notice."""
        self.ahead_ms = 0
        await self._harness.do(rq.Beat(worker=WorkerInfo(id="w")))
        self.passed_ms += HOLD_MS
        await self._harness.do(rq.Beat(worker=WorkerInfo(id="w")))


async def test_a_lease_that_was_taken_ahead_ends_in_its_length(harness: Harness) -> None:
    with Machine(harness) as machine:
        machine.ahead_ms = HOUR_MS
        await harness.start("a")
        await machine.was_ahead()
        lease_until_ms = (await harness.get("a")).lease_until_ms
        assert lease_until_ms is not None
        assert lease_until_ms <= machine.now_ms + 30_000
        machine.passed_ms += 29_999
        assert (await harness.do(rq.Recover())).recovered == []
        machine.passed_ms += 1
        assert [ref.id for ref in (await harness.do(rq.Recover())).recovered] == ["a"]


async def test_a_lease_that_was_taken_before_keeps_its_end(harness: Harness) -> None:
    with Machine(harness) as machine:
        job = await harness.start("a")
        machine.ahead_ms = HOUR_MS
        await harness.add("b")  # the store sees the wrong time, but no request looks for lost leases
        await machine.was_ahead()
        assert (await harness.get("a")).lease_until_ms == job.lease_until_ms


async def test_time_stands_still_for_a_moment_and_then_follows_the_machine(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    with Machine(harness) as machine:
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


async def test_a_clock_that_is_a_little_behind_only_stands_still(harness: Harness) -> None:
    with Machine(harness) as machine:
        machine.ahead_ms = 2_000
        first = await harness.add("a")
        machine.ahead_ms = 0
        times = []
        for n in range(5):
            machine.passed_ms += 1_000
            times.append((await harness.add(f"b{n}")).enqueued_ms)
        assert first.enqueued_ms == START_MS + 2_000
        assert times == [START_MS + at_ms for at_ms in (2_000, 2_000, 3_000, 4_000, 5_000)]


async def test_delays_and_retries_work_when_the_clock_is_right_again(harness: Harness) -> None:
    with Machine(harness) as machine:
        machine.ahead_ms = HOUR_MS
        await harness.add("wrong", delay_ms=1_000)
        await machine.was_ahead()
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


async def test_starts_in_the_future_are_dropped_from_rate_windows(harness: Harness) -> None:
    with Machine(harness) as machine:
        await harness.do(lrq.SetQueueLimits(queue=QUEUE, fields=["rate"], rate=Rate(2, 60_000)))
        await harness.add_many("a", "b", "c", "d", "e")
        machine.ahead_ms = HOUR_MS
        assert len(await harness.claim(10)) == 2
        await machine.was_ahead()
        assert len(await harness.claim(10)) == 2
        machine.passed_ms += 59_999
        assert await harness.claim(10) == []
        machine.passed_ms += 1
        assert len(await harness.claim(10)) == 1


@pytest.mark.parametrize("limits", [GroupLimits(rate=Rate(1, 60_000)), GroupLimits(bucket=Bucket(1, 1 / 60))])
async def test_limits_of_groups_go_on(harness: Harness, limits: GroupLimits) -> None:
    with Machine(harness) as machine:
        await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=limits))
        await harness.add_many("a", "b", "c", options=StoredOptions(group="g"))
        machine.ahead_ms = HOUR_MS
        assert len(await harness.claim(10)) == 1
        await machine.was_ahead()
        machine.passed_ms += 60_000
        assert len(await harness.claim(10)) == 1
        machine.passed_ms += 60_000
        assert len(await harness.claim(10)) == 1


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_hold_keeps_the_time_that_it_had_left(harness: Harness, group: str | None) -> None:
    with Machine(harness) as machine:
        await harness.add("a", options=StoredOptions(group="g"))
        machine.ahead_ms = HOUR_MS
        await harness.do(lrq.Hold(queue=QUEUE, group=group, ms=10_000))
        await machine.was_ahead()
        assert await harness.claim(10) == []
        machine.passed_ms += 10_000
        assert len(await harness.claim(10)) == 1


async def test_a_leader_that_was_elected_ahead_and_died_is_replaced(harness: Harness) -> None:
    with Machine(harness) as machine:
        machine.ahead_ms = HOUR_MS
        assert await harness.do(rq.Elect(role="duties", holder="dead", ttl_ms=15_000))
        await machine.was_ahead()
        assert not await harness.do(rq.Elect(role="duties", holder="heir", ttl_ms=15_000))
        machine.passed_ms += 15_000
        assert await harness.do(rq.Elect(role="duties", holder="heir", ttl_ms=15_000))


async def test_a_worker_that_beat_ahead_and_died_is_not_taken_for_alive(harness: Harness) -> None:
    with Machine(harness) as machine:
        machine.ahead_ms = HOUR_MS
        await harness.do(rq.Beat(worker=WorkerInfo(id="dead")))
        await machine.was_ahead()
        assert {info.id for info in await harness.do(rq.ListWorkers(stale_ms=20_000))} == {"dead", "w"}
        machine.passed_ms += 20_000
        assert await harness.do(rq.ListWorkers(stale_ms=20_000)) == []


@pytest.mark.parametrize("mode", [UniqueMode.THROTTLE, UniqueMode.UNTIL_DONE])
async def test_a_unique_key_keeps_the_time_that_it_had_left(harness: Harness, mode: UniqueMode) -> None:
    with Machine(harness) as machine:
        options = StoredOptions(unique=StoredUnique(key="k", mode=mode, ttl_ms=10_000))
        machine.ahead_ms = HOUR_MS
        await harness.add("a", options=options)
        await machine.was_ahead()
        assert (await harness.add("b", options=options)).outcome is AddOutcome.DUPLICATE
        machine.passed_ms += 10_000
        assert (await harness.add("c", options=options)).outcome is AddOutcome.QUEUED


async def test_a_unique_key_that_only_its_job_ends_stays_as_it_is(harness: Harness) -> None:
    options = StoredOptions(unique=StoredUnique(key="k", mode=UniqueMode.UNTIL_DONE))
    with Machine(harness) as machine:
        machine.ahead_ms = HOUR_MS
        await harness.add("a", options=options)
        before = await harness.do(lrq.GetUniqueKey(queue=QUEUE, key="k"))
        await machine.was_ahead()
        assert await harness.do(lrq.GetUniqueKey(queue=QUEUE, key="k")) == before
        await harness.settle(await harness.take(), Outcome.COMPLETE)
        assert (await harness.add("b", options=options)).outcome is AddOutcome.QUEUED


async def test_an_add_that_replaced_a_job_answers_as_before_when_it_is_repeated(harness: Harness) -> None:
    """The repeated answer also names the options that the job did not take."""
    options = StoredOptions(unique=StoredUnique(key="k", mode=UniqueMode.KEEP_LAST, ttl_ms=60_000))
    with Machine(harness) as machine:
        machine.ahead_ms = HOUR_MS
        await harness.add("child")
        await harness.add("a", options=options)
        wanted: dict[str, Any] = {
            "options": options,
            "request_id": "r",
            "depends_on": [Dependency(QUEUE, "child")],
        }
        first = await harness.add("b", **wanted)
        assert (first.outcome, first.not_taken) == (AddOutcome.REPLACED, ("depends_on",))
        await machine.was_ahead()
        second = await harness.add("b", **wanted)
        assert (second.outcome, second.not_taken) == (AddOutcome.REPLACED, ("depends_on",))


async def test_events_and_history_are_read_on_by_their_numbers(harness: Harness) -> None:
    with Machine(harness) as machine:
        machine.ahead_ms = HOUR_MS
        await harness.finish("a")
        at = await harness.mark()
        await machine.was_ahead()
        await harness.finish("b")
        events = await harness.events(after=at)
        assert {event.job_id for event in events} <= {"", "b"}
        assert [event.id for event in events] == [at + n for n in range(1, len(events) + 1)]
        page = await harness.do(rq.ReadHistory(queue=QUEUE, after=1))
        assert [record.job_id for record in page.records] == ["b"]
        await harness.do(rq.Prune())
        assert len(await harness.history()) == 2
