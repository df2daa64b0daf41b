"""``Claim``: which jobs are leased, in which order, and what leasing does to them."""

from __future__ import annotations

import asyncio
import random

import pytest

from windlass.backend import requests as rq
from windlass.core.job import JobRef
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, WORKER, Harness
from windlass_conformance.needs import needs


@pytest.mark.feature("J1", "J5", "J6")
async def test_a_claimed_job_is_active_and_belongs_to_the_worker(harness: Harness) -> None:
    await harness.add("a")
    before = await harness.get("a")
    harness.pass_ms(7)
    job = await harness.take()
    assert job.token
    before.state = JobState.ACTIVE
    before.token = job.token
    before.worker = WORKER
    before.started_ms = START_MS + 7
    before.lease_until_ms = START_MS + 7 + LEASE_MS
    before.deliveries = 1
    assert job == before


@pytest.mark.feature("J5")
async def test_the_claimed_record_is_the_stored_record(harness: Harness) -> None:
    job = await harness.start("a")
    assert await harness.get("a") == job


@pytest.mark.feature("J24")
async def test_every_token_begins_with_the_claim_id_and_is_unique(harness: Harness) -> None:
    await harness.add_many(*(f"j{n}" for n in range(30)))
    tokens = []
    for claim_id in ("one", "two", "three"):
        jobs = await harness.claim(10, claim_id=claim_id)
        assert all(job.token is not None and job.token.startswith(claim_id) for job in jobs)
        tokens += [job.token for job in jobs]
    assert len(set(tokens)) == 30


@pytest.mark.feature("J3")
async def test_a_jobs_own_lease_overrules_the_claims(harness: Harness) -> None:
    await harness.add("a", options=StoredOptions(lease_ms=5_000))
    job = await harness.take(lease_ms=60_000)
    assert job.lease_until_ms == START_MS + 5_000


@pytest.mark.feature("J5", "C18")
async def test_every_claim_counts_as_a_delivery(harness: Harness) -> None:
    await harness.add("a")
    for delivery in (1, 2, 3):
        job = await harness.take()
        assert (job.deliveries, job.attempts) == (delivery, 0)
        await harness.settle(job, Outcome.RELEASE)


