"""``Extend``, ``Recover``, ``Reconcile``: leases are renewed, expire, and are released."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import JobRecord, JobRef
from windlass.core.options import StoredOptions
from windlass.core.outcome import Extended, Outcome, Settled
from windlass.core.states import JobState
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, Harness


def lease(job: JobRecord, lease_ms: int = LEASE_MS, token: str | None = None) -> rq.LeaseRef:
    return rq.LeaseRef(job.queue, job.id, token or job.token or "", lease_ms)


async def extend(harness: Harness, *leases: rq.LeaseRef) -> list[Extended]:
    return await harness.do(rq.Extend(leases=list(leases)))


async def recover(harness: Harness, limit: int = 1_000) -> rq.Recovered:
    return await harness.do(rq.Recover(limit=limit))


# --- extend ---------------------------------------------------------------------------------------


@pytest.mark.feature("J3")
async def test_extending_moves_the_deadline_and_nothing_else(harness: Harness) -> None:
    job = await harness.start("a")
    mark = await harness.mark()
    harness.pass_ms(10_000)
    assert await extend(harness, lease(job, 20_000)) == [Extended.OK]
    job.lease_until_ms = START_MS + 30_000
    assert await harness.get("a") == job
    assert await harness.mark() == mark


@pytest.mark.feature("J3")
async def test_an_extended_lease_is_not_recovered(harness: Harness) -> None:
    job = await harness.start("a")
    harness.pass_ms(LEASE_MS - 1)
    await extend(harness, lease(job))
    harness.pass_ms(LEASE_MS - 1)
    assert await recover(harness) == rq.Recovered([], [])


@pytest.mark.feature("J3", "J24")
async def test_a_stale_token_cannot_extend(harness: Harness) -> None:
    job = await harness.start("a")
    before = await harness.get("a")
    assert await extend(harness, lease(job, token="never.0")) == [Extended.LOST]
    assert await harness.get("a") == before


@pytest.mark.feature("J3", "J24")
async def test_a_recovered_lease_cannot_be_extended(harness: Harness) -> None:
    job = await harness.start("a")
    harness.pass_ms(LEASE_MS)
    await recover(harness)
    again = await harness.take(worker="w2")
    assert await extend(harness, lease(job), lease(again)) == [Extended.LOST, Extended.OK]


@pytest.mark.feature("J3")
async def test_a_lease_past_its_deadline_that_nobody_took_can_be_extended(harness: Harness) -> None:
    job = await harness.start("a")
    harness.pass_ms(2 * LEASE_MS)
    assert await extend(harness, lease(job)) == [Extended.OK]
    assert await recover(harness) == rq.Recovered([], [])


@pytest.mark.feature("J3", "J24")
@pytest.mark.parametrize("outcome", list(Outcome))
async def test_a_settled_lease_cannot_be_extended(harness: Harness, outcome: Outcome) -> None:
    job = await harness.start("a")
    await harness.settle(job, outcome)
    before = await harness.get("a")
    assert await extend(harness, lease(job)) == [Extended.LOST]
    assert await harness.get("a") == before


@pytest.mark.feature("J3")
async def test_extensions_are_answered_per_item_in_order(harness: Harness) -> None:
    await harness.add_many("a", "b")
    a, b = await harness.claim(2)
    gone = rq.LeaseRef(QUEUE, "no-such-job", "t", 1_000)
    assert await extend(harness, lease(a), gone, lease(b)) == [Extended.OK, Extended.LOST, Extended.OK]


@pytest.mark.feature("F2", "F3")
async def test_extending_tells_the_worker_that_its_job_is_being_cancelled(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.do(rq.CancelJobs(refs=[job.ref]))
    harness.pass_ms(100)
    assert await extend(harness, lease(job)) == [Extended.CANCELLING]
    assert (await harness.get("a")).lease_until_ms == START_MS + 100 + LEASE_MS


# --- recover --------------------------------------------------------------------------------------


@pytest.mark.feature("J3", "J7", "C18")
async def test_a_silent_workers_job_waits_again_at_its_old_place(harness: Harness) -> None:
    await harness.add_many("a", "b")
    before = await harness.get("a")
    await harness.take()
    harness.pass_ms(LEASE_MS)
    assert await recover(harness) == rq.Recovered([JobRef(QUEUE, "a")], [])
    job = await harness.get("a")
    assert (job.state, job.stalls, job.attempts, job.deliveries) == (JobState.WAITING, 1, 0, 1)
    assert (job.place, job.ready_ms, job.token, job.lease_until_ms) == (
        before.place,
        before.ready_ms,
        None,
        None,
    )
    kept = harness.backend.capabilities.recovered_place
    assert await harness.order() == (["a", "b"] if kept else ["b", "a"])


@pytest.mark.feature("J3", "J7")
async def test_a_lease_is_not_taken_back_before_its_deadline(harness: Harness) -> None:
    await harness.start("a")
    harness.pass_ms(LEASE_MS - 1)
    assert await recover(harness) == rq.Recovered([], [])
    harness.pass_ms(1)
    assert len((await recover(harness)).recovered) == 1


@pytest.mark.feature("J3", "J7")
async def test_recovered_jobs_are_delivered_once_more(harness: Harness) -> None:
    await harness.start("a")
    harness.pass_ms(LEASE_MS)
    await recover(harness)
    job = await harness.take(worker="w2")
    assert (job.deliveries, job.attempts, job.worker) == (2, 0, "w2")


@pytest.mark.feature("C18", "J3")
async def test_a_job_that_stalls_too_often_fails_as_stalled(harness: Harness) -> None:
    await harness.add("a", options=StoredOptions(max_stalls=2))
    for _ in range(2):
        await harness.take()
        harness.pass_ms(LEASE_MS)
        assert (await recover(harness)).recovered == [JobRef(QUEUE, "a")]
    await harness.take()
    harness.pass_ms(LEASE_MS)
    assert await recover(harness) == rq.Recovered([], [JobRef(QUEUE, "a")])
    job = await harness.get("a")
    assert (job.state, job.reason, job.stalls) == (JobState.FAILED, "stalled", 3)
    assert (job.attempts, job.finished_ms, job.token) == (0, harness.now_ms, None)
    assert [error.error_class for error in job.errors] == ["JobStalled"]


@pytest.mark.feature("C18")
async def test_with_no_stalls_allowed_the_first_one_fails_the_job(harness: Harness) -> None:
    await harness.start("a", options=StoredOptions(max_stalls=0))
    harness.pass_ms(LEASE_MS)
    assert (await recover(harness)).failed == [JobRef(QUEUE, "a")]


@pytest.mark.feature("J3", "F2")
async def test_a_job_asked_to_cancel_whose_worker_went_silent_ends_cancelled(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.do(rq.CancelJobs(refs=[job.ref], reason="stop"))
    harness.pass_ms(LEASE_MS)
    await recover(harness)
    ended = await harness.get("a")
    assert (ended.state, ended.reason, ended.finished_ms) == (JobState.CANCELLED, "stop", harness.now_ms)


@pytest.mark.feature("J3")
async def test_recovery_takes_the_earliest_deadlines_first_up_to_its_limit(harness: Harness) -> None:
    for job_id, lease_ms in [("a", 300), ("b", 100), ("c", 200)]:
        await harness.add(job_id)
        await harness.take(lease_ms=lease_ms)
    harness.pass_ms(1_000)
    assert (await recover(harness, limit=2)).recovered == [JobRef(QUEUE, "b"), JobRef(QUEUE, "c")]
    assert (await recover(harness, limit=2)).recovered == [JobRef(QUEUE, "a")]


@pytest.mark.feature("J3")
async def test_recovery_covers_all_queues_and_can_be_repeated(harness: Harness) -> None:
    await harness.start("a", "one")
    await harness.start("b", "two")
    harness.pass_ms(LEASE_MS)
    assert set((await recover(harness)).recovered) == {JobRef("one", "a"), JobRef("two", "b")}
    assert await recover(harness) == rq.Recovered([], [])


@pytest.mark.feature("J3")
async def test_a_recovered_job_does_not_expire(harness: Harness) -> None:
    await harness.start("a", expires_in_ms=LEASE_MS)
    harness.pass_ms(LEASE_MS)
    await recover(harness)
    assert (await harness.take()).id == "a"


@pytest.mark.feature("J3", "A25")
async def test_a_manual_retry_forgets_earlier_stalls(harness: Harness) -> None:
    await harness.start("a", options=StoredOptions(max_stalls=0))
    harness.pass_ms(LEASE_MS)
    await recover(harness)
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "a")]))
    job = await harness.get("a")
    assert (job.stalls, job.manual_retries, job.state) == (0, 1, JobState.WAITING)


@pytest.mark.feature("C18", "J7")
async def test_a_job_with_a_stall_delay_rests_before_it_can_start_again(harness: Harness) -> None:
    await harness.start("a", options=StoredOptions(stall_delay_ms=500))
    harness.pass_ms(LEASE_MS)
    assert await recover(harness) == rq.Recovered([JobRef(QUEUE, "a")], [])
    job = await harness.get("a")
    assert (job.state, job.stalls, job.attempts, job.token) == (JobState.RETRYING, 1, 0, None)
    assert (job.due_ms, job.ready_ms) == (harness.now_ms + 500, harness.now_ms + 500)
    harness.pass_ms(499)
    assert await harness.claim() == []
    harness.pass_ms(1)
    again = await harness.take(worker="w2")
    assert (again.id, again.due_ms, again.deliveries, again.attempts) == ("a", None, 2, 0)


@pytest.mark.feature("C18", "J7")
async def test_a_claim_tells_when_a_job_has_rested(harness: Harness) -> None:
    await harness.start("a", options=StoredOptions(stall_delay_ms=500))
    harness.pass_ms(LEASE_MS)
    await recover(harness)
    assert (await harness.do(harness.claim_request())).next_due_in_ms == 500


@pytest.mark.feature("C18", "J24")
async def test_a_silent_worker_cannot_settle_its_job_while_that_rests(harness: Harness) -> None:
    job = await harness.start("a", options=StoredOptions(stall_delay_ms=500))
    harness.pass_ms(LEASE_MS)
    await recover(harness)
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.LOST
    assert await harness.state("a") is JobState.RETRYING


@pytest.mark.feature("C18")
async def test_every_stall_rests_and_the_last_one_fails_the_job_at_once(harness: Harness) -> None:
    await harness.add("a", options=StoredOptions(stall_delay_ms=500, max_stalls=2))
    for _ in range(2):
        await harness.take()
        harness.pass_ms(LEASE_MS)
        await recover(harness)
        assert await harness.claim() == []
        harness.pass_ms(500)
    await harness.take()
    harness.pass_ms(LEASE_MS)
    assert (await recover(harness)).failed == [JobRef(QUEUE, "a")]


@pytest.mark.feature("C18", "A25")
async def test_a_job_that_rests_can_be_hurried_or_cancelled(harness: Harness) -> None:
    options = StoredOptions(stall_delay_ms=500)
    await harness.add_many("a", "b", options=options)
    await harness.claim(2)
    harness.pass_ms(LEASE_MS)
    await recover(harness)
    assert await harness.claim() == []
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "a")]))
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "b")]))
    assert (await harness.take()).id == "a"
    assert await harness.state("b") is JobState.CANCELLED


@pytest.mark.feature("C18", "J3")
async def test_a_lease_that_its_worker_never_heard_of_is_given_back_without_a_rest(harness: Harness) -> None:
    await harness.start("a", options=StoredOptions(stall_delay_ms=500))
    await harness.do(rq.Reconcile(worker="w1", held=[]))
    assert await harness.state("a") is JobState.WAITING


# --- reconcile ------------------------------------------------------------------------------------


@pytest.mark.feature("Z14")
async def test_reconcile_gives_back_the_leases_its_worker_does_not_hold(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    before = await harness.get("b")
    a, b, _ = await harness.claim(3)
    assert await harness.do(rq.Reconcile(worker="w1", held=[a.token or ""])) == 2
    assert await harness.counts() == {JobState.ACTIVE: 1, JobState.WAITING: 2}
    given = await harness.get("b")
    assert (given.place, given.ready_ms, given.attempts, given.stalls, given.misses) == (
        before.place,
        before.ready_ms,
        0,
        0,
        0,
    )
    assert (given.deliveries, given.token, b.id) == (1, None, "b")
    assert await harness.order() == ["b", "c"]


@pytest.mark.feature("Z14")
async def test_reconcile_leaves_other_workers_alone(harness: Harness) -> None:
    await harness.add_many("a", "b")
    await harness.take(worker="w1")
    await harness.take(worker="w2")
    assert await harness.do(rq.Reconcile(worker="w1", held=[])) == 1
    assert await harness.state("b") is JobState.ACTIVE


@pytest.mark.feature("Z14")
async def test_reconcile_covers_all_queues_of_the_worker(harness: Harness) -> None:
    await harness.start("a", "one")
    await harness.start("b", "two")
    assert await harness.do(rq.Reconcile(worker="w1", held=[])) == 2
    assert await harness.do(rq.Reconcile(worker="w1", held=[])) == 0


@pytest.mark.feature("Z14")
async def test_reconcile_with_every_lease_held_changes_nothing(harness: Harness) -> None:
    job = await harness.start("a")
    mark = await harness.mark()
    assert await harness.do(rq.Reconcile(worker="w1", held=[job.token or "", "unknown.1"])) == 0
    assert await harness.get("a") == job
    assert await harness.mark() == mark


@pytest.mark.feature("Z14", "J24")
async def test_a_lease_that_was_given_back_is_lost_and_did_not_settle(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.do(rq.Reconcile(worker="w1", held=[]))
    before = await harness.get("a")
    assert await harness.settle(job, Outcome.COMPLETE, result=b"1") is Settled.LOST
    assert await harness.get("a") == before


@pytest.mark.feature("Z14", "F2")
async def test_a_job_asked_to_cancel_is_not_given_back_to_the_line(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.do(rq.CancelJobs(refs=[job.ref], reason="stop"))
    await harness.do(rq.Reconcile(worker="w1", held=[]))
    ended = await harness.get("a")
    assert (ended.state, ended.reason) == (JobState.CANCELLED, "stop")


# --- custom executors -----------------------------------------------------------------------------


@pytest.mark.feature("J26")
async def test_an_executor_of_ones_own_claims_extends_and_settles_by_token(harness: Harness) -> None:
    job = await harness.start("a", payload=b'{"n":1}')
    assert await extend(harness, lease(job, 60_000), lease(job, token="other")) == ["ok", "lost"]
    assert await harness.settle(job, Outcome.COMPLETE, result=b"2") is Settled.OK
    assert await harness.settle(job, Outcome.COMPLETE, result=b"2") is Settled.ALREADY
    assert (await harness.get("a")).result == b"2"
