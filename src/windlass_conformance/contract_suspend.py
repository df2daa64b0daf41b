"""Jobs that are suspended until a signal comes."""

from __future__ import annotations

import pytest

from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.core.edges import Dependency
from windlass.core.job import AttemptOutcome, EventType, JobRecord, JobRef, SignalValue
from windlass.core.outcome import CancelResult, Changed, Outcome, Settled
from windlass.core.states import JobState
from windlass.errors import ConfigError
from windlass_conformance.flow_support import on
from windlass_conformance.harness import QUEUE, START_MS, Harness
from windlass_conformance.needs import needs

NEEDS = "signals"


async def suspend(harness: Harness, job_id: str = "a", signal: str = "go", timeout_ms: int = 0) -> JobRecord:
    job = await harness.start(job_id)
    assert await harness.settle(job, Outcome.SUSPEND, signal=signal, delay_ms=timeout_ms) is Settled.OK
    return job


async def signal(
    harness: Harness, job_id: str = "a", name: str = "go", data: bytes = b"1"
) -> rq.ChangeResult:
    return await harness.do(fl.Signal(ref=JobRef(QUEUE, job_id), name=name, data=data))


@pytest.mark.feature("F8")
async def test_a_suspended_job_waits_for_its_signal(harness: Harness) -> None:
    job = await suspend(harness)
    stored = await harness.get("a")
    assert (stored.state, stored.awaits, stored.token, stored.attempts) == (
        JobState.SUSPENDED,
        "go",
        None,
        0,
    )
    assert await harness.settle(job, Outcome.COMPLETE) is Settled.ALREADY
    harness.pass_ms(10**9)
    assert (await harness.do(rq.Promote())).count == 0
    assert await harness.claim() == []
    assert await harness.counts() == {JobState.SUSPENDED: 1}
    result = await signal(harness, data=b'{"by":"ada"}')
    assert (result.status, result.state) == (Changed.OK, JobState.WAITING)
    again = await harness.take()
    assert again.signals == {"go": SignalValue(b'{"by":"ada"}', "json", harness.now_ms)}
    assert (again.attempts, again.deliveries) == (0, 2)


@pytest.mark.feature("F8", "K1")
async def test_a_suspension_tells_its_story(harness: Harness) -> None:
    await suspend(harness, timeout_ms=500)
    await signal(harness, name="other")
    await signal(harness)
    told = [(event.type, event.data) for event in await harness.events() if event.job_id][2:]
    assert told == [
        (EventType.SUSPENDED, {"reason": "go", "run_at_ms": START_MS + 500}),
        (EventType.CHANGED, {"what": "signal"}),
        (EventType.PROMOTED, {}),
    ]
    rows = await harness.history()
    assert [(row.outcome, row.attempt) for row in rows] == [(AttemptOutcome.SNOOZED, 1)]


@pytest.mark.feature("F8")
async def test_a_signal_that_came_before_ends_the_suspension_at_once(harness: Harness) -> None:
    job = await harness.start("a")
    assert (await signal(harness, data=b"7")).state is JobState.ACTIVE
    await harness.settle(job, Outcome.SUSPEND, signal="go")
    again = await harness.take()
    assert again.signals["go"].data == b"7"
    await harness.add("b")
    assert (await signal(harness, "b")).state is JobState.WAITING


@pytest.mark.feature("F8")
async def test_another_signal_does_not_wake_it(harness: Harness) -> None:
    await suspend(harness)
    assert (await signal(harness, name="stop")).state is JobState.SUSPENDED
    await signal(harness, data=b"1")
    assert set((await harness.take()).signals) == {"stop", "go"}


@pytest.mark.feature("F8")
async def test_a_suspension_may_have_a_time_limit(harness: Harness) -> None:
    await suspend(harness, timeout_ms=1_000)
    claimed = await harness.do(harness.claim_request())
    assert (claimed.jobs, claimed.next_due_in_ms) == ([], 1_000)
    harness.pass_ms(1_000)
    again = await harness.take()
    assert (again.signals, again.awaits) == ({}, "go")


