"""``expires_in`` and ``expires_total``: how long a job may wait, and how long all its attempts may take."""

from __future__ import annotations

import pytest

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import Dependency
from windlass.core.job import AttemptOutcome, EventType, JobRecord, JobRef
from windlass.core.limit_rules import GroupLimits, Rate
from windlass.core.option_values import StoredUnique
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome, Settled
from windlass.core.states import JobState
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, Harness
from windlass_conformance.needs import needs

TOTAL = StoredOptions(expires_total_ms=1_000)


async def scan(harness: Harness, limit: int = 1_000) -> list[str]:
    """Recover, and return the ids of jobs that have failed as expired."""
    return [ref.id for ref in (await harness.do(rq.Recover(limit=limit))).expired]


def end_of(job: JobRecord) -> tuple[JobState, str, int | None]:
    return job.state, job.reason, job.finished_ms


EXPIRED = (JobState.FAILED, "expired")


# --- expires_in: waiting, in every way ------------------------------------------------------------


@pytest.mark.feature("A35")
async def test_a_scan_ends_a_waiting_job_that_no_worker_claims(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=100)
    harness.pass_ms(99)
    assert await scan(harness) == []
    harness.pass_ms(1)
    assert await scan(harness) == ["a"]
    job = await harness.get("a")
    assert end_of(job) == (*EXPIRED, START_MS + 100)
    assert (job.attempts, job.deliveries, job.token, job.expires_ms) == (0, 0, None, None)
    assert await scan(harness) == []
    assert await harness.claim() == []


@pytest.mark.feature("A35")
async def test_a_scan_ends_a_job_that_waits_in_a_paused_queue(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=100)
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    harness.pass_ms(100)
    assert await scan(harness) == ["a"]
    assert await harness.counts() == {JobState.FAILED: 1}


@pytest.mark.feature("A35")
async def test_a_scan_ends_a_scheduled_job_before_it_is_due(harness: Harness) -> None:
    await harness.add("a", delay_ms=10_000, expires_in_ms=100)
    harness.pass_ms(100)
    assert await scan(harness) == ["a"]
    assert end_of(await harness.get("a")) == (*EXPIRED, START_MS + 100)
    harness.pass_ms(10_000)
    assert await harness.claim() == []
    assert (await harness.do(rq.Promote())).count == 0


@pytest.mark.feature("A35")
async def test_a_scan_finds_a_job_whose_delay_was_changed(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=100)
    await harness.do(rq.ChangeJob(ref=JobRef(QUEUE, "a"), delay_ms=5_000))
    await harness.add("b", delay_ms=50, expires_in_ms=100)
    await harness.do(rq.ChangeJob(ref=JobRef(QUEUE, "b"), priority=3))
    harness.pass_ms(60)
    await harness.do(rq.Promote())
    harness.pass_ms(40)
    assert sorted(await scan(harness)) == ["a", "b"]


@needs("groups")
@pytest.mark.feature("A35")
async def test_a_scan_ends_a_parked_job_and_its_group_goes_on(harness: Harness) -> None:
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=GroupLimits(concurrency=1)))
    group = StoredOptions(group="g")
    await harness.start("first", options=group)
    await harness.add("late", options=group, expires_in_ms=100)
    await harness.add("next", options=group)
    assert await harness.claim() == []
    assert await harness.state("late") is JobState.PARKED
    harness.pass_ms(100)
    assert await scan(harness) == ["late"]
    assert end_of(await harness.get("late")) == (*EXPIRED, START_MS + 100)
    job = await harness.get("first")
    await harness.settle(job, Outcome.COMPLETE)
    assert (await harness.take()).id == "next"


@needs("groups")
@pytest.mark.feature("A35")
async def test_a_scan_counts_right_when_one_end_lets_the_next_one_in(harness: Harness) -> None:
    rate = GroupLimits(rate=Rate(1, 50))
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=rate))
    group = StoredOptions(group="g")
    await harness.start("first", options=group)
    await harness.add_many("a", "b", "c", options=group, expires_in_ms=100)
    assert await harness.claim(3) == []
    assert await harness.counts() == {JobState.ACTIVE: 1, JobState.PARKED: 3}
    harness.pass_ms(100)
    assert "a" in await scan(harness)  # and those that the group's line shows behind it
    assert await harness.counts() == {JobState.ACTIVE: 1, JobState.FAILED: 3}
    assert await scan(harness) == []


@needs("flows")
@pytest.mark.feature("A35")
async def test_a_scan_ends_a_blocked_job_and_tells_those_that_wait_for_it(harness: Harness) -> None:
    await harness.do(
        rq.Add(
            jobs=[
                harness.new("top", depends_on=[Dependency(QUEUE, "middle")]),
                harness.new("middle", depends_on=[Dependency(QUEUE, "child")], expires_in_ms=100),
                harness.new("child", delay_ms=60_000),
            ]
        )
    )
    assert await harness.state("middle") is JobState.BLOCKED
    harness.pass_ms(100)
    assert await scan(harness) == ["middle"]
    await harness.do(fl.Relay())
    assert end_of(await harness.get("middle")) == (*EXPIRED, START_MS + 100)
    top = await harness.get("top")
    assert (top.state, top.reason) == (JobState.FAILED, "dependency_failed")
    assert await harness.state("child") is JobState.SCHEDULED


