"""Limits of whole queues: concurrency, rate, holds. See ``core.limit_rules``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.limit_rules import NO_GROUP_LIMITS, QueueLimits, Rate
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, START_MS, Harness, settlement

if TYPE_CHECKING:
    from windlass.core.job import JobRecord

NEEDS = "limits"


async def limit(harness: Harness, **limits: Any) -> None:
    """Set limits of the queue."""
    await harness.do(lrq.SetQueueLimits(queue=QUEUE, fields=list(limits), **limits))


async def claimed(harness: Harness, count: int = 100) -> tuple[list[str], int | None]:
    """Claim all jobs that may start; return their ids, and when to claim again."""
    answer = await harness.do(harness.claim_request(limit=count))
    return [job.id for job in answer.jobs], answer.next_due_in_ms


@pytest.mark.feature("H2", "H4")
async def test_limits_of_a_queue_are_kept_until_they_are_changed(harness: Harness) -> None:
    await limit(harness, concurrency=3)
    await limit(harness, rate=Rate(5, 1_000))
    found = await harness.do(lrq.GetLimits(queue=QUEUE))
    assert found == lrq.Limits(
        queue=QueueLimits(concurrency=3, rate=Rate(5, 1_000)),
        hold_until_ms=0,
        every_group=NO_GROUP_LIMITS,
        groups={},
    )
    await limit(harness, concurrency=None)
    assert (await harness.do(lrq.GetLimits(queue=QUEUE))).queue == QueueLimits(rate=Rate(5, 1_000))


async def test_a_queue_without_limits_says_so_and_stays_unknown(harness: Harness) -> None:
    found = await harness.do(lrq.GetLimits(queue="nowhere"))
    assert (found.queue, found.hold_until_ms) == (QueueLimits(), 0)
    assert await harness.do(rq.ListQueues()) == []


@pytest.mark.feature("H2")
async def test_no_more_jobs_run_at_once_than_the_queue_allows(harness: Harness) -> None:
    await limit(harness, concurrency=2)
    await harness.add_many("a", "b", "c", "d")
    jobs = await harness.claim(10)
    assert [job.id for job in jobs] == ["a", "b"]
    assert await claimed(harness) == ([], None)
    assert await harness.counts() == {JobState.ACTIVE: 2, JobState.WAITING: 2}
    await harness.settle(jobs[0], Outcome.COMPLETE)
    assert (await claimed(harness))[0] == ["c"]


@pytest.mark.feature("H2")
async def test_a_settlement_makes_room_for_the_claim_that_comes_with_it(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await harness.add_many("a", "b")
    job = await harness.take()
    end = settlement(job, Outcome.COMPLETE)
    result = await harness.do(rq.Settle(items=[end], claim=harness.claim_request(limit=5)))
    assert result.claimed is not None
    assert [job.id for job in result.claimed.jobs] == ["b"]


@pytest.mark.feature("H2")
async def test_every_end_of_an_attempt_makes_room(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    ends = (Outcome.COMPLETE, Outcome.FAIL, Outcome.RETRY, Outcome.SNOOZE, Outcome.RELEASE, Outcome.CANCEL)
    for number, outcome in enumerate(ends):
        await harness.add(f"j{number}", priority=5)
        job = await harness.take()
        assert (await claimed(harness))[0] == []
        await harness.settle(job, outcome, delay_ms=1_000_000)
    await harness.add("stalls", priority=5)
    await harness.take()
    harness.pass_ms(31_000)
    await harness.do(rq.Recover())
    await harness.do(rq.RemoveJobs(refs=[(await harness.get("stalls")).ref]))
    await harness.add("next", priority=5)
    job = await harness.take()
    await harness.do(rq.RemoveJobs(refs=[job.ref], force=True))
    await harness.add("last", priority=5)
    assert (await claimed(harness))[0] == ["last"]


@pytest.mark.feature("H2")
async def test_a_lower_limit_waits_until_enough_have_ended(harness: Harness) -> None:
    await harness.add_many("a", "b", "c", "d")
    jobs = await harness.claim(3)
    await limit(harness, concurrency=2)
    await harness.settle(jobs[0], Outcome.COMPLETE)
    assert await claimed(harness) == ([], None)
    await harness.settle(jobs[1], Outcome.COMPLETE)
    assert (await claimed(harness))[0] == ["d"]


@pytest.mark.feature("H3", "H4")
async def test_no_more_start_in_any_window_than_the_rate_allows(harness: Harness) -> None:
    await limit(harness, rate=Rate(3, 1_000))
    await harness.add_many(*(f"j{n}" for n in range(9)))
    assert await claimed(harness, 2) == (["j0", "j1"], None)
    harness.pass_ms(400)
    assert await claimed(harness) == (["j2"], 600)
    harness.pass_ms(599)
    assert await claimed(harness) == ([], 1)
    harness.pass_ms(1)
    assert await claimed(harness) == (["j3", "j4"], 400)
    harness.pass_ms(400)
    assert await claimed(harness) == (["j5"], 600)


@pytest.mark.feature("H3")
async def test_a_start_counts_whatever_becomes_of_it(harness: Harness) -> None:
    await limit(harness, rate=Rate(1, 1_000))
    await harness.add_many("a", "b")
    job = await harness.take()
    await harness.settle(job, Outcome.RELEASE)
    harness.pass_ms(999)
    assert await claimed(harness) == ([], 1)
    harness.pass_ms(1)
    assert (await claimed(harness))[0] == ["a"]


@pytest.mark.feature("H3")
async def test_nothing_waits_for_a_window_when_nothing_waits(harness: Harness) -> None:
    await limit(harness, rate=Rate(1, 1_000))
    await harness.add("a")
    assert await claimed(harness) == (["a"], None)


@pytest.mark.feature("H4")
async def test_a_rate_counts_from_when_it_is_set_and_ends_when_it_is_removed(harness: Harness) -> None:
    await harness.add_many("a", "b", "c", "d")
    await harness.take()
    await limit(harness, rate=Rate(1, 60_000))
    assert await claimed(harness) == (["b"], 60_000)
    await limit(harness, rate=None)
    assert (await claimed(harness))[0] == ["c", "d"]


@pytest.mark.feature("H3")
async def test_a_random_walk_of_starts_never_exceeds_the_rate(harness: Harness) -> None:
    """Every window over the recorded starts is checked."""
    await limit(harness, rate=Rate(7, 250))
    await harness.add_many(*(f"j{n}" for n in range(200)))
    jobs: list[JobRecord] = []
    waits = 0
    while len(jobs) < 200:
        answer = await harness.do(harness.claim_request(limit=1 + len(jobs) % 4))
        jobs += answer.jobs
        if answer.next_due_in_ms:
            waits += answer.next_due_in_ms
            harness.pass_ms(answer.next_due_in_ms)
        else:
            harness.pass_ms(len(jobs) % 30)
    starts = [job.started_ms or 0 for job in jobs]
    for first, start in enumerate(starts):
        assert sum(start <= at < start + 250 for at in starts[first:]) <= 7
    assert waits > 0


@pytest.mark.feature("H3", "H2")
async def test_limits_hold_for_shares_and_caps_together(harness: Harness) -> None:
    await limit(harness, concurrency=3)
    await harness.add_many("a", "b", "c", "d")
    request = harness.claim_request(rq.ClaimQueue(QUEUE, 2, 10), limit=10)
    assert len((await harness.do(request)).jobs) == 3


@pytest.mark.feature("H14")
async def test_a_queue_on_hold_starts_nothing_before_its_time(harness: Harness) -> None:
    await harness.add_many("a", "b")
    assert await harness.do(lrq.Hold(queue=QUEUE, ms=500)) == START_MS + 500
    assert await harness.do(lrq.Hold(queue=QUEUE, ms=100)) == START_MS + 500
    assert await claimed(harness) == ([], 500)
    harness.pass_ms(500)
    assert await claimed(harness, 1) == (["a"], None)
    await harness.do(lrq.Hold(queue=QUEUE, ms=500))
    assert await harness.do(lrq.Hold(queue=QUEUE, ms=0)) == 0
    assert (await claimed(harness))[0] == ["b"]


async def test_an_obliterated_queue_forgets_its_limits(harness: Harness) -> None:
    await limit(harness, concurrency=1, rate=Rate(1, 1_000))
    await harness.do(lrq.Hold(queue=QUEUE, ms=500))
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState), forget=True))
    found = await harness.do(lrq.GetLimits(queue=QUEUE))
    assert (found.queue, found.hold_until_ms) == (QueueLimits(), 0)


@pytest.mark.feature("H3")
async def test_starts_count_after_reopening(harness: Harness) -> None:
    await limit(harness, rate=Rate(2, 1_000))
    await harness.add_many("a", "b", "c", "d")
    for name in ("a", "b"):
        assert [job.id for job in await harness.claim()] == [name]
        harness.pass_ms(500)
        await harness.reopen()
    assert await claimed(harness) == (["c"], 500)  # a start of 1,000 ms ago counts no more