@pytest.mark.feature("A22")
async def test_a_new_attempt_begins_without_the_progress_of_the_last(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.do(rq.Report(ref=job.ref, token=job.token, progress=b"50"))
    await harness.settle(job, Outcome.RELEASE)
    assert (await harness.take()).progress is None


async def test_a_claim_on_an_empty_queue_gives_nothing(harness: Harness) -> None:
    assert await harness.do(harness.claim_request()) == rq.Claimed([], START_MS, None)


async def test_a_claim_does_not_make_an_unknown_queue_known(harness: Harness) -> None:
    await harness.claim(queue="nowhere")
    assert await harness.do(rq.ListQueues()) == []


async def test_a_claim_answers_with_the_stores_time(harness: Harness) -> None:
    harness.pass_ms(123)
    assert (await harness.do(harness.claim_request())).now_ms == START_MS + 123


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.feature("G1", "G5")
async def test_equal_priorities_run_in_order_of_arrival(harness: Harness) -> None:
    ids = [f"j{n}" for n in (5, 3, 9, 1, 7)]
    for job_id in ids:
        await harness.add(job_id)
    assert await harness.order() == ids


@needs("exact_priority")
@pytest.mark.feature("A9", "G1", "G2")
async def test_higher_priorities_run_first_and_negative_ones_after_the_default(harness: Harness) -> None:
    for job_id, priority in [("low", -5), ("plain", 0), ("high", 5), ("top", 1_000_000), ("last", -(2**20))]:
        await harness.add(job_id, priority=priority)
    assert await harness.order() == ["top", "high", "plain", "low", "last"]


@needs("exact_priority")
@pytest.mark.feature("A9", "G1", "G2")
async def test_fifty_priorities_in_random_order_come_out_sorted_and_stable(harness: Harness) -> None:
    rng = random.Random(7)
    priorities = [rng.choice(range(-25, 25)) * 17 for _ in range(500)]
    await harness.do(rq.Add(jobs=[harness.new(f"j{n}", priority=p) for n, p in enumerate(priorities)]))
    assert len(set(priorities)) == 50
    wanted = sorted(range(500), key=lambda n: (-priorities[n], n))
    assert await harness.order() == [f"j{n}" for n in wanted]


@needs("priority")
@pytest.mark.feature("A9", "G1")
async def test_an_urgent_latecomer_overtakes_the_backlog(harness: Harness) -> None:
    await harness.add_many(*(f"j{n}" for n in range(20)))
    await harness.claim(5)
    await harness.add("urgent", priority=1)
    assert (await harness.take()).id == "urgent"


@needs("priority")
@pytest.mark.feature("A9", "B1")
async def test_a_promoted_job_obeys_its_priority_too(harness: Harness) -> None:
    await harness.add("plain")
    await harness.add("urgent", priority=1, delay_ms=10)
    harness.pass_ms(10)
    assert await harness.order() == ["urgent", "plain"]


# --- limit, share, cap ----------------------------------------------------------------------------


@pytest.mark.feature("J2", "H1")
async def test_no_more_than_the_limit_is_leased(harness: Harness) -> None:
    await harness.add_many("a", "b", "c")
    assert [job.id for job in await harness.claim(2)] == ["a", "b"]
    assert await harness.counts() == {JobState.ACTIVE: 2, JobState.WAITING: 1}


@pytest.mark.feature("J2")
async def test_a_claim_for_nothing_leases_nothing(harness: Harness) -> None:
    await harness.add("a")
    assert await harness.claim(0) == []
    assert await harness.state("a") is JobState.WAITING


async def _three_queues(harness: Harness, count: int = 5) -> None:
    for queue in ("x", "y", "z"):
        await harness.add_many(*(f"{queue}{n}" for n in range(count)), queue=queue)


async def _claimed(harness: Harness, limit: int, *queues: tuple[str, int, int]) -> list[str]:
    request = harness.claim_request(*(rq.ClaimQueue(*queue) for queue in queues), limit=limit)
    return [job.id for job in (await harness.do(request)).jobs]


@pytest.mark.feature("G4", "J12", "J16")
async def test_each_queue_first_gives_its_share_in_the_order_of_the_request(harness: Harness) -> None:
    await _three_queues(harness)
    wanted = ["z0", "z1", "x0", "y0", "y1", "y2"]
    assert await _claimed(harness, 6, ("z", 2, 2), ("x", 1, 1), ("y", 3, 3)) == wanted


@pytest.mark.feature("G4", "J12")
async def test_a_second_round_fills_up_to_the_caps(harness: Harness) -> None:
    await _three_queues(harness, 3)
    wanted = ["x0", "y0", "x1", "x2", "y1"]
    assert await _claimed(harness, 10, ("x", 1, 3), ("y", 1, 2)) == wanted


@pytest.mark.feature("G4", "J12")
async def test_a_second_round_goes_on_behind_a_job_with_an_end(harness: Harness) -> None:
    await harness.add("first", expires_in_ms=60_000)
    await harness.add_many("second", "third")
    assert await _claimed(harness, 3, (QUEUE, 1, 3)) == ["first", "second", "third"]


@pytest.mark.feature("G4", "J12")
async def test_a_cap_holds_although_there_is_room(harness: Harness) -> None:
    await _three_queues(harness)
    assert await _claimed(harness, 100, ("x", 1, 2), ("y", 0, 1)) == ["x0", "x1", "y0"]


@pytest.mark.feature("G4", "J12")
async def test_a_queue_without_a_share_gives_only_what_others_leave(harness: Harness) -> None:
    await _three_queues(harness)
    assert await _claimed(harness, 3, ("x", 0, 5), ("y", 2, 5)) == ["y0", "y1", "x0"]


@pytest.mark.feature("G4")
async def test_the_limit_ends_the_first_round(harness: Harness) -> None:
    await _three_queues(harness)
    assert await _claimed(harness, 3, ("x", 2, 5), ("y", 2, 5), ("z", 2, 5)) == ["x0", "x1", "y0"]


@pytest.mark.feature("G4")
async def test_an_empty_queue_leaves_its_share_to_the_others(harness: Harness) -> None:
    await harness.add_many("y0", "y1", "y2", queue="y")
    assert await _claimed(harness, 3, ("x", 2, 2), ("y", 1, 3)) == ["y0", "y1", "y2"]


@pytest.mark.feature("G4")
async def test_an_empty_queue_without_a_share_does_not_keep_the_next_one_back(harness: Harness) -> None:
    await harness.add_many("z0", "z1", queue="z")
    assert await _claimed(harness, 3, ("x", 1, 3), ("y", 0, 3), ("z", 0, 3)) == ["z0", "z1"]


@pytest.mark.feature("G4")
async def test_the_order_of_queues_stands_above_the_priority_of_jobs(harness: Harness) -> None:
    await harness.add("x0", "x")
    await harness.add("y0", "y", priority=100)
    assert await _claimed(harness, 2, ("x", 1, 1), ("y", 1, 1)) == ["x0", "y0"]


@pytest.mark.feature("J12")
async def test_tokens_are_unique_across_the_queues_of_one_claim(harness: Harness) -> None:
    await _three_queues(harness)
    request = harness.claim_request(*(rq.ClaimQueue(q, 2, 4) for q in ("x", "y", "z")), limit=12)
    jobs = (await harness.do(request)).jobs
    assert len({job.token for job in jobs}) == len(jobs) == 12


@pytest.mark.feature("J12")
async def test_queues_that_are_not_named_keep_their_jobs(harness: Harness) -> None:
    await _three_queues(harness)
    await _claimed(harness, 100, ("x", 100, 100))
    assert await harness.counts("y") == {JobState.WAITING: 5}


# --- pause ----------------------------------------------------------------------------------------


@pytest.mark.feature("H10")
async def test_a_paused_queue_gives_nothing_and_its_jobs_keep_their_state(harness: Harness) -> None:
    await harness.add_many("a", "b")
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    assert await harness.claim(5) == []
    assert await harness.counts() == {JobState.WAITING: 2}


@pytest.mark.feature("H10")
async def test_a_paused_queue_does_not_hold_up_the_others(harness: Harness) -> None:
    await _three_queues(harness)
    await harness.do(rq.PauseQueue(queue="x", paused=True))
    assert await _claimed(harness, 4, ("x", 2, 4), ("y", 2, 4)) == ["y0", "y1", "y2", "y3"]


@needs("priority")
@pytest.mark.feature("H10")
async def test_a_resumed_queue_gives_its_jobs_in_their_old_order(harness: Harness) -> None:
    await harness.add_many("a", "b")
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    await harness.add("c", priority=1)
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=False))
    assert await harness.order() == ["c", "a", "b"]


