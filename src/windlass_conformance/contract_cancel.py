"""``CancelJobs``: a pending job ends at once, a running one gets a stored request."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import AttemptOutcome, EventType, JobRef
from windlass.core.outcome import CancelResult, Outcome, Settled
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, START_MS, Harness


async def cancel(harness: Harness, *job_ids: str, reason: str = "") -> list[CancelResult]:
    refs = [JobRef(QUEUE, job_id) for job_id in job_ids]
    return await harness.do(rq.CancelJobs(refs=refs, reason=reason))


@pytest.mark.feature("F1", "F2")
@pytest.mark.parametrize("delay_ms", [0, 500])
async def test_a_pending_job_is_cancelled_at_once(harness: Harness, delay_ms: int) -> None:
    await harness.add("a", delay_ms=delay_ms)
    harness.pass_ms(5)
    assert await cancel(harness, "a", reason="no need") == [CancelResult.CANCELLED]
    job = await harness.get("a")
    assert (job.state, job.reason, job.due_ms) == (JobState.CANCELLED, "no need", None)
    assert (job.finished_ms, job.attempts, job.deliveries) == (START_MS + 5, 0, 0)


@pytest.mark.feature("F1", "C11")
async def test_a_retrying_job_is_cancelled_at_once(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RETRY, delay_ms=60_000)
    assert await cancel(harness, "a") == [CancelResult.CANCELLED]
    assert await harness.state("a") is JobState.CANCELLED


@pytest.mark.feature("C11")
async def test_a_killed_retry_has_failed_and_may_be_retried_by_hand(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RETRY, delay_ms=100)
    await harness.add("b", delay_ms=100)
    mark = await harness.mark()
    refs = [JobRef(QUEUE, "a"), JobRef(QUEUE, "b")]
    told = await harness.do(rq.CancelJobs(refs=refs, reason="killed", dead=True))
    assert told == [CancelResult.CANCELLED, CancelResult.CANCELLED]
    killed, other = await harness.get("a"), await harness.get("b")
    assert (killed.state, killed.reason, killed.due_ms) == (JobState.FAILED, "killed", None)
    assert (killed.attempts, len(killed.errors)) == (1, 1)
    assert other.state is JobState.CANCELLED
    events = await harness.events(after=mark)
    assert [event.type for event in events] == [EventType.FAILED, EventType.CANCELLED]
    assert (events[0].data["reason"], events[0].data["error_class"]) == ("killed", "JobKilled")
    ends = (await harness.history())[-2:]
    assert [(end.attempt, end.outcome, end.error_class) for end in ends] == [
        (0, AttemptOutcome.FAILED, "JobKilled"),
        (0, AttemptOutcome.CANCELLED, None),
    ]
    harness.pass_ms(1_000)
    assert await harness.claim(5) == []
    await harness.do(rq.RetryJobs(refs=refs[:1]))
    assert [job.id for job in await harness.claim(5)] == ["a"]


@pytest.mark.feature("F1")
async def test_a_cancelled_job_is_never_claimed(harness: Harness) -> None:
    await harness.add("a")
    await harness.add("b", delay_ms=10)
    await cancel(harness, "a", "b")
    harness.pass_ms(1_000)
    assert await harness.claim(5) == []


@pytest.mark.feature("F2", "F3")
async def test_an_active_job_is_asked_to_stop_and_goes_on(harness: Harness) -> None:
    job = await harness.start("a")
    assert await cancel(harness, "a", reason="stop") == [CancelResult.CANCELLING]
    job.cancel_reason = "stop"
    assert await harness.get("a") == job


@pytest.mark.feature("F2")
async def test_the_first_reason_stands_and_only_one_event_tells_of_it(harness: Harness) -> None:
    await harness.start("a")
    mark = await harness.mark()
    await cancel(harness, "a", reason="first")
    assert await cancel(harness, "a", reason="second") == [CancelResult.CANCELLING]
    assert (await harness.get("a")).cancel_reason == "first"
    (event,) = await harness.events(after=mark)
    assert (event.type, event.data["reason"]) == (EventType.CANCELLING, "first")


@pytest.mark.feature("F1")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL, Outcome.CANCEL])
async def test_a_finished_job_answers_finished_and_stays(harness: Harness, outcome: Outcome) -> None:
    before = await harness.finish("a", outcome)
    mark = await harness.mark()
    assert await cancel(harness, "a") == [CancelResult.FINISHED]
    assert await harness.get("a") == before
    assert await harness.mark() == mark


@pytest.mark.feature("F1")
async def test_an_unknown_job_answers_not_found(harness: Harness) -> None:
    assert await cancel(harness, "no-such-job") == [CancelResult.NOT_FOUND]


@pytest.mark.feature("F1")
async def test_cancellations_are_answered_per_item_in_order(harness: Harness) -> None:
    await harness.finish("done")
    await harness.start("runs")
    await harness.add("waits")
    answers = await cancel(harness, "waits", "no-such-job", "runs", "done", "waits")
    assert answers == [
        CancelResult.CANCELLED,
        CancelResult.NOT_FOUND,
        CancelResult.CANCELLING,
        CancelResult.FINISHED,
        CancelResult.FINISHED,
    ]


@pytest.mark.feature("F2")
@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.SNOOZE, Outcome.RELEASE])
async def test_a_job_asked_to_cancel_does_not_go_back_in_line(harness: Harness, outcome: Outcome) -> None:
    job = await harness.start("a")
    await cancel(harness, "a", reason="stop")
    assert await harness.settle(job, outcome, delay_ms=10) is Settled.OK
    ended = await harness.get("a")
    assert (ended.state, ended.reason, ended.attempts) == (JobState.CANCELLED, "stop", 0)
    assert (ended.due_ms, ended.finished_ms) == (None, START_MS)
    assert (await harness.history())[-1].outcome is AttemptOutcome.CANCELLED


@pytest.mark.feature("F2")
async def test_a_job_that_completes_before_it_heard_of_the_cancel_is_completed(harness: Harness) -> None:
    job = await harness.start("a")
    await cancel(harness, "a")
    await harness.settle(job, Outcome.COMPLETE, result=b"1")
    ended = await harness.get("a")
    assert (ended.state, ended.result) == (JobState.COMPLETED, b"1")


@pytest.mark.feature("F2")
async def test_a_job_that_fails_for_good_before_it_heard_of_the_cancel_is_failed(harness: Harness) -> None:
    job = await harness.start("a")
    await cancel(harness, "a")
    await harness.settle(job, Outcome.FAIL, reason="unrecoverable")
    assert await harness.state("a") is JobState.FAILED


@pytest.mark.feature("F2")
async def test_the_request_to_cancel_travels_with_its_reason_to_the_end(harness: Harness) -> None:
    job = await harness.start("a")
    await cancel(harness, "a", reason="asked")
    await harness.settle(job, Outcome.CANCEL)
    assert (await harness.get("a")).reason == "asked"


@pytest.mark.feature("F1", "Q2")
async def test_a_job_cancelled_without_an_attempt_leaves_one_row_of_history(harness: Harness) -> None:
    await harness.add("a")
    await cancel(harness, "a")
    (row,) = await harness.history()
    assert (row.attempt, row.outcome, row.worker, row.started_ms) == (
        0,
        AttemptOutcome.CANCELLED,
        None,
        None,
    )


@pytest.mark.feature("F1", "K3")
async def test_cancelling_a_pending_job_writes_one_event_with_the_reason(harness: Harness) -> None:
    await harness.add("a")
    mark = await harness.mark()
    await cancel(harness, "a", reason="why")
    (event,) = await harness.events(after=mark)
    assert (event.type, event.job_id, event.data) == (EventType.CANCELLED, "a", {"reason": "why"})


@pytest.mark.feature("F2", "A25")
async def test_a_cancelled_job_retried_by_hand_is_no_longer_being_cancelled(harness: Harness) -> None:
    job = await harness.start("a")
    await cancel(harness, "a", reason="stop")
    await harness.settle(job, Outcome.CANCEL)
    await harness.do(rq.RetryJobs(refs=[job.ref]))
    again = await harness.take()
    assert again.cancel_reason is None
    assert await harness.settle(again, Outcome.COMPLETE) is Settled.OK
    assert await harness.state("a") is JobState.COMPLETED
