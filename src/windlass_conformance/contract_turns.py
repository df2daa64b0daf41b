"""Fair turns between groups: no group can delay the others beyond an equal share of its queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from windlass.backend import requests as rq
from windlass.core.edges import Dependency, OnFailure
from windlass.core.job import JobRef
from windlass.core.limit_rules import GroupLimits, Rate
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome
from windlass_conformance.fairness import check_fairness
from windlass_conformance.harness import QUEUE, Harness, settlement
from windlass_conformance.needs import needs

NEEDS = "groups"


async def add(harness: Harness, group: str | None, *ids: str, priority: int = 0) -> None:
    options = StoredOptions(group=group, max_stalls=9)
    await harness.add_many(*ids, options=options, priority=priority)


@pytest.mark.feature("H13")
async def test_groups_take_turns(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(4)))
    await add(harness, "one", "one0", "one1")
    await add(harness, "two", "two0")
    assert await harness.order() == ["big0", "one0", "two0", "big1", "one1", "big2", "big3"]


@pytest.mark.feature("H13")
async def test_a_group_that_comes_late_begins_at_the_turn_that_is_served(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(10)))
    await harness.claim(5)
    await add(harness, "late", "late0", "late1")
    assert await harness.order() == ["big5", "late0", "big6", "late1", "big7", "big8", "big9"]


@pytest.mark.feature("H13")
async def test_a_group_that_was_idle_has_saved_up_nothing(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(6)))
    for n in range(3):
        await add(harness, "small", f"small{n}")
        assert [job.id for job in await harness.claim(2)] == [f"big{n}", f"small{n}"]


@pytest.mark.feature("H13")
async def test_jobs_without_a_group_are_one_group(harness: Harness) -> None:
    await add(harness, "g", "g0", "g1", "g2")
    await add(harness, None, "plain0", "plain1")
    assert await harness.order() == ["g0", "plain0", "g1", "plain1", "g2"]


@pytest.mark.feature("H13", "A9")
async def test_priority_comes_before_turns_and_has_turns_of_its_own(harness: Harness) -> None:
    await add(harness, "big", *(f"low{n}" for n in range(3)))
    await add(harness, "big", *(f"high{n}" for n in range(3)), priority=1)
    await add(harness, "small", "other-high", priority=1)
    await add(harness, "small", "other-low")
    assert await harness.order() == [
        "high0",
        "other-high",
        "high1",
        "high2",
        "low0",
        "other-low",
        "low1",
        "low2",
    ]


@pytest.mark.feature("H13", "J12")
async def test_released_and_recovered_jobs_keep_their_turn(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(3)))
    await add(harness, "small", "small0")
    first = await harness.take()
    await harness.settle(first, Outcome.RELEASE)
    assert (await harness.take()).id == "big0"
    harness.pass_ms(60_000)
    await harness.do(rq.Recover())
    assert await harness.order() == ["big0", "small0", "big1", "big2"]


@pytest.mark.feature("H13")
async def test_a_retried_job_takes_the_next_turn_of_its_group(harness: Harness) -> None:
    await add(harness, "big", "big0", "big1")
    await add(harness, "small", "small0", "small1", "small2")
    job = await harness.take()
    await harness.settle(job, Outcome.RETRY)
    assert await harness.order() == ["small0", "big1", "small1", "small2", "big0"]


@pytest.mark.feature("H13")
async def test_cancelled_jobs_leave_no_empty_turns(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(5)))
    await add(harness, "small", "small0")
    refs = [(await harness.get(f"big{n}")).ref for n in range(5)]
    await harness.do(rq.CancelJobs(refs=refs))
    await add(harness, "big", "again")
    assert await harness.order() == ["small0", "again"]


async def add_followers(harness: Harness, queue: str = QUEUE) -> None:
    """Add two jobs that wait for ``child`` and ignore its failure: one with a group, one without."""
    wait = [Dependency(queue, "child", OnFailure.IGNORE)]
    grouped = harness.new("grouped", options=StoredOptions(group="g"), depends_on=wait)
    await harness.do(rq.Add(jobs=[grouped, harness.new("plain", depends_on=wait)]))


@pytest.mark.feature("H13")
@pytest.mark.parametrize("end", [rq.RemoveJobs, rq.CancelJobs])
async def test_a_job_that_goes_takes_no_turn_from_those_who_waited_for_it(
    harness: Harness, end: Callable[..., rq.Request[Any]]
) -> None:
    await harness.add("child")
    await add_followers(harness)
    await harness.do(end(refs=[JobRef(QUEUE, "child")]))
    await add(harness, "h", "last")
    assert await harness.order() == ["grouped", "plain", "last"]


@pytest.mark.feature("H13")
@pytest.mark.parametrize("end", [rq.RemoveJobs, rq.CancelJobs])
async def test_a_job_that_goes_from_another_queue_leaves_the_turn_of_its_namesake_alone(
    harness: Harness, end: Callable[..., rq.Request[Any]]
) -> None:
    await harness.add("child")
    await harness.add("child", "other")
    await add_followers(harness, "other")
    await harness.do(end(refs=[JobRef("other", "child")]))
    await add(harness, "h", "last")
    assert await harness.order() == ["child", "grouped", "last", "plain"]


@pytest.mark.feature("H13")
async def test_a_job_that_is_put_back_has_its_turn_before_those_that_its_step_lets_go(
    harness: Harness,
) -> None:
    await harness.add_many("child", "back")
    await add_followers(harness)
    child, back = await harness.claim(2)
    ends = [settlement(back, Outcome.RELEASE), settlement(child, Outcome.COMPLETE)]
    await harness.do(rq.Settle(items=ends))
    await add(harness, "h", "last")
    assert await harness.order() == ["back", "grouped", "last", "plain"]


@pytest.mark.feature("H13")
async def test_the_turn_of_a_cancelled_job_goes_to_the_next_of_its_group(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(3)))
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "big2")]))
    await add(harness, "big", "again")
    await add(harness, "small", *(f"small{n}" for n in range(3)))
    assert await harness.order() == ["big0", "small0", "big1", "small1", "again", "small2"]


# --- many groups, one of them huge ------------------------------------------------------------------


@pytest.mark.feature("H13")
async def test_one_huge_group_delays_the_others_no_more_than_equal_shares_would(harness: Harness) -> None:
    await check_fairness(harness, 800, 10, None)


@pytest.mark.feature("H6", "H7", "H13")
async def test_one_huge_group_with_limits_keeps_them_and_delays_nobody(harness: Harness) -> None:
    await check_fairness(harness, 400, 10, GroupLimits(concurrency=2, rate=Rate(5, 1_000)))


@pytest.mark.feature("H13")
@needs("unique")
async def test_a_job_that_is_put_in_line_again_follows_those_of_its_group_that_still_wait(
    harness: Harness,
) -> None:
    unique = StoredUnique(key="k", mode=UniqueMode.KEEP_LAST)
    await add(harness, "g", "a", "b")
    await harness.add("c", options=StoredOptions(group="g", unique=unique))
    await add(harness, "h", "h0", "h1")
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "b")]))
    again = await harness.add("d", options=StoredOptions(group="g", unique=unique, lifo=True))
    assert again.outcome is AddOutcome.REPLACED
    assert await harness.order() == ["a", "h0", "c", "h1"]