@pytest.mark.feature("H10")
async def test_a_queue_can_be_paused_before_its_first_job(harness: Harness) -> None:
    assert await harness.do(rq.PauseQueue(queue=QUEUE, paused=True)) is True
    await harness.add("a")
    assert await harness.claim() == []


# --- due jobs -------------------------------------------------------------------------------------


@pytest.mark.feature("A8", "B1", "B5")
async def test_nothing_runs_before_its_time(harness: Harness) -> None:
    await harness.add("a", delay_ms=1_000)
    harness.pass_ms(999)
    assert await harness.claim() == []
    harness.pass_ms(1)
    assert (await harness.take()).id == "a"


@pytest.mark.feature("B1", "B3", "B5")
async def test_a_claim_promotes_due_jobs_by_itself_in_order_of_their_due_time(harness: Harness) -> None:
    for job_id, delay_ms in [("c", 300), ("a", 100), ("b", 200), ("d", 300)]:
        await harness.add(job_id, delay_ms=delay_ms)
    harness.pass_ms(1_000)
    assert await harness.order() == ["a", "b", "c", "d"]


@pytest.mark.feature("B1")
async def test_promoted_jobs_join_behind_those_that_already_wait(harness: Harness) -> None:
    await harness.add("later", delay_ms=100)
    await harness.add("now")
    harness.pass_ms(100)
    assert await harness.order() == ["now", "later"]


