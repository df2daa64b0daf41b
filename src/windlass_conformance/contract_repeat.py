"""Lost replies: every verb may be sent again without losing, repeating or stalling a job."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import EventType, JobRef
from windlass.core.outcome import AddOutcome, CancelResult, Changed, Extended, Outcome, Settled
from windlass.core.states import JobState
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, Harness, settlement

A = JobRef(QUEUE, "a")


@pytest.mark.feature("A1", "Z14")
async def test_an_add_repeated_under_its_request_id_answers_as_the_first_time(harness: Harness) -> None:
    first = await harness.add("a", request_id="r1", delay_ms=100)
    before, mark = await harness.get("a"), await harness.mark()
    harness.pass_ms(50)
    assert await harness.add("a", request_id="r1", delay_ms=100) == first
    assert (await harness.get("a"), await harness.mark()) == (before, mark)


@pytest.mark.feature("A5", "Z14")
async def test_a_bulk_add_repeated_under_its_request_ids_adds_nothing(harness: Harness) -> None:
    def batch() -> rq.Add:
        return rq.Add(jobs=[harness.new(f"j{n}", request_id=f"r{n}") for n in range(50)])

    first = await harness.do(batch())
    assert await harness.do(batch()) == first
    assert await harness.counts() == {JobState.WAITING: 50}
    totals = [row.total for row in await harness.do(rq.ReadCounters())]
    assert totals == [50]


@pytest.mark.feature("A1", "Z14")
async def test_a_repeated_add_is_queued_although_the_job_already_runs(harness: Harness) -> None:
    await harness.add("a", request_id="r1")
    await harness.take()
    again = await harness.add("a", request_id="r1")
    assert (again.outcome, again.enqueued_ms, again.record) == (AddOutcome.QUEUED, START_MS, None)
    assert await harness.state("a") is JobState.ACTIVE


@pytest.mark.feature("A1", "Z14")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL, Outcome.CANCEL])
async def test_a_repeated_add_does_not_run_a_finished_job_again(harness: Harness, outcome: Outcome) -> None:
    before = await harness.finish("a", outcome, request_id="r1")
    again = await harness.add("a", request_id="r1")
    assert again.outcome is AddOutcome.QUEUED
    assert await harness.get("a") == before


@pytest.mark.feature("A2", "Z14")
async def test_another_request_id_is_another_add(harness: Harness) -> None:
    await harness.add("a", request_id="r1")
    assert (await harness.add("a", request_id="r2")).outcome is AddOutcome.DUPLICATE
    assert (await harness.add("a")).outcome is AddOutcome.DUPLICATE


@pytest.mark.feature("A2", "Z14")
async def test_two_adds_without_request_ids_are_not_repeats(harness: Harness) -> None:
    await harness.add("a")
    assert (await harness.add("a")).outcome is AddOutcome.DUPLICATE


@pytest.mark.feature("D2", "Z14")
async def test_a_repeated_add_that_replaced_a_failed_job_does_not_replace_again(harness: Harness) -> None:
    await harness.finish("a", Outcome.FAIL)
    harness.pass_ms(10)
    first = await harness.add("a", request_id="r2")
    before = await harness.get("a")
    assert await harness.add("a", request_id="r2") == first
    assert await harness.get("a") == before


@pytest.mark.feature("J24", "Z14")
@pytest.mark.parametrize("outcome", list(Outcome))
async def test_a_repeated_settlement_answers_already_and_changes_nothing(
    harness: Harness, outcome: Outcome
) -> None:
    job = await harness.start("a")
    await harness.settle(job, outcome, delay_ms=50, result=b"1")
    before, mark, history = await harness.get("a"), await harness.mark(), await harness.history()
    harness.pass_ms(10)
    assert await harness.settle(job, outcome, delay_ms=50, result=b"1") is Settled.ALREADY
    assert (await harness.get("a"), await harness.mark()) == (before, mark)
    assert await harness.history() == history


@pytest.mark.feature("J24", "Z14")
@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.SNOOZE, Outcome.RELEASE])
async def test_a_repeated_settlement_answers_already_although_the_job_runs_again(
    harness: Harness, outcome: Outcome
) -> None:
    job = await harness.start("a")
    await harness.settle(job, outcome)
    await harness.take(worker="w2")
    before = await harness.get("a")
    assert await harness.settle(job, outcome) is Settled.ALREADY
    assert await harness.get("a") == before


@pytest.mark.feature("J24", "Z14", "A25")
async def test_a_repeated_settlement_answers_already_although_the_job_was_retried(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.FAIL)
    await harness.do(rq.RetryJobs(refs=[A]))
    before = await harness.get("a")
    assert await harness.settle(job, Outcome.FAIL) is Settled.ALREADY
    assert await harness.get("a") == before


@pytest.mark.feature("J4", "Z14")
async def test_a_lost_settle_with_claim_is_mended_by_repeat_and_reconcile(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    job = await harness.take()
    end = settlement(job, Outcome.COMPLETE)
    await harness.do(rq.Settle(items=[end], claim=harness.claim_request(limit=1)))  # its reply is lost
    again = await harness.do(rq.Settle(items=[end]))
    assert again.items == [Settled.ALREADY]
    assert await harness.do(rq.Reconcile(worker="w1", held=[])) == 1
    assert await harness.order() == ["b", "c"]
    assert (await harness.get("b")).stalls == 0


@pytest.mark.feature("Z14", "J3")
async def test_a_lost_claim_is_mended_by_reconcile_without_a_stall(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    await harness.claim(2)  # its reply is lost
    assert await harness.do(rq.Reconcile(worker="w1", held=[])) == 2
    jobs = await harness.claim(3)
    assert [(job.id, job.deliveries, job.stalls) for job in jobs] == [("a", 2, 0), ("b", 2, 0), ("c", 1, 0)]


@pytest.mark.feature("Z14")
async def test_a_repeated_reconcile_finds_nothing_left_to_give_back(harness: Harness) -> None:
    await harness.start("a")
    await harness.do(rq.Reconcile(worker="w1", held=[]))
    mark = await harness.mark()
    assert await harness.do(rq.Reconcile(worker="w1", held=[])) == 0
    assert await harness.mark() == mark


@pytest.mark.feature("Z14", "J3")
async def test_a_repeated_extension_is_simply_done_again(harness: Harness) -> None:
    job = await harness.start("a")
    leases = [rq.LeaseRef(QUEUE, "a", job.token or "", 5_000)]
    assert await harness.do(rq.Extend(leases=leases)) == [Extended.OK]
    assert await harness.do(rq.Extend(leases=leases)) == [Extended.OK]


@pytest.mark.feature("Z14", "F1")
async def test_a_repeated_cancel_changes_nothing_more(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.CancelJobs(refs=[A]))
    before, mark = await harness.get("a"), await harness.mark()
    assert await harness.do(rq.CancelJobs(refs=[A])) == [CancelResult.FINISHED]
    assert (await harness.get("a"), await harness.mark()) == (before, mark)


@pytest.mark.feature("Z14", "A25")
async def test_a_repeated_manual_retry_changes_nothing_more(harness: Harness) -> None:
    await harness.finish("a", Outcome.FAIL)
    await harness.do(rq.RetryJobs(refs=[A]))
    before, mark = await harness.get("a"), await harness.mark()
    assert (await harness.do(rq.RetryJobs(refs=[A])))[0].status is Changed.ILLEGAL
    assert (await harness.get("a"), await harness.mark()) == (before, mark)


@pytest.mark.feature("Z14", "A24")
async def test_a_repeated_removal_finds_nothing(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.RemoveJobs(refs=[A]))
    mark = await harness.mark()
    assert (await harness.do(rq.RemoveJobs(refs=[A])))[0].status is Changed.NOT_FOUND
    assert await harness.mark() == mark


@pytest.mark.feature("Z14", "J3")
async def test_repeated_duties_do_nothing_more(harness: Harness) -> None:
    await harness.start("a")
    await harness.add("b", delay_ms=5)
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Promote())
    await harness.do(rq.Recover())
    mark = await harness.mark()
    assert (await harness.do(rq.Promote())).count == 0
    assert await harness.do(rq.Recover()) == rq.Recovered([], [])
    assert await harness.mark() == mark


@pytest.mark.feature("Z14", "A23")
async def test_a_repeated_change_of_priority_does_not_lose_the_place_again(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.ChangeJob(ref=A, priority=1))
    await harness.add("b", priority=1)
    await harness.do(rq.ChangeJob(ref=A, priority=1))
    assert await harness.order() == ["a", "b"]


@pytest.mark.feature("Z14", "K1")
async def test_a_lost_reply_never_doubles_an_event(harness: Harness) -> None:
    for _ in range(2):
        await harness.add("a", request_id="r1")
    job = await harness.take()
    for _ in range(2):
        await harness.settle(job, Outcome.COMPLETE)
    types = [event.type for event in await harness.events()]
    assert types == [EventType.ENQUEUED, EventType.STARTED, EventType.DRAINED, EventType.COMPLETED]
