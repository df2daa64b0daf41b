"""Stubs: what remains of a job whose record is removed when it completes, for repeats and waiting callers."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import Dependency, EdgeStatus
from windlass.core.job import EventType, JobRecord, JobRef
from windlass.core.limit_rules import GroupLimits
from windlass.core.option_values import Keep, StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Changed, Outcome, Settled
from windlass.core.states import JobState
from windlass.core.stubs import STUB_MS, STUBS_KEPT
from windlass_conformance.harness import QUEUE, START_MS, Harness, settlement
from windlass_conformance.needs import needs

GONE = StoredOptions(keep_completed=Keep(0, 0), result_ttl_ms=0)


async def complete(harness: Harness, job_id: str = "a", **fields: Any) -> JobRecord:
    """Complete a job whose record is then removed; return it as it was claimed."""
    job = await harness.start(job_id, **{"options": GONE, **fields})
    assert await harness.settle(job, Outcome.COMPLETE, result=b"7") is Settled.OK
    return job


async def late(harness: Harness, job_id: str = "a") -> JobRecord | None:
    """The job as a caller reads it that waited while the job ran."""
    return (await harness.do(rq.GetJobs(refs=[JobRef(QUEUE, job_id)], late=True)))[0]


@pytest.mark.feature("A13")
@pytest.mark.parametrize("keep", [Keep(0, 0), Keep(0, None), Keep(None, 0)])
async def test_a_record_that_may_go_at_once_goes_with_its_settlement(harness: Harness, keep: Keep) -> None:
    options = StoredOptions(keep_completed=keep, result_ttl_ms=0)
    job = await harness.start("a", options=options)
    await harness.do(rq.Report(ref=job.ref, logs=["x"]))
    await harness.settle(job, Outcome.COMPLETE, result=b"7")
    assert await harness.counts() == {}
    assert (await harness.do(rq.ListJobs(queue=QUEUE))).jobs == []
    assert await harness.do(rq.GetLogs(ref=job.ref)) == rq.LogPage([], 0)


@pytest.mark.feature("A13")
@pytest.mark.parametrize(
    "options",
    [
        StoredOptions(keep_completed=Keep(0, 0)),
        StoredOptions(result_ttl_ms=0),
        StoredOptions(keep_completed=Keep(0, 0), result_ttl_ms=1),
    ],
)
async def test_a_record_with_anything_to_keep_stays(harness: Harness, options: StoredOptions) -> None:
    await complete(harness, options=options)
    assert await harness.counts() == {JobState.COMPLETED: 1}
    assert (await harness.get("a")).payload == b"[]"


@pytest.mark.feature("A13")
@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.CANCEL])
async def test_only_a_completed_record_goes_at_once(harness: Harness, outcome: Outcome) -> None:
    await harness.finish("a", outcome, options=GONE)
    assert sum((await harness.counts()).values()) == 1
    assert (await harness.get("a")).payload == b"[]"


@pytest.mark.feature("A13", "E6")
async def test_a_stub_tells_for_a_minute_how_the_job_ended(harness: Harness) -> None:
    job = await complete(harness)
    stub = await harness.get("a")
    assert (stub.state, stub.task, stub.payload, stub.result) == (JobState.COMPLETED, "send", b"", None)
    assert (stub.enqueued_ms, stub.started_ms, stub.finished_ms) == (START_MS, START_MS, START_MS)
    assert stub.settled_token == job.token
    waiter = await late(harness)
    assert waiter is not None
    assert waiter.result == b"7"
    harness.pass_ms(STUB_MS - 1)
    assert await harness.find("a") is not None
    harness.pass_ms(1)
    assert await harness.find("a") is None
    assert await late(harness) is None


async def test_a_stub_is_found_by_its_whole_id(harness: Harness) -> None:
    await complete(harness)
    assert await harness.find("a\0b") is None


@pytest.mark.feature("Z14")
async def test_a_settlement_that_is_repeated_finds_its_stub(harness: Harness) -> None:
    job = await complete(harness)
    other = JobRecord(queue=QUEUE, id="a", task="send", payload=b"", token="other.0")
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.ALREADY
    assert await harness.settle(other, Outcome.COMPLETE) is Settled.LOST
    harness.pass_ms(STUB_MS)
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.GONE


@pytest.mark.feature("Z14")
async def test_an_add_that_is_repeated_is_answered_by_the_stub(harness: Harness) -> None:
    await complete(harness, request_id="r1")
    harness.pass_ms(10)
    again = await harness.add("a", options=GONE, request_id="r1")
    assert (again.outcome, again.state, again.enqueued_ms) == (
        AddOutcome.QUEUED,
        JobState.COMPLETED,
        START_MS,
    )
    plain = await harness.add("a", request_id="r1")
    assert (plain.outcome, plain.state) == (AddOutcome.QUEUED, JobState.COMPLETED)
    assert await harness.claim() == []
    harness.pass_ms(STUB_MS)
    assert (await harness.add("a", options=GONE, request_id="r1")).state is JobState.WAITING


@pytest.mark.feature("Z14", "A6")
@pytest.mark.parametrize("options", [GONE, StoredOptions()], ids=["gone", "kept"])
async def test_another_request_for_the_same_id_is_a_new_job(harness: Harness, options: StoredOptions) -> None:
    await complete(harness, request_id="r1")
    added = await harness.add("a", options=options, request_id="r2")
    assert (added.outcome, added.state) == (AddOutcome.QUEUED, JobState.WAITING)
    job = await harness.take()
    assert (job.id, job.payload) == ("a", b"[]")
    assert await harness.state("a") is JobState.ACTIVE
    assert await harness.settle(job, Outcome.COMPLETE, result=b"8") is Settled.OK
    waiter = await late(harness)
    assert waiter is not None
    assert (waiter.result, waiter.settled_token) == (b"8", job.token)


@pytest.mark.feature("D7")
async def test_a_kept_id_outlives_a_record_that_went_at_once(harness: Harness) -> None:
    options = StoredOptions(keep_completed=Keep(0, 0), result_ttl_ms=0, keep_id_ms=500_000)
    await complete(harness, options=options, request_id="r1")
    assert (await harness.add("a", request_id="r1")).outcome is AddOutcome.QUEUED
    assert (await harness.add("a", request_id="r2")).outcome is AddOutcome.DUPLICATE
    harness.pass_ms(STUB_MS)
    await harness.do(rq.Prune())
    assert (await harness.add("a", request_id="r1")).outcome is AddOutcome.DUPLICATE


@pytest.mark.feature("A13")
async def test_a_stub_cannot_be_changed(harness: Harness) -> None:
    await complete(harness)
    ref = JobRef(QUEUE, "a")
    assert (await harness.do(rq.RetryJobs(refs=[ref])))[0].status is Changed.NOT_FOUND
    assert (await harness.do(rq.RemoveJobs(refs=[ref])))[0].status is Changed.NOT_FOUND
    assert (await harness.do(rq.SetResultTtl(ref=ref, ttl_ms=5))).status is Changed.NOT_FOUND


@pytest.mark.feature("A13", "Q1")
async def test_an_end_at_once_leaves_its_event_and_its_row_of_history(harness: Harness) -> None:
    await complete(harness)
    told = [event.type for event in await harness.events() if event.job_id == "a"]
    assert told == [EventType.ENQUEUED, EventType.STARTED, EventType.COMPLETED]
    assert [row.outcome.value for row in await harness.history()] == ["completed"]
    counters = {(row.task, row.outcome): row.total for row in await harness.do(rq.ReadCounters())}
    assert counters == {("send", "enqueued"): 1, ("send", "completed"): 1}


@pytest.mark.feature("A13")
async def test_jobs_of_one_batch_go_or_stay_each_by_its_own_options(harness: Harness) -> None:
    for number in range(6):
        await harness.add(f"j{number}", options=GONE if number % 2 else StoredOptions())
    jobs = await harness.claim(6)
    ends = [settlement(job, Outcome.COMPLETE, result=b"1") for job in jobs]
    result = await harness.do(rq.Settle(items=ends))
    assert set(result.items) == {Settled.OK}
    assert await harness.counts() == {JobState.COMPLETED: 3}
    again = await harness.do(rq.Settle(items=ends))
    assert set(again.items) == {Settled.ALREADY}


@needs("unique")
@pytest.mark.feature("D1")
async def test_a_record_that_goes_at_once_frees_its_unique_key(harness: Harness) -> None:
    def options(mode: UniqueMode, ttl_ms: int | None = None) -> StoredOptions:
        unique = StoredUnique(key=mode.value, mode=mode, ttl_ms=ttl_ms)
        return StoredOptions(keep_completed=Keep(0, 0), result_ttl_ms=0, unique=unique)

    until_done, throttle = options(UniqueMode.UNTIL_DONE), options(UniqueMode.THROTTLE, 5_000)
    await complete(harness, "a", options=until_done)
    assert (await harness.add("b", options=until_done)).outcome is AddOutcome.QUEUED
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    await complete(harness, "c", options=throttle)
    assert (await harness.add("d", options=throttle)).outcome is AddOutcome.DUPLICATE
    harness.pass_ms(5_000)
    assert (await harness.add("d", options=throttle)).outcome is AddOutcome.QUEUED


@needs("groups")
@pytest.mark.feature("H5")
async def test_a_record_that_goes_at_once_makes_room_in_its_group(harness: Harness) -> None:
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=GroupLimits(concurrency=1)))
    options = StoredOptions(keep_completed=Keep(0, 0), result_ttl_ms=0, group="g")
    await harness.add_many("a", "b", options=options)
    for job_id in ("a", "b"):
        job = await harness.take()
        assert job.id == job_id
        assert await harness.claim() == []
        await harness.settle(job, Outcome.COMPLETE)
    assert await harness.counts() == {}


@needs("flows")
@pytest.mark.feature("I3")
async def test_the_value_of_a_child_that_goes_at_once_is_in_the_edge(harness: Harness) -> None:
    flow = [
        harness.new("p", depends_on=[Dependency(QUEUE, "a")], request_id="p1"),
        harness.new("a", options=GONE, request_id="a1"),
    ]
    await harness.do(rq.Add(jobs=flow))
    await harness.settle(await harness.take(), Outcome.COMPLETE, result=b"7")
    await harness.do(fl.Relay())
    assert await harness.counts() == {JobState.WAITING: 1}
    (found,) = await harness.do(fl.GetDependencies(refs=[JobRef(QUEUE, "p")]))
    assert [(edge.status, edge.value) for edge in found.depends_on] == [(EdgeStatus.DONE, b"7")]
    again = await harness.do(rq.Add(jobs=flow))
    assert [one.outcome for one in again] == [AddOutcome.QUEUED, AddOutcome.QUEUED]
    assert await harness.counts() == {JobState.WAITING: 1}


@needs("flows")
@pytest.mark.feature("I3")
async def test_a_job_may_still_wait_for_one_that_went_just_now(harness: Harness) -> None:
    await complete(harness)
    added = await harness.add("p", depends_on=[Dependency(QUEUE, "a")])
    assert added.state is JobState.WAITING
    (found,) = await harness.do(fl.GetDependencies(refs=[JobRef(QUEUE, "p")]))
    assert [(edge.status, edge.value) for edge in found.depends_on] == [(EdgeStatus.DONE, b"7")]


@pytest.mark.feature("A13")
async def test_a_stub_outlives_the_client_that_left_it(harness: Harness) -> None:
    job = await complete(harness, request_id="r1")
    if not harness.backend.capabilities.durable:
        return
    await harness.reopen()
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.ALREADY
    assert (await harness.add("a", request_id="r1")).state is JobState.COMPLETED


@pytest.mark.feature("A13")
async def test_a_queue_that_is_obliterated_keeps_no_stubs(harness: Harness) -> None:
    await complete(harness)
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState), force=True, forget=True))
    assert await harness.find("a") is None


@pytest.mark.feature("A13")
async def test_no_more_than_the_newest_stubs_are_kept(harness: Harness) -> None:
    step, count = 1_000, STUBS_KEPT + 1_000
    for start in range(0, count, step):
        await harness.add_many(*(f"j{n}" for n in range(start, start + step)), options=GONE)
        jobs = await harness.claim(step)
        await harness.do(rq.Settle(items=[settlement(job, Outcome.COMPLETE) for job in jobs]))
        harness.pass_ms(1)
    assert await harness.find("j0") is None
    assert await harness.find(f"j{count - 1}") is not None
    assert await harness.find(f"j{count - STUBS_KEPT}") is not None


@pytest.mark.feature("A13")
@needs("groups")
async def test_what_stays_of_jobs_is_apart_from_what_is_known_of_groups(harness: Harness) -> None:
    """A group whose jobs have priorities, and jobs that leave stubs, in both orders."""
    ranked = StoredOptions(group="g")
    await harness.add("low", options=ranked, priority=-1)
    job = await complete(harness)
    await harness.add("high", options=ranked, priority=5)
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.ALREADY
    harness.pass_ms(STUB_MS)
    await harness.do(rq.Prune())
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.GONE
    await complete(harness, "b", priority=9)
    assert await harness.order() == ["high", "low"]


@pytest.mark.feature("A13")
async def test_a_job_that_leaves_nothing_can_be_settled_with_a_claim_on_another_queue(
    harness: Harness,
) -> None:
    job = await harness.start("a", options=GONE)
    await harness.add("b", "other")
    claim = harness.claim_request(rq.ClaimQueue("other", 1, 1))
    result = await harness.do(rq.Settle(items=[settlement(job, Outcome.COMPLETE)], claim=claim))
    assert result.claimed is not None
    assert [one.id for one in result.claimed.jobs] == ["b"]
    assert await harness.counts() == {}


@pytest.mark.feature("I3")
@needs("flows")
async def test_a_retried_parent_gets_the_value_of_a_retried_child_that_went_at_once(harness: Harness) -> None:
    parent = harness.new("p", depends_on=[Dependency(QUEUE, "c")])
    await harness.do(rq.Add(jobs=[parent, harness.new("c", options=GONE)]))
    await harness.settle(await harness.take(), Outcome.FAIL)
    assert await harness.state("p") is JobState.FAILED
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "c")]))
    await harness.settle(await harness.take(), Outcome.COMPLETE, result=b"9")
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    (found,) = await harness.do(fl.GetDependencies(refs=[JobRef(QUEUE, "p")]))
    assert [(edge.status, edge.value) for edge in found.depends_on] == [(EdgeStatus.DONE, b"9")]
    assert (await harness.take()).id == "p"


@pytest.mark.feature("A13")
async def test_a_stub_does_not_tell_what_its_job_waited_for(harness: Harness) -> None:
    await harness.add("a", options=GONE, delay_ms=5)
    harness.pass_ms(5)
    job = await harness.take()
    assert job.queue_time is not None
    await harness.settle(job, Outcome.COMPLETE, result=b"7")
    stub = await late(harness)
    assert stub is not None and stub.queue_time is None
