"""``lifo``: a job goes exactly to the front of its priority."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import Harness

NEEDS = "lifo"
LIFO = StoredOptions(lifo=True)


async def order(harness: Harness, count: int) -> list[str]:
    """Claim the next jobs one by one; return their ids."""
    return [(await harness.claim())[0].id for _ in range(count)]


@pytest.mark.feature("A36")
async def test_the_newest_lifo_job_is_first_within_its_priority(harness: Harness) -> None:
    await harness.add("plain 1")
    await harness.add("lifo 1", options=LIFO)
    await harness.add("plain 2")
    await harness.add_many("lifo 2", "lifo 3", options=LIFO)
    await harness.add("urgent", priority=5)
    await harness.add("urgent lifo", priority=5, options=LIFO)
    await harness.add("low lifo", priority=-5, options=LIFO)
    assert await order(harness, 8) == [
        "urgent lifo",
        "urgent",
        "lifo 3",
        "lifo 2",
        "lifo 1",
        "plain 1",
        "plain 2",
        "low lifo",
    ]


@pytest.mark.feature("A36")
async def test_a_lifo_job_that_becomes_ready_later_goes_to_the_front_then(harness: Harness) -> None:
    await harness.add("delayed lifo", options=LIFO, delay_ms=5_000)
    await harness.add("delayed plain", delay_ms=5_000)
    await harness.add("lifo", options=LIFO)
    await harness.add("plain")
    harness.pass_ms(5_000)
    assert await order(harness, 4) == ["delayed lifo", "lifo", "plain", "delayed plain"]


@pytest.mark.feature("A36")
async def test_a_lifo_job_that_is_retried_goes_to_the_front_and_a_released_one_to_its_place(
    harness: Harness,
) -> None:
    await harness.add("first", options=LIFO)
    released = (await harness.claim())[0]
    await harness.add("second", options=LIFO)
    await harness.settle(released, Outcome.RELEASE)
    assert await order(harness, 1) == ["second"], "a released job keeps its old place"
    first = (await harness.claim())[0]
    assert first.id == "first"
    await harness.add("third", options=LIFO)
    await harness.settle(first, Outcome.RETRY)
    assert await order(harness, 2) == ["first", "third"], "a retried one gets a new place"


@pytest.mark.feature("A36")
async def test_listings_follow_the_order_of_adding_not_of_places(harness: Harness) -> None:
    await harness.add("a")
    await harness.add("b", options=LIFO)
    await harness.add("c")
    page = await harness.do(rq.ListJobs(queue="mail", states=[JobState.WAITING], newest_first=False))
    assert [job.id for job in page.jobs] == ["a", "b", "c"]