@pytest.mark.feature("B1", "B5")
async def test_one_claim_promotes_at_most_a_thousand_jobs(harness: Harness) -> None:
    await harness.add_many(*(f"j{n}" for n in range(1_200)), delay_ms=10)
    harness.pass_ms(10)
    claimed = await harness.do(harness.claim_request(limit=5))
    assert [job.id for job in claimed.jobs] == [f"j{n}" for n in range(5)]
    assert await harness.counts() == {
        JobState.ACTIVE: 5,
        JobState.WAITING: 995,
        JobState.SCHEDULED: 200,
    }
    assert claimed.next_due_in_ms == 0


@pytest.mark.feature("B1")
async def test_a_claim_leaves_due_jobs_of_other_queues_alone(harness: Harness) -> None:
    await harness.add("a", "other", delay_ms=10)
    harness.pass_ms(10)
    await harness.claim(5)
    assert await harness.state("a", "other") is JobState.SCHEDULED


@pytest.mark.feature("B1", "B3")
async def test_a_claim_says_how_long_until_the_next_job_is_due(harness: Harness) -> None:
    await harness.add("a", "x", delay_ms=700)
    await harness.add("b", "y", delay_ms=300)
    await harness.add("c", "z", delay_ms=100)
    harness.pass_ms(50)
    both = harness.claim_request(rq.ClaimQueue("x", 1, 1), rq.ClaimQueue("y", 1, 1))
    assert (await harness.do(both)).next_due_in_ms == 250


@pytest.mark.feature("B1")
async def test_a_promoted_job_no_longer_counts_as_due(harness: Harness) -> None:
    await harness.add("a", delay_ms=10)
    harness.pass_ms(10)
    claimed = await harness.do(harness.claim_request())
    assert (len(claimed.jobs), claimed.next_due_in_ms) == (1, None)


@pytest.mark.feature("B1")
async def test_a_cancelled_job_no_longer_counts_as_due(harness: Harness) -> None:
    await harness.add("a", delay_ms=60_000)
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")]))
    assert (await harness.do(harness.claim_request())).next_due_in_ms is None


@pytest.mark.feature("B1", "B2")
async def test_a_job_years_ahead_is_never_lost(harness: Harness) -> None:
    await harness.add("a", delay_ms=10 * 366 * 86_400_000)
    harness.pass_ms(9 * 366 * 86_400_000)
    await harness.do(rq.Prune())
    assert await harness.claim() == []
    harness.pass_ms(366 * 86_400_000)
    assert (await harness.take()).id == "a"


# --- expires_in -----------------------------------------------------------------------------------


@pytest.mark.feature("A35")
async def test_a_job_not_started_in_time_fails_as_expired(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=100)
    harness.pass_ms(100)
    assert await harness.claim() == []
    job = await harness.get("a")
    assert (job.state, job.reason, job.finished_ms) == (JobState.FAILED, "expired", START_MS + 100)
    assert (job.attempts, job.deliveries, job.token) == (0, 0, None)


@pytest.mark.feature("A35")
async def test_a_job_started_in_the_last_moment_runs(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=100)
    harness.pass_ms(99)
    assert (await harness.take()).id == "a"


