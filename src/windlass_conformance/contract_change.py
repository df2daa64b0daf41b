"""Changes on request: priority, delay, payload, manual retries, removal, pause, retention of results."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import AttemptOutcome, ErrorInfo, EventType, JobRef
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import Changed, Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, Harness
from windlass_conformance.needs import needs

NOBODY = JobRef(QUEUE, "no-such-job")
A = JobRef(QUEUE, "a")


OK_WAITING = rq.ChangeResult(Changed.OK, JobState.WAITING)


# --- priority, delay, payload ---------------------------------------------------------------------


@needs("priority")
@pytest.mark.feature("A23")
async def test_a_changed_priority_joins_the_back_of_its_new_priority(harness: Harness) -> None:
    await harness.add("a", priority=9)
    await harness.add_many("b", "c", priority=1)
    await harness.add("d")
    assert await harness.do(rq.ChangeJob(ref=A, priority=1)) == OK_WAITING
    assert (await harness.get("a")).priority == 1
    assert await harness.order() == ["b", "c", "a", "d"]


@pytest.mark.feature("A23")
async def test_the_same_priority_again_changes_nothing(harness: Harness) -> None:
    await harness.add_many("a", "b")
    mark = await harness.mark()
    assert (await harness.do(rq.ChangeJob(ref=A, priority=0))).status is Changed.OK
    assert await harness.mark() == mark
    assert await harness.order() == ["a", "b"]


@needs("priority")
@pytest.mark.feature("A23")
async def test_a_scheduled_job_takes_its_new_priority_along(harness: Harness) -> None:
    await harness.add("a", delay_ms=10)
    await harness.add("b")
    await harness.do(rq.ChangeJob(ref=A, priority=5))
    harness.pass_ms(10)
    assert await harness.order() == ["a", "b"]


@pytest.mark.feature("A23", "B6")
async def test_delay_zero_makes_a_scheduled_job_ready_now_at_the_back(harness: Harness) -> None:
    await harness.add("a", delay_ms=500)
    await harness.add("b")
    mark = await harness.mark()
    harness.pass_ms(5)
    assert await harness.do(rq.ChangeJob(ref=A, delay_ms=0)) == OK_WAITING
    job = await harness.get("a")
    assert (job.due_ms, job.ready_ms) == (None, START_MS + 5)
    assert [event.type for event in await harness.events(after=mark)] == [EventType.PROMOTED]
    assert await harness.order() == ["b", "a"]


@pytest.mark.feature("A23", "C11")
async def test_delay_zero_makes_a_retrying_job_ready_now(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RETRY, delay_ms=60_000)
    assert await harness.do(rq.ChangeJob(ref=A, delay_ms=0)) == OK_WAITING
    assert (await harness.get("a")).attempts == 1


@pytest.mark.feature("A23")
async def test_delay_zero_leaves_a_waiting_job_where_it_is(harness: Harness) -> None:
    await harness.add_many("a", "b")
    before, mark = await harness.get("a"), await harness.mark()
    assert await harness.do(rq.ChangeJob(ref=A, delay_ms=0)) == OK_WAITING
    assert (await harness.get("a"), await harness.mark()) == (before, mark)


@pytest.mark.feature("A23")
async def test_a_delay_puts_a_waiting_job_off(harness: Harness) -> None:
    await harness.add("a")
    harness.pass_ms(5)
    changed = await harness.do(rq.ChangeJob(ref=A, delay_ms=100))
    assert changed == rq.ChangeResult(Changed.OK, JobState.SCHEDULED)
    job = await harness.get("a")
    assert job.due_ms == job.ready_ms == START_MS + 105
    assert await harness.claim() == []
    harness.pass_ms(100)
    assert (await harness.take()).id == "a"


@pytest.mark.feature("A23")
async def test_a_delay_counts_from_now_and_moves_a_due_time_both_ways(harness: Harness) -> None:
    await harness.add("a", delay_ms=500)
    harness.pass_ms(100)
    await harness.do(rq.ChangeJob(ref=A, delay_ms=50))
    assert (await harness.get("a")).due_ms == START_MS + 150
    await harness.do(rq.ChangeJob(ref=A, delay_ms=900))
    harness.pass_ms(899)
    assert await harness.claim() == []
    harness.pass_ms(1)
    assert (await harness.take()).id == "a"


@pytest.mark.feature("A23")
async def test_a_retrying_job_stays_retrying_when_its_delay_is_moved(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RETRY, delay_ms=500)
    changed = await harness.do(rq.ChangeJob(ref=A, delay_ms=900))
    assert changed == rq.ChangeResult(Changed.OK, JobState.RETRYING)
    assert (await harness.get("a")).due_ms == START_MS + 900


@pytest.mark.feature("A21")
async def test_the_payload_of_a_pending_job_can_be_replaced(harness: Harness) -> None:
    await harness.add("a", payload=b"old")
    before, mark = await harness.get("a"), await harness.mark()
    assert await harness.do(rq.ChangeJob(ref=A, payload=b"new")) == OK_WAITING
    before.payload = b"new"
    assert await harness.get("a") == before
    (event,) = await harness.events(after=mark)
    assert (event.type, event.data) == (EventType.CHANGED, {"what": "data"})


@pytest.mark.feature("A21")
async def test_the_payload_of_an_active_job_can_be_replaced_with_its_token(harness: Harness) -> None:
    job = await harness.start("a", payload=b"old")
    changed = await harness.do(rq.ChangeJob(ref=A, token=job.token, payload=b"new"))
    assert changed == rq.ChangeResult(Changed.OK, JobState.ACTIVE)
    await harness.settle(job, Outcome.RETRY)
    assert (await harness.take()).payload == b"new"


@pytest.mark.feature("A21", "J24")
async def test_a_stale_token_cannot_replace_the_payload(harness: Harness) -> None:
    late = await harness.start("a")
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())
    await harness.take()
    before = await harness.get("a")
    changed = await harness.do(rq.ChangeJob(ref=A, token=late.token, payload=b"new"))
    assert changed == rq.ChangeResult(Changed.LOST, JobState.ACTIVE)
    assert await harness.get("a") == before


@pytest.mark.feature("A21", "A23")
@pytest.mark.parametrize("change", [{"priority": 5}, {"delay_ms": 5}, {"delay_ms": 0}, {"payload": b"new"}])
async def test_without_a_token_nothing_of_an_active_job_can_be_changed(
    harness: Harness, change: dict[str, int | bytes]
) -> None:
    job = await harness.start("a")
    mark = await harness.mark()
    changed = await harness.do(rq.ChangeJob(ref=A, **change))  # type: ignore[arg-type] # one field each
    assert changed == rq.ChangeResult(Changed.ILLEGAL, JobState.ACTIVE)
    assert (await harness.get("a"), await harness.mark()) == (job, mark)


@pytest.mark.feature("A23")
@pytest.mark.parametrize("change", [{"priority": 5}, {"delay_ms": 5}])
async def test_a_token_gives_no_right_to_move_an_active_job(harness: Harness, change: dict[str, int]) -> None:
    job = await harness.start("a")
    request = rq.ChangeJob(ref=A, token=job.token, payload=b"new", **change)
    assert await harness.do(request) == rq.ChangeResult(Changed.ILLEGAL, JobState.ACTIVE)
    assert await harness.get("a") == job


@pytest.mark.feature("A23")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL, Outcome.CANCEL])
async def test_a_finished_job_cannot_be_changed(harness: Harness, outcome: Outcome) -> None:
    before = await harness.finish("a", outcome)
    changed = await harness.do(rq.ChangeJob(ref=A, priority=1, delay_ms=60_000, payload=b"x"))
    assert changed == rq.ChangeResult(Changed.ILLEGAL, before.state)
    assert await harness.get("a") == before


@pytest.mark.feature("A23")
async def test_changing_an_unknown_job_answers_not_found(harness: Harness) -> None:
    assert await harness.do(rq.ChangeJob(ref=NOBODY, priority=1)) == rq.ChangeResult(Changed.NOT_FOUND)


@pytest.mark.feature("A21", "A23")
async def test_everything_about_a_pending_job_can_be_changed_in_one_step(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.ChangeJob(ref=A, priority=3, delay_ms=10, payload=b"new"))
    job = await harness.get("a")
    assert (job.priority, job.due_ms, job.payload, job.state) == (
        3,
        START_MS + 10,
        b"new",
        JobState.SCHEDULED,
    )


# --- retry by hand --------------------------------------------------------------------------------


@pytest.mark.feature("A25", "C14")
async def test_a_failed_job_retried_by_hand_gets_a_fresh_budget_and_keeps_its_errors(
    harness: Harness,
) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RETRY, error=ErrorInfo(error_class="One"))
    job = await harness.take()
    await harness.settle(job, Outcome.FAIL, error=ErrorInfo(error_class="Two"), reason="attempts")
    harness.pass_ms(5)
    assert await harness.do(rq.RetryJobs(refs=[A])) == [OK_WAITING]
    again = await harness.get("a")
    assert (again.attempts, again.manual_retries, again.deliveries) == (0, 1, 2)
    assert (again.finished_ms, again.reason, again.ready_ms) == (None, "", START_MS + 5)
    assert [error.error_class for error in again.errors] == ["One", "Two"]
    assert again.enqueued_ms == START_MS


@pytest.mark.feature("A25")
async def test_a_job_retried_by_hand_joins_the_back_of_its_priority(harness: Harness) -> None:
    await harness.finish("a", Outcome.FAIL)
    await harness.add("b")
    await harness.do(rq.RetryJobs(refs=[A]))
    assert await harness.order() == ["b", "a"]


@pytest.mark.feature("A25")
async def test_a_completed_job_retried_by_hand_forgets_its_result(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.COMPLETE, result=b"1")
    await harness.do(rq.RetryJobs(refs=[A]))
    again = await harness.get("a")
    assert (again.state, again.result, again.result_until_ms) == (JobState.WAITING, None, None)


@pytest.mark.feature("C11")
async def test_retrying_by_hand_only_hurries_a_retrying_job(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RETRY, delay_ms=60_000)
    assert await harness.do(rq.RetryJobs(refs=[A])) == [OK_WAITING]
    hurried = await harness.get("a")
    assert (hurried.attempts, hurried.manual_retries) == (1, 0)


@pytest.mark.feature("A25")
async def test_jobs_that_wait_or_run_cannot_be_retried(harness: Harness) -> None:
    await harness.start("active")
    await harness.add("waiting")
    await harness.add("scheduled", delay_ms=60_000)
    ids = ["active", "waiting", "scheduled"]
    before = [await harness.get(job_id) for job_id in ids]
    answers = await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, job_id) for job_id in ids]))
    assert [(answer.status, answer.state) for answer in answers] == [
        (Changed.ILLEGAL, JobState.ACTIVE),
        (Changed.ILLEGAL, JobState.WAITING),
        (Changed.ILLEGAL, JobState.SCHEDULED),
    ]
    assert [await harness.get(job_id) for job_id in ids] == before


@pytest.mark.feature("C10")
async def test_retries_by_hand_are_answered_per_item_in_order(harness: Harness) -> None:
    await harness.finish("a", Outcome.FAIL)
    await harness.add("b")
    answers = await harness.do(rq.RetryJobs(refs=[NOBODY, A, JobRef(QUEUE, "b"), A]))
    assert [answer.status for answer in answers] == [
        Changed.NOT_FOUND,
        Changed.OK,
        Changed.ILLEGAL,
        Changed.ILLEGAL,
    ]


@pytest.mark.feature("A25")
async def test_each_retry_by_hand_is_counted(harness: Harness) -> None:
    await harness.add("a")
    for count in (1, 2):
        await harness.settle(await harness.take(), Outcome.FAIL)
        await harness.do(rq.RetryJobs(refs=[A]))
        assert (await harness.get("a")).manual_retries == count


# --- remove ---------------------------------------------------------------------------------------


@pytest.mark.feature("A24", "B7")
async def test_a_removed_job_is_gone_everywhere(harness: Harness) -> None:
    await harness.add("a")
    await harness.add("b", delay_ms=10)
    await harness.do(rq.Report(ref=A, logs=["line"]))
    answers = await harness.do(rq.RemoveJobs(refs=[A, JobRef(QUEUE, "b")]))
    assert answers == [OK_WAITING, rq.ChangeResult(Changed.OK, JobState.SCHEDULED)]
    harness.pass_ms(10)
    assert await harness.find("a") is None
    assert await harness.claim(5) == []
    assert await harness.counts() == {}
    assert await harness.do(rq.GetLogs(ref=A)) == rq.LogPage([], 0)
    assert (await harness.do(rq.ListJobs(queue=QUEUE))).jobs == []


@pytest.mark.feature("A24")
async def test_an_active_job_is_removed_only_by_force(harness: Harness) -> None:
    job = await harness.start("a")
    assert await harness.do(rq.RemoveJobs(refs=[A])) == [rq.ChangeResult(Changed.ILLEGAL, JobState.ACTIVE)]
    assert await harness.get("a") == job
    assert (await harness.do(rq.RemoveJobs(refs=[A], force=True)))[0].status is Changed.OK
    assert await harness.find("a") is None


@pytest.mark.feature("A24")
async def test_a_job_removed_by_force_is_not_recovered_later(harness: Harness) -> None:
    await harness.start("a")
    await harness.do(rq.RemoveJobs(refs=[A], force=True))
    harness.pass_ms(LEASE_MS)
    assert await harness.do(rq.Recover()) == rq.Recovered([], [])


@pytest.mark.feature("A24")
async def test_removals_are_answered_per_item_in_order(harness: Harness) -> None:
    await harness.add("a")
    answers = await harness.do(rq.RemoveJobs(refs=[NOBODY, A, A]))
    assert [answer.status for answer in answers] == [Changed.NOT_FOUND, Changed.OK, Changed.NOT_FOUND]


@pytest.mark.feature("A24", "Q2")
async def test_removing_an_unfinished_job_leaves_its_end_in_history(harness: Harness) -> None:
    await harness.start("runs")
    await harness.add("waits")
    refs = [JobRef(QUEUE, "runs"), JobRef(QUEUE, "waits")]
    await harness.do(rq.RemoveJobs(refs=refs, force=True))
    rows = [(row.job_id, row.attempt, row.outcome) for row in await harness.history()]
    assert rows == [("runs", 1, AttemptOutcome.CANCELLED), ("waits", 0, AttemptOutcome.CANCELLED)]


@pytest.mark.feature("A24", "Q2")
async def test_removing_a_finished_job_adds_nothing_to_history(harness: Harness) -> None:
    await harness.finish("a")
    before = await harness.history()
    await harness.do(rq.RemoveJobs(refs=[A]))
    assert await harness.history() == before


# --- pause ----------------------------------------------------------------------------------------


@pytest.mark.feature("H10")
async def test_pause_and_resume_say_whether_they_changed_something(harness: Harness) -> None:
    answers = [
        await harness.do(rq.PauseQueue(queue=QUEUE, paused=paused)) for paused in (False, True, True, False)
    ]
    assert answers == [False, True, False, True]


@pytest.mark.feature("H10", "K1")
async def test_pause_and_resume_write_one_event_per_change(harness: Harness) -> None:
    await harness.add("a")
    mark = await harness.mark()
    for paused in (True, True, False, False):
        await harness.do(rq.PauseQueue(queue=QUEUE, paused=paused))
    types = [event.type for event in await harness.events(after=mark)]
    assert types == [EventType.PAUSED, EventType.RESUMED]


# --- result ttl -----------------------------------------------------------------------------------


@pytest.mark.feature("E8")
async def test_the_life_of_a_result_can_be_changed_from_now(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.COMPLETE, result=b"1")
    harness.pass_ms(1_000)
    changed = await harness.do(rq.SetResultTtl(ref=A, ttl_ms=500))
    assert changed == rq.ChangeResult(Changed.OK, JobState.COMPLETED)
    harness.pass_ms(499)
    assert (await harness.get("a")).result == b"1"
    harness.pass_ms(1)
    assert (await harness.get("a")).result is None


@pytest.mark.feature("E8", "A13")
async def test_a_longer_result_ttl_keeps_the_record_from_being_pruned(harness: Harness) -> None:
    await harness.finish("a", options=StoredOptions(keep_completed=Keep(0, 0)))
    await harness.do(rq.SetResultTtl(ref=A, ttl_ms=200_000))
    harness.pass_ms(199_999)
    await harness.do(rq.Prune())
    assert await harness.find("a") is not None
    harness.pass_ms(1)
    await harness.do(rq.Prune())
    assert await harness.find("a") is None


@pytest.mark.feature("E5", "E8")
@pytest.mark.parametrize("keep", [Keep(0, 0), Keep(None, None), Keep(86_400_000, 10_000)])
async def test_the_errors_of_a_failed_job_can_be_kept_from_now_on(harness: Harness, keep: Keep) -> None:
    await harness.finish("a", Outcome.FAIL, options=StoredOptions(keep_failed=keep))
    harness.pass_ms(1_000)
    answer = await harness.do(rq.SetResultTtl(ref=A, ttl_ms=200_000))
    assert answer == rq.ChangeResult(Changed.OK, JobState.FAILED)
    harness.pass_ms(199_999)
    await harness.do(rq.Prune())
    assert (await harness.get("a")).errors
    harness.pass_ms(1)
    await harness.do(rq.Prune())
    assert await harness.find("a") is None


@pytest.mark.feature("E8")
async def test_only_a_completed_or_failed_job_has_something_to_keep(harness: Harness) -> None:
    await harness.finish("a", Outcome.CANCEL)
    before = await harness.get("a")
    assert await harness.do(rq.SetResultTtl(ref=A, ttl_ms=1)) == rq.ChangeResult(
        Changed.ILLEGAL, JobState.CANCELLED
    )
    assert await harness.get("a") == before
    assert (await harness.do(rq.SetResultTtl(ref=NOBODY, ttl_ms=1))).status is Changed.NOT_FOUND
