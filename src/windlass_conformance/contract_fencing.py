"""Only the holder of the newest lease may end an attempt."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import ErrorInfo, JobRecord
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settled
from windlass.core.states import JobState
from windlass_conformance.harness import LEASE_MS, Harness, settlement

ENDS = list(Outcome)
ERROR = ErrorInfo(error_class="ValueError", message="bad 7", traceback="line 1\nline 2", fingerprint="f00")


@pytest.mark.feature("J24")
@pytest.mark.parametrize("outcome", ENDS)
async def test_a_token_that_never_was_changes_nothing(harness: Harness, outcome: Outcome) -> None:
    job = await harness.start("a")
    before, mark = await harness.get("a"), await harness.mark()
    assert await harness.settle(job, outcome, token="never.0", error=ERROR, result=b"1") is Settled.LOST
    assert await harness.get("a") == before
    assert (await harness.mark(), await harness.history()) == (mark, [])


@pytest.mark.feature("J24", "J3")
@pytest.mark.parametrize("outcome", ENDS)
async def test_a_token_from_before_the_recovery_changes_nothing(harness: Harness, outcome: Outcome) -> None:
    late = await harness.start("a")
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())
    await harness.take(worker="w2")
    before, mark, history = await harness.get("a"), await harness.mark(), await harness.history()
    assert await harness.settle(late, outcome, error=ERROR, result=b"1", delay_ms=5) is Settled.LOST
    assert await harness.get("a") == before
    assert (await harness.mark(), await harness.history()) == (mark, history)


@pytest.mark.feature("J24", "J3")
async def test_a_recovered_job_that_still_waits_is_lost_to_its_late_worker(harness: Harness) -> None:
    late = await harness.start("a")
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())
    before = await harness.get("a")
    assert await harness.settle(late, Outcome.COMPLETE) is Settled.LOST
    assert await harness.get("a") == before


@pytest.mark.feature("J24", "C18")
async def test_a_job_that_failed_as_stalled_is_lost_to_its_late_worker(harness: Harness) -> None:
    late = await harness.start("a", options=StoredOptions(max_stalls=0))
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())
    before = await harness.get("a")
    assert await harness.settle(late, Outcome.COMPLETE, result=b"1") is Settled.LOST
    assert await harness.get("a") == before


@pytest.mark.feature("J24")
async def test_an_expired_lease_that_nobody_took_back_may_still_settle(harness: Harness) -> None:
    job = await harness.start("a")
    harness.pass_ms(10 * LEASE_MS)
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.OK


@pytest.mark.feature("J24")
async def test_the_token_of_one_job_does_not_settle_another(harness: Harness) -> None:
    await harness.add_many("a", "b")
    a, b = await harness.claim(2)
    assert await harness.settle(b, Outcome.COMPLETE, token=a.token) is Settled.LOST
    assert await harness.counts() == {JobState.ACTIVE: 2}


@pytest.mark.feature("J24")
async def test_a_job_that_waits_cannot_be_settled(harness: Harness) -> None:
    await harness.add("a")
    before = await harness.get("a")
    end = rq.Settle(items=[settlement(_pretend(before), Outcome.COMPLETE)])
    assert (await harness.do(end)).items == [Settled.LOST]
    assert await harness.get("a") == before


def _pretend(job: JobRecord) -> JobRecord:
    """``job`` with a token that it never had."""
    return JobRecord(queue=job.queue, id=job.id, task=job.task, payload=b"", token="made-up")


@pytest.mark.feature("J24")
async def test_a_removed_job_answers_gone(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.do(rq.RemoveJobs(refs=[job.ref], force=True))
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.GONE
    assert await harness.find("a") is None


@pytest.mark.feature("J24")
async def test_an_older_settled_token_is_lost_once_a_newer_one_settled(harness: Harness) -> None:
    first = await harness.start("a")
    await harness.settle(first, Outcome.RETRY)
    second = await harness.take()
    await harness.settle(second, Outcome.COMPLETE)
    before = await harness.get("a")
    assert await harness.settle(first, Outcome.FAIL) is Settled.LOST
    assert await harness.settle(second, Outcome.FAIL) is Settled.ALREADY
    assert await harness.get("a") == before
