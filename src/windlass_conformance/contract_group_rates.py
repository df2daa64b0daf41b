"""How often jobs of a group start: rates and token buckets."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import EventType
from windlass.core.limit_rules import Bucket, Rate
from windlass.core.outcome import AddOutcome, Outcome
from windlass.core.states import JobState
from windlass_conformance.group_support import A, P, W, add, claimed, limit, settle, states
from windlass_conformance.harness import START_MS, Harness

NEEDS = "groups"


# --- rate -----------------------------------------------------------------------------------------


@pytest.mark.feature("H7")
async def test_a_group_starts_no_more_in_any_window_than_its_rate(harness: Harness) -> None:
    await limit(harness, rate=Rate(2, 1_000))
    await add(harness, "a", "b", "c", "d", "e")
    assert await states(harness, "a", "b", "c") == [W, W, P]
    assert (await claimed(harness, 1))[0] == ["a"]
    harness.pass_ms(300)
    assert await claimed(harness) == (["b"], 700)
    harness.pass_ms(699)
    assert await claimed(harness) == ([], 1)
    harness.pass_ms(1)
    assert await claimed(harness) == (["c"], 300)
    harness.pass_ms(300)
    assert await claimed(harness) == (["d"], 700)


@pytest.mark.feature("H7")
async def test_only_as_many_are_let_in_as_the_window_has_room_for(harness: Harness) -> None:
    await limit(harness, rate=Rate(2, 1_000))
    await add(harness, *(f"j{n}" for n in range(6)))
    await claimed(harness)
    harness.pass_ms(5_000)
    promoted = await harness.do(rq.Promote())
    assert promoted == rq.Promoted(2, None)
    assert await harness.counts() == {A: 2, W: 2, P: 2}


@pytest.mark.feature("H7")
async def test_the_window_counts_starts_not_jobs(harness: Harness) -> None:
    await limit(harness, rate=Rate(2, 1_000))
    await add(harness, "a", "b")
    await settle(harness, await harness.take(), Outcome.RELEASE)
    await settle(harness, await harness.take(), Outcome.RELEASE)
    assert await claimed(harness) == ([], 1_000)
    assert await states(harness, "a", "b") == [P, P]
    harness.pass_ms(1_000)
    assert (await claimed(harness))[0] == ["a", "b"]


@pytest.mark.feature("H7", "H12")
async def test_a_rate_per_task_is_a_group_named_after_the_task(harness: Harness) -> None:
    await limit(harness, "report", rate=Rate(1, 60_000))
    await add(harness, "r1", "r2", group="report", task="report")
    await add(harness, "s1", "s2", group="send", task="send")
    ids, next_in = await claimed(harness)
    assert (sorted(ids), next_in) == (["r1", "s1", "s2"], 60_000)


# --- token bucket -----------------------------------------------------------------------------------


@pytest.mark.feature("H8")
async def test_a_bucket_gives_capacity_at_once_and_then_what_flows_in(harness: Harness) -> None:
    await limit(harness, bucket=Bucket(5, 2))
    await add(harness, "a", "b", cost=2)
    await add(harness, "c", "d", cost=3)
    assert await states(harness, "a", "b", "c") == [W, W, P]
    assert await claimed(harness) == (["a", "b"], 1_000)  # 1 of 5 is left, 2 more are missing
    harness.pass_ms(999)
    assert await claimed(harness) == ([], 1)
    harness.pass_ms(1)
    assert await claimed(harness) == (["c"], 1_500)


@pytest.mark.feature("H8")
async def test_a_bucket_never_holds_more_than_its_capacity(harness: Harness) -> None:
    await limit(harness, bucket=Bucket(3, 10))
    await add(harness, *(f"j{n}" for n in range(9)))
    assert len((await claimed(harness))[0]) == 3
    harness.pass_ms(100_000)
    assert len((await claimed(harness))[0]) == 3


@pytest.mark.feature("H8")
async def test_fractions_of_tokens_are_not_lost(harness: Harness) -> None:
    await limit(harness, bucket=Bucket(1, 0.3))
    await add(harness, *(f"j{n}" for n in range(4)))
    times: list[int] = []
    while len(times) < 4:
        ids, next_in = await claimed(harness)
        times += [harness.now_ms - START_MS for _ in ids]
        harness.pass_ms(next_in or 0)
    assert times == [0, 3_334, 6_668, 10_002]


@pytest.mark.feature("H8")
async def test_a_job_that_costs_more_than_the_bucket_holds_fails(harness: Harness) -> None:
    await limit(harness, bucket=Bucket(3, 1))
    (answer,) = await add(harness, "dear", cost=4)
    assert (answer.outcome, answer.state) == (AddOutcome.QUEUED, JobState.FAILED)
    job = await harness.get("dear")
    assert (job.state, job.reason) == (JobState.FAILED, "cost_exceeds_capacity")
    (row,) = await harness.history()
    assert (row.attempt, row.outcome, row.error_class) == (0, "failed", "CostExceedsCapacity")
    assert (await harness.last_event()).type is EventType.FAILED


@pytest.mark.feature("H8")
async def test_a_smaller_bucket_ends_what_can_never_start(harness: Harness) -> None:
    await limit(harness, bucket=Bucket(5, 1))
    await add(harness, "waits", "parked", cost=4)
    await add(harness, "small")
    await limit(harness, bucket=Bucket(3, 1))
    assert await states(harness, "waits", "parked", "small") == [W, JobState.FAILED, P]
    assert (await claimed(harness))[0] == ["small"]
    assert (await harness.get("waits")).reason == "cost_exceeds_capacity"
