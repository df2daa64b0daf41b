"""``Add``: new jobs, the answer for an id that exists, and ids that outlive their record."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from windlass.backend import requests as rq
from windlass.core.backoff import Backoff
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import new_id
from windlass.core.job import EventType, JobRecord, JobRef
from windlass.core.option_values import PRIORITY_MAX, PRIORITY_MIN, Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Changed, Outcome
from windlass.core.states import JobState
from windlass.errors import UnsupportedByBackendError
from windlass_conformance.harness import QUEUE, START_MS, Harness

FULL_OPTIONS = StoredOptions(
    max_attempts=7,
    backoff=Backoff(type="fixed", delay_ms=5, cap_ms=9, jitter=0.5),
    timeout_ms=1_000,
    lease_ms=2_000,
    max_stalls=4,
    stall_delay_ms=60,
    result_ttl_ms=3_000,
    keep_completed=Keep(1, 2),
    keep_failed=Keep(None, 3),
    tags=("red", "über"),
    keep_id_ms=4_000,
    backtrace=3,
    trace={"traceparent": "00-ab-cd-01"},
)


@pytest.mark.feature("A1", "A19", "L2")
async def test_an_added_job_waits_with_the_fields_it_was_given(harness: Harness) -> None:
    await harness.add("a", task="t", payload=b"[1]", priority=3, request_id="r", options=FULL_OPTIONS)
    job = await harness.get("a")
    assert job.seq > 0 and job.place > 0
    assert job == JobRecord(
        queue=QUEUE,
        id="a",
        task="t",
        payload=b"[1]",
        state=JobState.WAITING,
        priority=3,
        seq=job.seq,
        place=job.place,
        options=FULL_OPTIONS,
        request_id="r",
        enqueued_ms=START_MS,
        ready_ms=START_MS,
    )


@pytest.mark.feature("A1", "A2")
async def test_add_answers_queued_with_the_state_and_time_of_the_add(harness: Harness) -> None:
    assert await harness.add("a") == rq.Added(AddOutcome.QUEUED, JobState.WAITING, START_MS)


@pytest.mark.feature("A1", "A2")
async def test_adds_of_many_callers_at_the_same_time_each_count_once(harness: Harness) -> None:
    """The ids are like those of queues: some stores add such jobs in fewer steps."""
    await harness.add("first")
    ids = [new_id() for _ in range(60)]
    adds = (harness.add(job_id, task=f"t{n}", payload=b"[%d]" % n) for n, job_id in enumerate(ids))
    answers = await asyncio.gather(*adds)
    assert {added.outcome for added in answers} == {AddOutcome.QUEUED}
    assert await harness.counts() == {JobState.WAITING: 61}
    jobs = [await harness.get(job_id) for job_id in ids]
    assert [(job.task, job.payload) for job in jobs] == [(f"t{n}", b"[%d]" % n) for n in range(60)]
    enqueued = [event.job_id for event in await harness.events() if event.type is EventType.ENQUEUED]
    assert sorted(enqueued) == sorted(["first", *ids])
    claimed = await harness.claim(limit=100)
    assert sorted(job.id for job in claimed) == sorted(["first", *ids])


@pytest.mark.feature("A8", "B1")
async def test_a_delayed_job_is_scheduled_for_add_time_plus_delay(harness: Harness) -> None:
    added = await harness.add("a", delay_ms=500)
    assert added == rq.Added(AddOutcome.QUEUED, JobState.SCHEDULED, START_MS, START_MS + 500)
    job = await harness.get("a")
    assert (job.state, job.due_ms, job.ready_ms) == (JobState.SCHEDULED, START_MS + 500, START_MS + 500)


@pytest.mark.feature("A8", "B4")
async def test_run_at_in_the_future_schedules_for_that_instant(harness: Harness) -> None:
    await harness.add("a", run_at_ms=START_MS + 1)
    job = await harness.get("a")
    assert (job.state, job.due_ms) == (JobState.SCHEDULED, START_MS + 1)


@pytest.mark.feature("A8")
@pytest.mark.parametrize("ago_ms", [0, 1, START_MS])
async def test_run_at_that_has_passed_is_ready_now(harness: Harness, ago_ms: int) -> None:
    await harness.add("a", run_at_ms=START_MS - ago_ms)
    job = await harness.get("a")
    assert (job.state, job.due_ms, job.ready_ms) == (JobState.WAITING, None, START_MS)


@pytest.mark.feature("A5", "L2")
async def test_a_batch_is_answered_per_item_in_order(harness: Harness) -> None:
    await harness.add("b")
    answers = await harness.do(
        rq.Add(
            jobs=[
                harness.new("a"),
                harness.new("b"),
                harness.new("c", delay_ms=60_000),
                harness.new("a", "other"),
            ]
        )
    )
    assert [(answer.outcome, answer.state) for answer in answers] == [
        (AddOutcome.QUEUED, JobState.WAITING),
        (AddOutcome.DUPLICATE, JobState.WAITING),
        (AddOutcome.QUEUED, JobState.SCHEDULED),
        (AddOutcome.QUEUED, JobState.WAITING),
    ]


@pytest.mark.feature("A5")
async def test_an_empty_batch_answers_nothing(harness: Harness) -> None:
    assert await harness.do(rq.Add(jobs=[])) == []


@pytest.mark.feature("A5")
async def test_a_thousand_jobs_are_added_in_one_step_and_keep_their_order(harness: Harness) -> None:
    ids = [f"j{n}" for n in range(1_000)]
    await harness.add_many(*ids)
    assert await harness.counts() == {JobState.WAITING: 1_000}
    assert await harness.order() == ids


@pytest.mark.feature("A6")
async def test_ids_are_unique_within_a_queue_only(harness: Harness) -> None:
    await harness.add("a", "one", payload=b"1")
    added = await harness.add("a", "two", payload=b"2")
    assert added.outcome is AddOutcome.QUEUED
    assert (await harness.get("a", "one")).payload == b"1"
    assert (await harness.get("a", "two")).payload == b"2"


@pytest.mark.feature("A6", "A7")
@pytest.mark.parametrize("job_id", ["0", "A-Z_a.z", "." * 256, "-", "018f" * 8, "x" * 256])
async def test_every_legal_id_is_kept_as_it_is(harness: Harness, job_id: str) -> None:
    await harness.add(job_id)
    assert (await harness.get(job_id)).id == job_id


@pytest.mark.feature("A6")
async def test_ids_that_differ_only_in_case_are_two_jobs(harness: Harness) -> None:
    await harness.add_many("job", "JOB")
    assert await harness.order() == ["job", "JOB"]


@pytest.mark.feature("A19", "W1")
@pytest.mark.parametrize(
    "payload", [b"", b"\x00", bytes(range(256)), b'{"a": 1}', "é".encode(), b"x" * 1_000_000]
)
async def test_payload_bytes_come_back_untouched(harness: Harness, payload: bytes) -> None:
    await harness.add("a", payload=payload, codec="own")
    job = await harness.take()
    assert (job.payload, job.codec) == (payload, "own")


@pytest.mark.feature("A19")
@pytest.mark.parametrize("task", ["t", "a:b", "sp ace", "日本語", "%_*?[]'\"", "x" * 256])
async def test_task_names_come_back_untouched(harness: Harness, task: str) -> None:
    await harness.add("a", task=task)
    assert (await harness.get("a")).task == task


@pytest.mark.feature("A9", "G2")
@pytest.mark.parametrize("priority", [PRIORITY_MIN, -1, 0, 1, PRIORITY_MAX])
async def test_the_whole_range_of_priorities_is_kept(harness: Harness, priority: int) -> None:
    await harness.add("a", priority=priority)
    assert (await harness.get("a")).priority == priority


@pytest.mark.feature("A35")
async def test_expiry_counts_from_the_add(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=250, delay_ms=100)
    assert (await harness.get("a")).expires_ms == START_MS + 250


async def test_without_a_time_in_the_request_the_store_takes_its_own(harness: Harness) -> None:
    before = SYSTEM_CLOCK.now_ms()
    (added,) = await harness.backend.execute(rq.Add(jobs=[harness.new("a")]))
    assert before - 5_000 <= added.enqueued_ms <= SYSTEM_CLOCK.now_ms() + 5_000


# --- an id that is already there ------------------------------------------------------------------


@pytest.mark.feature("A2", "D1", "D2")
async def test_a_waiting_job_answers_duplicate_with_its_record(harness: Harness) -> None:
    await harness.add("a", payload=b"1")
    before = await harness.get("a")
    harness.pass_ms(10)
    added = await harness.add("a", payload=b"2", priority=9)
    assert added == rq.Added(AddOutcome.DUPLICATE, JobState.WAITING, START_MS, None, before)


@pytest.mark.feature("A2", "D1")
async def test_a_scheduled_job_answers_duplicate_with_its_due_time(harness: Harness) -> None:
    await harness.add("a", delay_ms=500)
    added = await harness.add("a")
    assert (added.outcome, added.state, added.due_ms) == (
        AddOutcome.DUPLICATE,
        JobState.SCHEDULED,
        START_MS + 500,
    )


@pytest.mark.feature("A2", "D1")
async def test_an_active_job_answers_duplicate(harness: Harness) -> None:
    await harness.start("a")
    added = await harness.add("a")
    assert (added.outcome, added.state) == (AddOutcome.DUPLICATE, JobState.ACTIVE)


@pytest.mark.feature("A2", "D1")
async def test_a_retrying_job_answers_duplicate(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.RETRY, delay_ms=60_000)
    added = await harness.add("a")
    assert (added.outcome, added.state) == (AddOutcome.DUPLICATE, JobState.RETRYING)


@pytest.mark.feature("A2", "D1")
async def test_a_duplicate_leaves_the_job_as_it_was(harness: Harness) -> None:
    await harness.start("a")
    before = await harness.get("a")
    harness.pass_ms(10)
    await harness.add("a", payload=b"new", priority=5, delay_ms=5)
    assert await harness.get("a") == before


@pytest.mark.feature("A2")
async def test_the_same_id_twice_in_one_batch_is_added_once(harness: Harness) -> None:
    answers = await harness.do(rq.Add(jobs=[harness.new("a", payload=b"1"), harness.new("a", payload=b"2")]))
    assert [answer.outcome for answer in answers] == [AddOutcome.QUEUED, AddOutcome.DUPLICATE]
    assert (await harness.get("a")).payload == b"1"


@pytest.mark.feature("D2", "E4", "E5")
async def test_a_completed_job_answers_cached_with_its_result(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.COMPLETE, result=b'"done"')
    added = await harness.add("a")
    assert (added.outcome, added.state) == (AddOutcome.CACHED, JobState.COMPLETED)
    assert added.record is not None and added.record.result == b'"done"'


@pytest.mark.feature("D2", "E4")
async def test_a_completed_job_without_a_result_still_answers_cached(harness: Harness) -> None:
    await harness.finish("a")
    added = await harness.add("a")
    assert added.outcome is AddOutcome.CACHED
    assert added.record is not None and added.record.result is None


@pytest.mark.feature("D2", "E5")
async def test_a_cached_answer_lasts_until_the_result_ttl_and_no_longer(harness: Harness) -> None:
    await harness.finish("a", options=StoredOptions(result_ttl_ms=1_000))
    harness.pass_ms(999)
    assert (await harness.add("a")).outcome is AddOutcome.CACHED
    harness.pass_ms(1)
    assert (await harness.add("a")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("E5")
async def test_results_are_cached_for_one_hour_unless_told_otherwise(harness: Harness) -> None:
    await harness.finish("a")
    harness.pass_ms(3_599_999)
    assert (await harness.add("a")).outcome is AddOutcome.CACHED
    harness.pass_ms(1)
    assert (await harness.add("a")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("D2", "D7")
@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.CANCEL])
async def test_a_failed_or_cancelled_job_makes_way_for_a_new_one(harness: Harness, outcome: Outcome) -> None:
    old = await harness.finish("a", outcome, payload=b"old")
    harness.pass_ms(10)
    added = await harness.add("a", payload=b"new")
    assert added == rq.Added(AddOutcome.QUEUED, JobState.WAITING, START_MS + 10)
    job = await harness.get("a")
    assert (job.payload, job.attempts, job.deliveries, job.errors) == (b"new", 0, 0, [])
    assert job.finished_ms is None and job.seq > old.seq


@pytest.mark.feature("D2")
async def test_a_cancelled_pending_job_makes_way_for_a_new_one(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")]))
    assert (await harness.add("a")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("D2", "A35")
async def test_an_expired_job_makes_way_for_a_new_one(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=1)
    harness.pass_ms(1)
    assert await harness.claim() == []
    assert (await harness.add("a")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("D2")
async def test_the_new_job_is_told_from_the_one_it_replaced_by_its_add_time(harness: Harness) -> None:
    old = await harness.finish("a", Outcome.FAIL)
    await harness.add("a")
    assert (await harness.get("a")).enqueued_ms > old.enqueued_ms


@pytest.mark.feature("D2", "J24")
async def test_a_token_of_the_replaced_job_has_no_power_over_the_new_one(harness: Harness) -> None:
    old = await harness.start("a")
    await harness.settle(old, Outcome.FAIL)
    await harness.add("a")
    before = await harness.get("a")
    assert await harness.settle(old, Outcome.COMPLETE) != "ok"
    assert await harness.get("a") == before


# --- keep_id --------------------------------------------------------------------------------------

KEPT = StoredOptions(keep_id_ms=100_000)


@pytest.mark.feature("D7")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL, Outcome.CANCEL])
async def test_a_kept_id_answers_duplicate_however_its_job_ended(harness: Harness, outcome: Outcome) -> None:
    await harness.finish("a", outcome, options=KEPT)
    added = await harness.add("a")
    assert added.outcome is AddOutcome.DUPLICATE
    assert added.record == await harness.get("a")


@pytest.mark.feature("D7")
async def test_a_kept_id_outlives_its_removed_record(harness: Harness) -> None:
    await harness.add("a", options=KEPT)
    removed = await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    assert removed[0].status is Changed.OK
    assert await harness.add("a") == rq.Added(AddOutcome.DUPLICATE, None)
    assert await harness.find("a") is None


@pytest.mark.feature("D7", "A13")
async def test_a_kept_id_outlives_its_pruned_record(harness: Harness) -> None:
    options = StoredOptions(keep_id_ms=500_000, result_ttl_ms=0, keep_completed=Keep(0, 0))
    await harness.finish("a", options=options)
    harness.pass_ms(400_000)
    await harness.do(rq.Prune())
    assert await harness.find("a") is None
    assert (await harness.add("a")).outcome is AddOutcome.DUPLICATE


@pytest.mark.feature("D7")
async def test_a_kept_id_outlives_a_purged_record(harness: Harness) -> None:
    await harness.add("a", options=KEPT)
    await harness.do(rq.Purge(queue=QUEUE, states=[JobState.WAITING], forget=True))
    assert (await harness.add("a")).outcome is AddOutcome.DUPLICATE


@pytest.mark.feature("D7")
async def test_an_id_is_kept_from_its_add_and_not_a_moment_longer(harness: Harness) -> None:
    await harness.add("a", options=KEPT)
    harness.pass_ms(50_000)
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    harness.pass_ms(49_999)
    assert (await harness.add("a")).outcome is AddOutcome.DUPLICATE
    harness.pass_ms(1)
    assert (await harness.add("a")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("D7")
async def test_a_kept_id_binds_only_its_own_queue(harness: Harness) -> None:
    await harness.add("a", options=KEPT)
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    assert (await harness.add("a", "other")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("D7")
async def test_an_id_without_keep_id_is_free_once_its_record_is_gone(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    assert (await harness.add("a")).outcome is AddOutcome.QUEUED


# --- the store as a whole -------------------------------------------------------------------------


@pytest.mark.feature("L15")
async def test_two_namespaces_never_meet(harness: Harness) -> None:
    await harness.add("a")
    stranger = await harness.stranger()
    now_ms = harness.now_ms
    assert await stranger.execute(rq.GetJobs(refs=[JobRef(QUEUE, "a")], now_ms=now_ms)) == [None]
    assert await stranger.execute(rq.ListQueues(now_ms=now_ms)) == []
    claimed = await stranger.execute(
        rq.Claim(worker="x", queues=[rq.ClaimQueue(QUEUE, 9, 9)], limit=9, claim_id="x", now_ms=now_ms)
    )
    assert claimed.jobs == []
    assert await stranger.execute(rq.ReadCounters(now_ms=now_ms)) == []


@pytest.mark.feature("L1")
async def test_what_was_added_is_there_after_reopening(harness: Harness) -> None:
    await harness.add("a", options=FULL_OPTIONS, delay_ms=60_000)
    before = await harness.get("a")
    await harness.reopen()
    assert await harness.get("a") == before


@pytest.mark.feature("L1")
async def test_open_and_close_may_be_repeated(harness: Harness) -> None:
    client = await harness.clone()
    await client.open()
    await client.close()
    await client.close()
    await harness.add("a")
    assert await harness.counts() == {JobState.WAITING: 1}


@pytest.mark.feature("L1", "L15")
async def test_a_clone_sees_the_same_store(harness: Harness) -> None:
    await harness.add("a")
    clone = await harness.clone()
    found = await clone.execute(rq.GetJobs(refs=[JobRef(QUEUE, "a")], now_ms=harness.now_ms))
    assert found == [await harness.get("a")]


async def test_a_backend_has_the_name_of_its_url(harness: Harness) -> None:
    assert harness.backend.name == harness.name


async def test_a_capability_that_is_not_declared_is_refused_by_its_name(harness: Harness) -> None:
    capabilities = harness.backend.capabilities
    for field in dataclasses.fields(capabilities):
        if getattr(capabilities, field.name):
            capabilities.require(harness.name, field.name)
            continue
        with pytest.raises(UnsupportedByBackendError) as caught:
            capabilities.require(harness.name, field.name)
        assert (caught.value.backend, caught.value.capability) == (
            harness.name,
            field.name.replace("_", " "),
        )