@needs("unique")
@pytest.mark.feature("A35")
async def test_a_job_that_a_scan_ends_frees_its_unique_key(harness: Harness) -> None:
    options = StoredOptions(unique=StoredUnique(key="k"))
    await harness.add("a", options=options, expires_in_ms=100)
    assert (await harness.add("b", options=options)).outcome is AddOutcome.DUPLICATE
    harness.pass_ms(100)
    assert await scan(harness) == ["a"]
    assert (await harness.add("b", options=options)).outcome is AddOutcome.QUEUED


@pytest.mark.feature("A35")
async def test_a_scan_covers_all_queues_in_the_order_of_their_times(harness: Harness) -> None:
    await harness.add("late", "one", expires_in_ms=300)
    await harness.add("early", "two", expires_in_ms=100)
    await harness.add("stays", "one", expires_in_ms=301)
    harness.pass_ms(300)
    assert await scan(harness) == ["early", "late"]


@pytest.mark.feature("A35")
async def test_one_scan_ends_no_more_jobs_than_its_limit(harness: Harness) -> None:
    for number in range(5):
        await harness.add(f"j{number}", expires_in_ms=10 + number)
    harness.pass_ms(20)
    assert await scan(harness, limit=2) == ["j0", "j1"]
    assert await scan(harness, limit=2) == ["j2", "j3"]
    assert await scan(harness) == ["j4"]


@pytest.mark.feature("A35")
async def test_an_end_by_a_scan_has_its_event_and_its_row_of_history(harness: Harness) -> None:
    await harness.add("a", delay_ms=10_000, expires_in_ms=100)
    harness.pass_ms(100)
    await scan(harness)
    event = await harness.last_event()
    assert (event.type, event.job_id, event.data["reason"]) == (EventType.FAILED, "a", "expired")
    (row,) = await harness.history()
    assert (row.outcome, row.attempt, row.finished_ms) == (AttemptOutcome.EXPIRED, 0, START_MS + 100)


@pytest.mark.feature("A35")
@pytest.mark.parametrize("outcome", [Outcome.RELEASE, Outcome.RETRY, Outcome.SNOOZE])
async def test_expires_in_does_not_touch_a_job_that_has_run(harness: Harness, outcome: Outcome) -> None:
    job = await harness.start("a", expires_in_ms=100)
    assert await harness.settle(job, outcome, delay_ms=5_000) is Settled.OK
    harness.pass_ms(4_999)
    assert await scan(harness) == []
    harness.pass_ms(1)
    assert (await harness.take()).id == "a"


@pytest.mark.feature("A35")
async def test_expires_in_does_not_touch_an_active_job(harness: Harness) -> None:
    job = await harness.start("a", expires_in_ms=100)
    assert job.expires_ms is None
    harness.pass_ms(100)
    assert await scan(harness) == []
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.OK


@pytest.mark.feature("A35")
@pytest.mark.parametrize("way", ["cancel", "remove", "complete"])
async def test_a_scan_leaves_alone_what_has_ended_or_is_gone(harness: Harness, way: str) -> None:
    await harness.add("a", expires_in_ms=100)
    if way == "cancel":
        await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")]))
    elif way == "remove":
        await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    else:
        await harness.settle(await harness.take(), Outcome.COMPLETE)
    before = await harness.counts()
    harness.pass_ms(100)
    assert await scan(harness) == []
    assert await harness.counts() == before


@pytest.mark.feature("A35")
async def test_an_id_added_again_is_not_ended_by_the_time_of_the_one_before(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=100)
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    await harness.add("a", delay_ms=10_000, request_id="again")
    harness.pass_ms(100)
    assert await scan(harness) == []
    assert await harness.state("a") is JobState.SCHEDULED


@pytest.mark.feature("A35")
async def test_what_expires_is_found_after_the_store_was_opened_again(harness: Harness) -> None:
    await harness.add("a", delay_ms=10_000, expires_in_ms=100)
    if not harness.backend.capabilities.durable:
        return
    await harness.reopen()
    harness.pass_ms(100)
    assert await scan(harness) == ["a"]


# --- expires_total: all attempts together -----------------------------------------------------------


@pytest.mark.feature("A35")
async def test_expires_total_ends_a_job_that_waits_for_its_next_attempt(harness: Harness) -> None:
    job = await harness.start("a", options=TOTAL)
    await harness.settle(job, Outcome.RETRY, delay_ms=60_000)
    harness.pass_ms(999)
    assert await scan(harness) == []
    harness.pass_ms(1)
    assert await scan(harness) == ["a"]
    job = await harness.get("a")
    assert end_of(job) == (*EXPIRED, START_MS + 1_000)
    assert (job.attempts, job.deliveries) == (1, 1)


