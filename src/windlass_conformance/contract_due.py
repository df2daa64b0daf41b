"""``Promote``: scheduled and retrying jobs become waiting when they are due, no matter which worker asks."""

from __future__ import annotations

import asyncio

import pytest

from windlass.backend import requests as rq
from windlass.core.job import EventType, JobRef
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, START_MS, Harness


@pytest.mark.feature("B1", "B3", "B5")
async def test_promote_makes_due_jobs_waiting_and_leaves_the_others(harness: Harness) -> None:
    await harness.add("now", delay_ms=100)
    await harness.add("later", delay_ms=101)
    harness.pass_ms(100)
    assert await harness.do(rq.Promote()) == rq.Promoted(1, 1)
    assert await harness.state("now") is JobState.WAITING
    assert await harness.state("later") is JobState.SCHEDULED


@pytest.mark.feature("B1", "C6")
async def test_promote_wakes_retrying_jobs_too(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RETRY, delay_ms=100)
    harness.pass_ms(100)
    assert (await harness.do(rq.Promote())).count == 1
    promoted = await harness.get("a")
    assert (promoted.state, promoted.due_ms, promoted.attempts) == (JobState.WAITING, None, 1)


@pytest.mark.feature("B1")
async def test_promote_covers_all_queues_earliest_first_up_to_its_limit(harness: Harness) -> None:
    await harness.add("late", "x", delay_ms=300)
    await harness.add("early", "y", delay_ms=100)
    await harness.add("middle", "z", delay_ms=200)
    harness.pass_ms(1_000)
    assert await harness.do(rq.Promote(limit=2)) == rq.Promoted(2, 0)
    assert await harness.state("early", "y") is JobState.WAITING
    assert await harness.state("middle", "z") is JobState.WAITING
    assert await harness.state("late", "x") is JobState.SCHEDULED


@pytest.mark.feature("B1")
async def test_promoted_jobs_line_up_in_order_of_their_due_time(harness: Harness) -> None:
    for job_id, delay_ms in [("c", 30), ("a", 10), ("b", 20), ("d", 30)]:
        await harness.add(job_id, delay_ms=delay_ms)
    harness.pass_ms(100)
    await harness.do(rq.Promote())
    assert await harness.order() == ["a", "b", "c", "d"]


@pytest.mark.feature("B1")
async def test_promotions_at_the_same_time_keep_the_order_of_what_they_release(harness: Harness) -> None:
    await harness.add_many("a", "b", "c", "d", queue="new", delay_ms=100)
    harness.pass_ms(100)
    await asyncio.gather(*(harness.do(rq.Promote(limit=1)) for _ in range(4)))
    assert await harness.order("new") == ["a", "b", "c", "d"]


@pytest.mark.feature("B1")
async def test_the_wait_of_a_promoted_job_counts_from_its_due_time(harness: Harness) -> None:
    await harness.add("a", delay_ms=100)
    harness.pass_ms(1_000)
    await harness.do(rq.Promote())
    assert (await harness.get("a")).ready_ms == START_MS + 100


@pytest.mark.feature("B1")
async def test_promoting_with_nothing_due_changes_nothing(harness: Harness) -> None:
    await harness.add("a", delay_ms=500)
    before = await harness.get("a")
    harness.pass_ms(100)
    assert await harness.do(rq.Promote()) == rq.Promoted(0, 400)
    assert await harness.get("a") == before


@pytest.mark.feature("B1")
async def test_promote_on_an_empty_store_has_no_next_due_time(harness: Harness) -> None:
    assert await harness.do(rq.Promote()) == rq.Promoted(0, None)


@pytest.mark.feature("B1")
async def test_each_promotion_writes_one_event(harness: Harness) -> None:
    await harness.add("a", delay_ms=10)
    harness.pass_ms(10)
    await harness.do(rq.Promote())
    await harness.do(rq.Promote())
    types = [event.type for event in await harness.events()]
    assert types == [EventType.SCHEDULED, EventType.PROMOTED]


@pytest.mark.feature("B1", "H10")
async def test_due_jobs_of_a_paused_queue_are_promoted_but_not_given_out(harness: Harness) -> None:
    await harness.add("a", delay_ms=10)
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    harness.pass_ms(10)
    await harness.do(rq.Promote())
    assert await harness.state("a") is JobState.WAITING
    assert await harness.claim() == []


@pytest.mark.feature("B15")
async def test_a_snoozed_job_comes_back_when_its_time_is_over(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.SNOOZE, delay_ms=50)
    harness.pass_ms(49)
    assert await harness.claim() == []
    harness.pass_ms(1)
    again = await harness.take()
    assert (again.attempts, again.deliveries) == (0, 2)


@pytest.mark.feature("B1")
async def test_a_thousand_due_jobs_are_promoted_unless_a_limit_is_given(harness: Harness) -> None:
    await harness.add_many(*(f"j{n}" for n in range(1_010)), delay_ms=1)
    harness.pass_ms(1)
    assert await harness.do(rq.Promote()) == rq.Promoted(1_000, 0)
    assert await harness.do(rq.Promote()) == rq.Promoted(10, None)


@pytest.mark.feature("B1", "B3")
async def test_promoting_none_only_tells_when_the_next_job_is_due(harness: Harness) -> None:
    await harness.add("a", delay_ms=5)
    harness.pass_ms(2)
    assert await harness.do(rq.Promote(limit=0)) == rq.Promoted(0, 3)
    harness.pass_ms(10)
    assert await harness.do(rq.Promote(limit=0)) == rq.Promoted(0, 0)
    assert await harness.state("a") is JobState.SCHEDULED


@pytest.mark.feature("B6")
async def test_a_job_hurried_by_hand_is_not_promoted_again(harness: Harness) -> None:
    await harness.add("a", delay_ms=100)
    await harness.do(rq.ChangeJob(ref=JobRef(QUEUE, "a"), delay_ms=0))
    harness.pass_ms(100)
    assert (await harness.do(rq.Promote())).count == 0
