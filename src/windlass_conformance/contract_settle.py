"""``Settle``: how attempts end, and what each end does to the job."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import ERRORS_KEPT, ErrorInfo, JobRecord
from windlass.core.option_values import DEFAULT_RESULT_TTL_MS
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settled
from windlass.core.states import JobState
from windlass_conformance.harness import LEASE_MS, START_MS, WORKER, Harness, settlement
from windlass_conformance.needs import needs

ENDS = list(Outcome)
ERROR = ErrorInfo(error_class="ValueError", message="bad 7", traceback="line 1\nline 2", fingerprint="f00")


@pytest.mark.feature("J17", "E7", "L6")
async def test_complete_stores_the_result_and_ends_the_job(harness: Harness) -> None:
    before = await harness.start("a")
    harness.pass_ms(40)
    assert await harness.settle(before, Outcome.COMPLETE, result=b"42", duration_ms=39) is Settled.OK
    now = START_MS + 40
    job = await harness.get("a")
    before.state, before.result, before.finished_ms = JobState.COMPLETED, b"42", now
    before.result_until_ms = now + DEFAULT_RESULT_TTL_MS
    before.settled_token, before.token, before.lease_until_ms = before.token, None, None
    assert job == before


@pytest.mark.feature("E7")
@pytest.mark.parametrize("result", [None, b"", b"null", bytes(range(256)), b"x" * 1_000_000])
async def test_a_result_comes_back_untouched_and_none_is_not_null(
    harness: Harness, result: bytes | None
) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.COMPLETE, result=result)
    assert (await harness.get("a")).result == result


@pytest.mark.feature("E5", "E8", "L4")
async def test_a_result_is_readable_for_its_ttl_and_its_record_outlives_it(harness: Harness) -> None:
    job = await harness.start("a", options=StoredOptions(result_ttl_ms=500))
    await harness.settle(job, Outcome.COMPLETE, result=b"1")
    harness.pass_ms(499)
    assert (await harness.get("a")).result == b"1"
    harness.pass_ms(1)
    gone = await harness.get("a")
    assert (gone.state, gone.result, gone.result_until_ms) == (JobState.COMPLETED, None, START_MS + 500)


@pytest.mark.feature("C1", "C12", "C20", "L4")
async def test_fail_ends_the_job_for_good_and_keeps_the_error(harness: Harness) -> None:
    job = await harness.start("a")
    harness.pass_ms(40)
    assert await harness.settle(job, Outcome.FAIL, error=ERROR, reason="attempts") is Settled.OK
    failed = await harness.get("a")
    assert (failed.state, failed.reason, failed.attempts) == (JobState.FAILED, "attempts", 1)
    assert (failed.finished_ms, failed.token, failed.result) == (START_MS + 40, None, None)
    assert failed.errors == [ErrorInfo(START_MS + 40, 1, "ValueError", "bad 7", "line 1\nline 2", "f00")]


@pytest.mark.feature("C1", "C8")
async def test_a_failed_job_is_not_run_again(harness: Harness) -> None:
    await harness.finish("a", Outcome.FAIL)
    harness.pass_ms(10**9)
    assert await harness.claim() == []


@pytest.mark.feature("C17")
async def test_a_failure_that_is_not_the_handlers_leaves_the_attempts_alone(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.FAIL, uses_attempt=False, reason="unknown_task")
    failed = await harness.get("a")
    assert (failed.attempts, failed.reason) == (0, "unknown_task")


@pytest.mark.feature("C1", "C7", "C20")
async def test_retry_counts_the_attempt_and_waits_out_its_delay(harness: Harness) -> None:
    job = await harness.start("a")
    harness.pass_ms(40)
    assert await harness.settle(job, Outcome.RETRY, delay_ms=500, error=ERROR) is Settled.OK
    retrying = await harness.get("a")
    assert (retrying.state, retrying.attempts) == (JobState.RETRYING, 1)
    assert retrying.due_ms == retrying.ready_ms == START_MS + 540
    assert (retrying.token, retrying.finished_ms) == (None, None)
    assert retrying.errors == [ErrorInfo(START_MS + 40, 1, "ValueError", "bad 7", "line 1\nline 2", "f00")]


@pytest.mark.feature("C1")
async def test_a_retry_becomes_claimable_when_its_delay_is_over(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RETRY, delay_ms=500)
    harness.pass_ms(499)
    assert await harness.claim() == []
    harness.pass_ms(1)
    again = await harness.take()
    assert (again.attempts, again.deliveries) == (1, 2)


@pytest.mark.feature("C1")
@needs("priority")
async def test_an_immediate_retry_goes_to_the_back_of_its_priority(harness: Harness) -> None:
    job = await harness.start("a", priority=1)
    await harness.add("b", priority=1)
    await harness.add("c")
    await harness.settle(job, Outcome.RETRY)
    assert (await harness.get("a")).state is JobState.WAITING
    assert await harness.order() == ["b", "a", "c"]


@pytest.mark.feature("C20")
async def test_every_attempts_error_is_kept_with_its_number(harness: Harness) -> None:
    await harness.add("a")
    for attempt in (1, 2, 3):
        job = await harness.take()
        await harness.settle(job, Outcome.RETRY, error=ErrorInfo(error_class=f"E{attempt}"))
    errors = (await harness.get("a")).errors
    assert [(error.attempt, error.error_class) for error in errors] == [(1, "E1"), (2, "E2"), (3, "E3")]


@pytest.mark.feature("C20")
async def test_only_the_newest_errors_are_kept(harness: Harness) -> None:
    await harness.add("a")
    for _ in range(ERRORS_KEPT + 3):
        await harness.settle(await harness.take(), Outcome.RETRY, error=ERROR)
    errors = (await harness.get("a")).errors
    assert [error.attempt for error in errors] == list(range(4, ERRORS_KEPT + 4))


@pytest.mark.feature("C1")
async def test_a_failure_without_details_still_leaves_an_error(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RETRY)
    assert (await harness.get("a")).errors == [ErrorInfo(START_MS, 1)]


@pytest.mark.feature("B15", "C9")
async def test_snooze_schedules_the_job_and_costs_no_attempt(harness: Harness) -> None:
    job = await harness.start("a")
    assert await harness.settle(job, Outcome.SNOOZE, delay_ms=500) is Settled.OK
    snoozed = await harness.get("a")
    assert (snoozed.state, snoozed.attempts, snoozed.errors) == (JobState.SCHEDULED, 0, [])
    assert snoozed.due_ms == snoozed.ready_ms == START_MS + 500


@pytest.mark.feature("B15", "C9")
async def test_snooze_without_a_delay_goes_to_the_back(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.add("b")
    await harness.settle(job, Outcome.SNOOZE)
    assert await harness.order() == ["b", "a"]


@pytest.mark.feature("V5", "J8", "H9")
async def test_a_released_job_keeps_its_place_in_line_and_its_attempt(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    before = await harness.get("a")
    job = await harness.take()
    harness.pass_ms(40)
    assert await harness.settle(job, Outcome.RELEASE) is Settled.OK
    released = await harness.get("a")
    assert (released.state, released.attempts, released.deliveries) == (JobState.WAITING, 0, 1)
    assert (released.place, released.ready_ms) == (before.place, before.ready_ms)
    assert (released.misses, released.token, released.lease_until_ms) == (0, None, None)
    assert await harness.order() == ["a", "b", "c"]


@pytest.mark.feature("V5", "A9")
@needs("priority")
async def test_a_released_job_keeps_its_priority(harness: Harness) -> None:
    job = await harness.start("a", priority=5)
    await harness.add("b", priority=5)
    await harness.add("c", priority=6)
    await harness.settle(job, Outcome.RELEASE)
    assert await harness.order() == ["c", "a", "b"]


@pytest.mark.feature("C17")
async def test_a_release_with_a_delay_is_scheduled(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RELEASE, delay_ms=5_000, miss=True, reason="unknown_task")
    released = await harness.get("a")
    assert (released.state, released.due_ms) == (JobState.SCHEDULED, START_MS + 5_000)
    assert (released.misses, released.attempts) == (1, 0)


@pytest.mark.feature("V5", "C17")
async def test_a_settlement_that_makes_a_job_wait_may_come_with_a_claim_of_another_queue(
    harness: Harness,
) -> None:
    job = await harness.start("a")
    await harness.add("b", "other")
    claim = harness.claim_request(rq.ClaimQueue("other", 2, 2), limit=2)
    result = await harness.do(
        rq.Settle(items=[settlement(job, Outcome.RELEASE, delay_ms=5_000)], claim=claim)
    )
    assert result.claimed is not None
    assert [claimed.id for claimed in result.claimed.jobs] == ["b"]
    assert result.claimed.next_due_in_ms is None
    assert await harness.state("a") is JobState.SCHEDULED


@pytest.mark.feature("F2", "F5")
async def test_cancel_ends_the_job_as_cancelled_with_its_reason(harness: Harness) -> None:
    job = await harness.start("a")
    harness.pass_ms(5)
    assert await harness.settle(job, Outcome.CANCEL, reason="not needed") is Settled.OK
    cancelled = await harness.get("a")
    assert (cancelled.state, cancelled.reason) == (JobState.CANCELLED, "not needed")
    assert (cancelled.finished_ms, cancelled.attempts, cancelled.errors) == (START_MS + 5, 0, [])


@pytest.mark.feature("J5")
@pytest.mark.parametrize("outcome", ENDS)
async def test_after_any_end_the_lease_is_gone_and_its_token_remembered(
    harness: Harness, outcome: Outcome
) -> None:
    job = await harness.start("a")
    await harness.settle(job, outcome)
    ended = await harness.get("a")
    assert (ended.token, ended.lease_until_ms, ended.settled_token) == (None, None, job.token)
    assert (ended.worker, ended.started_ms) == (WORKER, START_MS)


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.feature("L6", "J4")
async def test_a_batch_of_ends_is_answered_per_item_in_order(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    a, b, c = await harness.claim(3)
    await harness.do(rq.RemoveJobs(refs=[b.ref], force=True))
    stale = settlement(c, Outcome.COMPLETE, token="never.0")
    answer = await harness.do(
        rq.Settle(
            items=[
                settlement(a, Outcome.COMPLETE),
                settlement(b, Outcome.COMPLETE),
                stale,
                settlement(a, Outcome.FAIL),
                settlement(c, Outcome.RETRY),
            ]
        )
    )
    assert answer.items == [Settled.OK, Settled.GONE, Settled.LOST, Settled.ALREADY, Settled.OK]
    assert answer.claimed is None
    assert await harness.state("a") is JobState.COMPLETED
    assert await harness.state("c") is JobState.WAITING


@pytest.mark.feature("L6", "E7")
async def test_a_batch_of_completions_keeps_what_is_said_of_each(harness: Harness) -> None:
    large = b"x" * 5_000
    tags = {"c": StoredOptions(tags=("red",))}
    said = {
        "a": (b"1", 3),
        "b": (b"1", 3),
        "c": (b"1", 3),
        "d": (large, 4),
        "e": (large, 4),
        "f": (None, None),
    }
    tasks = dict(zip(said, ("send", "send", "send", "bill", "send", "send"), strict=True))
    new = [harness.new(name, task=tasks[name], options=tags.get(name, StoredOptions())) for name in said]
    await harness.do(rq.Add(jobs=new))
    jobs, mark = await harness.claim(6), await harness.mark()
    ends = [
        settlement(job, Outcome.COMPLETE, result=said[job.id][0], duration_ms=said[job.id][1]) for job in jobs
    ]
    ends[2:2] = [settlement(jobs[0], Outcome.COMPLETE, result=b"2")]  # it is over already
    ends[5:5] = [settlement(jobs[5], Outcome.COMPLETE, token="never.0", result=b"2")]
    statuses = [Settled.OK] * 8
    statuses[2], statuses[5] = Settled.ALREADY, Settled.LOST
    assert (await harness.do(rq.Settle(items=ends))).items == statuses
    assert {name: (await harness.get(name)).result for name in said} == {k: v[0] for k, v in said.items()}
    assert [(row.job_id, row.duration_ms, row.task) for row in await harness.history()] == [
        (name, duration, tasks[name]) for name, (_, duration) in said.items()
    ]
    assert [(event.job_id, event.task) for event in await harness.events(after=mark)] == list(tasks.items())
    assert (await harness.counts())[JobState.COMPLETED] == 6


@pytest.mark.feature("J4")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL])
async def test_a_settlement_that_comes_twice_in_one_request_counts_once(
    harness: Harness, outcome: Outcome
) -> None:
    await harness.add("a")
    (job,) = await harness.claim(1)
    end = settlement(job, outcome)
    answer = await harness.do(rq.Settle(items=[end, end]))
    assert answer.items == [Settled.OK, Settled.ALREADY]
    history = await harness.do(rq.ReadHistory(queue=job.queue, limit=10))
    assert [record.run_id for record in history.records] == [job.token]


@pytest.mark.feature("J4", "L6")
@needs("priority")
async def test_one_step_settles_and_claims_jobs_of_every_kind(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    held = await harness.claim(3)
    await harness.add_many("d", "e")
    await harness.add("f", task="bill", options=StoredOptions(tags=("red",)))
    await harness.add("g", task="bill")
    await harness.add("first", priority=5)
    await harness.add_many("last", "left", priority=-5)
    ends = [settlement(job, Outcome.COMPLETE) for job in held]
    ends[1] = settlement(held[1], Outcome.FAIL)
    mark = await harness.mark()
    answer = await harness.do(rq.Settle(items=ends, claim=harness.claim_request(limit=6)))
    assert answer.items == [Settled.OK] * 3 and answer.claimed is not None
    jobs = answer.claimed.jobs
    assert [job.id for job in jobs] == ["first", "d", "e", "f", "g", "last"]
    assert len({job.token for job in jobs}) == 6
    noted = [event.job_id for event in await harness.events(after=mark)]
    assert noted == [job.id for job in held + jobs]
    for job in jobs:
        seen = await harness.get(job.id)
        assert (seen.state, seen.token, seen.task) == (JobState.ACTIVE, job.token, job.task)
    done = [settlement(job, Outcome.COMPLETE) for job in jobs]
    assert (await harness.do(rq.Settle(items=done))).items == [Settled.OK] * 6


@pytest.mark.feature("L6")
async def test_a_batch_may_span_queues(harness: Harness) -> None:
    one, two = await harness.start("a", "one"), await harness.start("a", "two")
    items = [settlement(one, Outcome.COMPLETE, result=b"1"), settlement(two, Outcome.FAIL)]
    assert (await harness.do(rq.Settle(items=items))).items == [Settled.OK, Settled.OK]
    assert await harness.state("a", "one") is JobState.COMPLETED
    assert await harness.state("a", "two") is JobState.FAILED


@pytest.mark.feature("J4")
async def test_settling_can_claim_the_next_jobs_in_the_same_step(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    job = await harness.take()
    harness.pass_ms(5)
    answer = await harness.do(
        rq.Settle(items=[settlement(job, Outcome.COMPLETE)], claim=harness.claim_request(limit=1))
    )
    assert answer.items == [Settled.OK]
    assert answer.claimed is not None
    assert [job.id for job in answer.claimed.jobs] == ["b"]
    assert answer.claimed.jobs[0].lease_until_ms == START_MS + 5 + LEASE_MS


@pytest.mark.feature("J4")
async def test_a_job_put_back_can_be_claimed_by_the_same_step(harness: Harness) -> None:
    job = await harness.start("a")
    answer = await harness.do(
        rq.Settle(items=[settlement(job, Outcome.RETRY)], claim=harness.claim_request(limit=1))
    )
    assert answer.claimed is not None
    (again,) = answer.claimed.jobs
    assert (again.id, again.attempts, again.deliveries) == ("a", 1, 2)
    assert again.token != job.token


@pytest.mark.feature("J4")
async def test_the_claim_goes_through_although_every_end_was_lost(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.add("b")
    answer = await harness.do(
        rq.Settle(
            items=[settlement(job, Outcome.COMPLETE, token="stale.0")], claim=harness.claim_request(limit=1)
        )
    )
    assert answer.items == [Settled.LOST]
    assert answer.claimed is not None and [job.id for job in answer.claimed.jobs] == ["b"]


@pytest.mark.feature("J4")
async def test_a_settlement_of_nothing_answers_nothing(harness: Harness) -> None:
    assert await harness.do(rq.Settle(items=[])) == rq.SettleResult([], None)


# --- what is counted ---------------------------------------------------------------------------------


def counters(job: JobRecord) -> dict[str, int]:
    """Every counter of a job."""
    return {
        "attempts": job.attempts,
        "deliveries": job.deliveries,
        "stalls": job.stalls,
        "misses": job.misses,
        "retries": job.manual_retries,
        "errors": len(job.errors),
    }


@pytest.mark.feature("A19")
async def test_each_counter_of_a_job_counts_what_it_says_and_nothing_else(harness: Harness) -> None:
    job = await harness.start("a")
    told = {"attempts": 0, "deliveries": 1, "stalls": 0, "misses": 0, "retries": 0, "errors": 0}
    assert counters(job) == counters(await harness.get("a")) == told

    await harness.settle(job, Outcome.RETRY, error=ERROR)
    job = await harness.take()
    told |= {"attempts": 1, "deliveries": 2, "errors": 1}
    assert counters(job) == told

    harness.pass_ms(LEASE_MS + 1)  # its worker is silent
    await harness.do(rq.Recover(limit=10))
    job = await harness.take()
    told |= {"deliveries": 3, "stalls": 1}
    assert counters(job) | {"errors": 1} == told

    for fields in ({}, {"miss": True}):  # given back: by a stop, and because the task is unknown there
        await harness.settle(job, Outcome.RELEASE, **fields)
        job = await harness.take()
    told |= {"deliveries": 5, "misses": 1}
    assert counters(job) | {"errors": 1} == told

    await harness.settle(job, Outcome.SNOOZE)
    job = await harness.take()
    told |= {"deliveries": 6}
    assert counters(job) | {"errors": 1} == told

    await harness.settle(job, Outcome.FAIL, error=ERROR, reason="attempts")
    assert (await harness.get("a")).attempts == 2
    await harness.do(rq.RetryJobs(refs=[job.ref]))
    job = await harness.take()
    found = counters(job)
    assert (found["attempts"], found["deliveries"], found["retries"]) == (0, 7, 1)
    assert found["errors"] >= 2