@pytest.mark.feature("A35")
async def test_expires_total_ends_a_job_that_never_started(harness: Harness) -> None:
    await harness.add("a", options=TOTAL)
    assert (await harness.get("a")).expires_ms == START_MS + 1_000
    harness.pass_ms(1_000)
    assert await harness.claim() == []
    assert end_of(await harness.get("a")) == (*EXPIRED, START_MS + 1_000)


@pytest.mark.feature("A35")
async def test_the_shorter_of_both_times_ends_the_waiting(harness: Harness) -> None:
    await harness.add("a", options=TOTAL, expires_in_ms=100, delay_ms=60_000)
    await harness.add("b", options=TOTAL, expires_in_ms=2_000, delay_ms=60_000)
    assert (await harness.get("a")).expires_ms == START_MS + 100
    assert (await harness.get("b")).expires_ms == START_MS + 1_000
    harness.pass_ms(100)
    assert await scan(harness) == ["a"]
    harness.pass_ms(900)
    assert await scan(harness) == ["b"]


@pytest.mark.feature("A35")
async def test_a_job_that_has_run_keeps_its_total_and_loses_its_expires_in(harness: Harness) -> None:
    job = await harness.start("a", options=TOTAL, expires_in_ms=100)
    assert job.expires_ms == START_MS + 1_000
    await harness.settle(job, Outcome.RETRY, delay_ms=60_000)
    harness.pass_ms(100)
    assert await scan(harness) == []
    harness.pass_ms(900)
    assert await scan(harness) == ["a"]


@pytest.mark.feature("A35")
async def test_an_active_job_past_its_total_ends_as_its_worker_says(harness: Harness) -> None:
    job = await harness.start("a", options=TOTAL)
    harness.pass_ms(1_000)
    assert await scan(harness) == []
    assert await harness.settle(job, Outcome.COMPLETE, result=b"1") is Settled.OK
    assert (await harness.get("a")).state is JobState.COMPLETED


@pytest.mark.feature("A35")
@pytest.mark.parametrize("outcome", [Outcome.RELEASE, Outcome.RETRY, Outcome.SNOOZE])
async def test_an_active_job_past_its_total_is_not_started_again(harness: Harness, outcome: Outcome) -> None:
    job = await harness.start("a", options=TOTAL)
    harness.pass_ms(1_000)
    await harness.settle(job, outcome)
    assert await harness.claim() == []
    assert (await harness.get("a")).reason == "expired"


@pytest.mark.feature("A35", "J3")
async def test_a_job_taken_back_from_a_silent_worker_after_its_total_ends(harness: Harness) -> None:
    await harness.start("a", options=TOTAL)
    harness.pass_ms(LEASE_MS)
    recovered = await harness.do(rq.Recover())
    assert recovered.recovered == [JobRef(QUEUE, "a")]
    assert await harness.claim() == []
    job = await harness.get("a")
    assert (job.state, job.reason, job.stalls) == (*EXPIRED, 1)


@pytest.mark.feature("A35", "J3")
async def test_one_scan_takes_a_job_back_and_ends_it_when_its_total_has_passed(harness: Harness) -> None:
    await harness.start("a", "one", options=TOTAL)
    await harness.start("b", "two", options=TOTAL)
    harness.pass_ms(LEASE_MS)
    recovered = await harness.do(rq.Recover())
    refs = [JobRef("one", "a"), JobRef("two", "b")]
    assert (recovered.recovered, recovered.failed, recovered.expired) == (refs, [], refs)
    assert await harness.do(rq.Recover()) == rq.Recovered([], [])


@needs("signals")
@pytest.mark.feature("A35")
async def test_expires_total_ends_a_suspended_job(harness: Harness) -> None:
    job = await harness.start("a", options=TOTAL)
    await harness.settle(job, Outcome.SUSPEND, signal="go")
    harness.pass_ms(1_000)
    assert await scan(harness) == ["a"]
    assert await harness.counts() == {JobState.FAILED: 1}


@pytest.mark.feature("A35", "A25")
async def test_a_job_retried_by_hand_gets_its_total_anew(harness: Harness) -> None:
    await harness.add("a", options=TOTAL)
    harness.pass_ms(1_000)
    await scan(harness)
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "a")]))
    assert (await harness.get("a")).expires_ms == START_MS + 2_000
    harness.pass_ms(999)
    assert await scan(harness) == []
    job = await harness.take()
    await harness.settle(job, Outcome.RETRY, delay_ms=60_000)
    harness.pass_ms(1)
    assert await scan(harness) == ["a"]


@pytest.mark.feature("A35", "A25")
async def test_the_total_that_a_retry_by_hand_restarts_also_holds_after_the_first_start(
    harness: Harness,
) -> None:
    await harness.add("a", options=TOTAL)
    harness.pass_ms(1_000)
    await scan(harness)
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "a")]))
    job = await harness.take()
    assert job.expires_ms == START_MS + 2_000
    await harness.settle(job, Outcome.RETRY, delay_ms=60_000)
    harness.pass_ms(999)
    assert await scan(harness) == []
    harness.pass_ms(1)
    assert await scan(harness) == ["a"]