@pytest.mark.feature("F8")
async def test_a_signal_in_time_makes_the_limit_void(harness: Harness) -> None:
    await suspend(harness, timeout_ms=1_000)
    await signal(harness)
    job = await harness.get("a")
    assert (job.state, job.due_ms, job.ready_ms) == (JobState.WAITING, None, START_MS)


@pytest.mark.feature("F8")
async def test_the_newest_of_a_name_stays_and_there_is_a_bound(harness: Harness) -> None:
    await harness.add("a")
    for n in range(64):
        await signal(harness, name=f"s{n}")
    await signal(harness, name="s0", data=b"2")
    assert (await harness.get("a")).signals["s0"].data == b"2"
    with pytest.raises(ConfigError, match="64"):
        await signal(harness, name="one-more")
    assert len((await harness.get("a")).signals) == 64


@pytest.mark.feature("F8")
async def test_a_signal_to_nobody_or_to_a_finished_job(harness: Harness) -> None:
    assert (await signal(harness, "ghost")).status is Changed.NOT_FOUND
    await harness.finish("a")
    assert (await signal(harness)).status is Changed.ILLEGAL


@pytest.mark.feature("F8", "F1", "A24")
async def test_a_suspended_job_can_be_cancelled_and_removed(harness: Harness) -> None:
    await suspend(harness, "a")
    await suspend(harness, "b", timeout_ms=50)
    assert await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")])) == [CancelResult.CANCELLED]
    (removed,) = await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "b")]))
    assert (removed.status, removed.state) == (Changed.OK, JobState.SUSPENDED)
    harness.pass_ms(100)
    assert await harness.claim() == []
    assert await harness.counts() == {JobState.CANCELLED: 1}


@pytest.mark.feature("F8", "A23")
async def test_a_suspended_job_may_change_but_not_its_delay(harness: Harness) -> None:
    await suspend(harness)
    ref = JobRef(QUEUE, "a")
    assert (await harness.do(rq.ChangeJob(ref=ref, priority=3, delay_ms=60_000))).status is Changed.ILLEGAL
    assert (await harness.get("a")).priority == 0
    assert (await harness.do(rq.ChangeJob(ref=ref, priority=3, payload=b"[2]"))).status is Changed.OK
    assert (await harness.do(rq.RetryJobs(refs=[ref])))[0].status is Changed.ILLEGAL
    await signal(harness)
    job = await harness.take()
    assert (job.priority, job.payload) == (3, b"[2]")


@pytest.mark.feature("F8", "F2")
async def test_a_job_that_was_cancelled_meanwhile_is_not_suspended(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.do(rq.CancelJobs(refs=[job.ref], reason="enough"))
    await harness.settle(job, Outcome.SUSPEND, signal="go")
    assert await harness.state("a") is JobState.CANCELLED


@pytest.mark.feature("F8")
async def test_a_suspension_outlives_the_connection(harness: Harness) -> None:
    await suspend(harness)
    await harness.reopen()
    await signal(harness, data=b"5")
    await harness.reopen()
    assert (await harness.take()).signals["go"].data == b"5"


@pytest.mark.feature("F8", "A28", "A32")
async def test_suspended_jobs_are_listed_purged_and_counted(harness: Harness) -> None:
    await suspend(harness, "a")
    await suspend(harness, "b", timeout_ms=100)
    page = await harness.do(rq.ListJobs(queue=QUEUE, states=[JobState.SUSPENDED], newest_first=False))
    assert [job.id for job in page.jobs] == ["a", "b"]
    (info,) = await harness.do(rq.ListQueues())
    assert info.counts["suspended"] == 2
    purged = await harness.do(rq.Purge(queue=QUEUE, states=[JobState.SUSPENDED]))
    assert sorted(purged.ids) == ["a", "b"]
    assert await harness.counts() == {}


@pytest.mark.feature("F8", "I10")
@needs("flows")
async def test_a_suspended_child_keeps_its_parent_waiting(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.SUSPEND, signal="go")
    await harness.add("p", depends_on=[on("a")])
    await harness.add("b", "other", parent=Dependency(QUEUE, "a"))
    assert (await harness.state("a"), await harness.state("p")) == (JobState.SUSPENDED, JobState.BLOCKED)
    await signal(harness)
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    assert await harness.state("p") is JobState.WAITING
