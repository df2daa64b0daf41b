"""Options that a job leaves open: they are stored as such, and filled in by the worker's settlement."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import JobRef
from windlass.core.option_values import GRACE_MS, Keep
from windlass.core.options import ALL_UNSAID, StoredOptions
from windlass.core.outcome import AddOutcome, Filled, Outcome, Settled
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, START_MS, Harness, settlement

UNSAID = StoredOptions(unsaid=ALL_UNSAID)


def fill(**fields: object) -> Filled:
    return Filled(**fields)  # type: ignore[arg-type] # a test may name any field


@pytest.mark.feature("A38")
async def test_what_a_job_does_not_say_is_stored_as_unsaid(harness: Harness) -> None:
    await harness.add("a", options=UNSAID)
    await harness.add("b", options=StoredOptions(max_attempts=7, unsaid=2))
    await harness.add("c")
    assert [(await harness.get(job_id)).options.unsaid for job_id in "abc"] == [ALL_UNSAID, 2, 0]
    claimed = await harness.claim(3)
    assert [job.options for job in claimed] == [
        UNSAID,
        StoredOptions(max_attempts=7, unsaid=2),
        StoredOptions(),
    ]


@pytest.mark.feature("A38", "E5")
async def test_a_settlement_says_how_long_a_result_is_kept_that_the_job_left_unsaid(harness: Harness) -> None:
    job = await harness.start("a", options=UNSAID)
    filled = fill(result_ttl_ms=5_000)
    assert await harness.settle(job, Outcome.COMPLETE, result=b"1", filled=filled) is Settled.OK
    found = await harness.get("a")
    assert (found.result_until_ms, found.options.result_ttl_ms) == (START_MS + 5_000, 5_000)
    assert (found.options.unsaid, found.result) == (ALL_UNSAID, b"1")


@pytest.mark.feature("A38", "A13")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL])
async def test_a_settlement_says_how_long_a_record_is_kept_that_the_job_left_unsaid(
    harness: Harness, outcome: Outcome
) -> None:
    filled = fill(keep_completed=Keep(GRACE_MS * 2, None), keep_failed=Keep(GRACE_MS * 2, None))
    await harness.settle(await harness.start("a", options=UNSAID), outcome, filled=filled)
    await harness.settle(await harness.start("b", options=UNSAID), outcome)
    assert (await harness.get("a")).options.keep_completed == Keep(GRACE_MS * 2, None)
    harness.pass_ms(GRACE_MS * 2)
    assert (await harness.do(rq.Prune())).jobs == 1
    assert await harness.find("a") is None
    assert await harness.find("b") is not None


@pytest.mark.feature("A38", "A13")
async def test_a_settlement_may_say_that_nothing_is_kept(harness: Harness) -> None:
    job = await harness.start("a", options=UNSAID, request_id="r1")
    filled = fill(result_ttl_ms=0, keep_completed=Keep(0, 0))
    await harness.settle(job, Outcome.COMPLETE, result=b"1", filled=filled)
    assert await harness.counts() == {}
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.ALREADY
    again = await harness.add("a", options=UNSAID, request_id="r1")
    assert (again.outcome, again.state) == (AddOutcome.QUEUED, JobState.COMPLETED)
    (waiter,) = await harness.do(rq.GetJobs(refs=[JobRef(QUEUE, "a")], late=True))
    assert waiter is not None
    assert waiter.result == b"1"


@pytest.mark.feature("A38")
async def test_settlements_of_one_batch_fill_each_its_own_job(harness: Harness) -> None:
    await harness.add_many("a", "b", "c", "d", options=UNSAID)
    jobs = await harness.claim(4)
    ends = [
        settlement(
            job, Outcome.COMPLETE, result=b"1", filled=fill(result_ttl_ms=9) if job.id in "bd" else None
        )
        for job in jobs
    ]
    assert set((await harness.do(rq.Settle(items=ends))).items) == {Settled.OK}
    kept = [(await harness.get(job_id)).options.result_ttl_ms for job_id in "abcd"]
    assert kept == [None, 9, None, 9]


@pytest.mark.feature("A38", "A25")
async def test_what_was_filled_stays_unsaid_for_the_next_worker(harness: Harness) -> None:
    job = await harness.start("a", options=UNSAID)
    await harness.settle(job, Outcome.RETRY, filled=fill(result_ttl_ms=5_000))
    job = await harness.take()
    assert (job.options.result_ttl_ms, job.options.unsaid) == (5_000, ALL_UNSAID)
    await harness.settle(job, Outcome.COMPLETE, filled=fill(result_ttl_ms=7_000))
    assert (await harness.get("a")).options.result_ttl_ms == 7_000