@pytest.mark.feature("A35")
async def test_expired_jobs_do_not_use_up_the_limit(harness: Harness) -> None:
    await harness.add_many("a", "b", expires_in_ms=10)
    await harness.add("c")
    harness.pass_ms(10)
    assert (await harness.take()).id == "c"
    assert await harness.counts() == {JobState.FAILED: 2, JobState.ACTIVE: 1}


@pytest.mark.feature("A35")
async def test_one_claim_ends_at_most_a_thousand_expired_jobs_per_round(harness: Harness) -> None:
    await harness.add_many(*(f"j{n}" for n in range(2_500)), expires_in_ms=10)
    harness.pass_ms(10)
    assert await harness.claim() == []
    assert await harness.counts() == {JobState.FAILED: 2_000, JobState.WAITING: 500}
    assert await harness.claim() == []
    assert await harness.counts() == {JobState.FAILED: 2_500}


@pytest.mark.feature("A35")
async def test_a_job_that_was_started_once_does_not_expire_any_more(harness: Harness) -> None:
    job = await harness.start("a", expires_in_ms=100)
    await harness.settle(job, Outcome.RELEASE)
    harness.pass_ms(100)
    assert (await harness.take()).id == "a"


@pytest.mark.feature("A35")
async def test_an_expired_job_retried_by_hand_runs(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=100)
    harness.pass_ms(100)
    await harness.claim()
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "a")]))
    assert (await harness.take()).id == "a"


@pytest.mark.feature("A35")
async def test_a_delayed_job_that_expires_before_it_is_due_never_runs(harness: Harness) -> None:
    await harness.add("a", delay_ms=200, expires_in_ms=100)
    harness.pass_ms(200)
    assert await harness.claim() == []
    assert (await harness.get("a")).reason == "expired"


# --- many at once ---------------------------------------------------------------------------------


@pytest.mark.feature("J17", "J24")
async def test_claims_at_the_same_time_never_share_a_job(harness: Harness) -> None:
    ids = [f"j{n}" for n in range(200)]
    await harness.add_many(*ids)
    clients = [harness.backend, await harness.clone(), await harness.clone()]
    requests = [harness.claim_request(limit=7, worker=f"w{n}") for n in range(45)]
    for request in requests:
        request.now_ms = harness.now_ms
    answers = await asyncio.gather(*(clients[n % 3].execute(request) for n, request in enumerate(requests)))
    taken = [job.id for answer in answers for job in answer.jobs]
    assert sorted(taken) == sorted(ids)


@pytest.mark.feature("J17", "L2")
async def test_clients_in_other_threads_claim_each_job_once(harness: Harness) -> None:
    ids = [f"j{n}" for n in range(100)]
    await harness.add_many(*ids)

    def drain(worker: str) -> list[str]:
        return asyncio.run(_drain(harness, worker))

    taken = await asyncio.gather(*(asyncio.to_thread(drain, f"w{n}") for n in range(3)))
    assert sorted(job_id for part in taken for job_id in part) == sorted(ids)


async def test_a_claim_that_names_no_queue_gets_no_job(harness: Harness) -> None:
    await harness.add("a")
    request = rq.Claim(worker="w1", queues=[], limit=1, claim_id="c")
    claimed = await harness.do(request)
    assert (claimed.jobs, claimed.next_due_in_ms) == ([], None)
    assert await harness.state("a") is JobState.WAITING


async def _drain(harness: Harness, worker: str) -> list[str]:
    client = harness.backend.clone()
    await client.open()
    found: list[str] = []
    try:
        while True:
            request = rq.Claim(
                worker=worker,
                queues=[rq.ClaimQueue(QUEUE, 3, 3)],
                limit=3,
                claim_id=f"{worker}.{len(found)}",
                now_ms=harness.now_ms,
            )
            jobs = (await client.execute(request)).jobs
            if not jobs:
                return found
            found += [job.id for job in jobs]
    finally:
        await client.close()
