"""Queue time: what each attempt waited for. See ``core.queue_time``."""

from __future__ import annotations

import pytest

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import Dependency
from windlass.core.job import JobRecord, JobRef
from windlass.core.limit_rules import GroupLimits
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.core.queue_time import QueueTime
from windlass.core.states import JobState
from windlass_conformance.contract_restore import exported
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, Harness
from windlass_conformance.needs import needs

OTHER = "other"
GROUPED = StoredOptions(group="g", max_stalls=9)


async def _waited(
    harness: Harness, job: JobRecord, outcome: Outcome = Outcome.COMPLETE, **end: object
) -> QueueTime | None:
    """End an attempt; return the queue time in its row."""
    await harness.settle(job, outcome, **end)
    row = (await harness.history(job.queue))[-1]
    assert (row.job_id, row.run_id) == (job.id, job.token)
    return row.queue_time


def _time(scheduled: int = 0, parked: int = 0, blocked: int = 0, line: int = 0, *, at: int) -> QueueTime:
    """The queue time of an attempt that started ``at`` milliseconds after the start of the test."""
    return QueueTime(START_MS + at, scheduled, parked, blocked, line)


@pytest.mark.feature("Q2")
async def test_a_plain_job_has_only_its_wait(harness: Harness) -> None:
    await harness.add("a")
    harness.pass_ms(30)
    assert await _waited(harness, await harness.take()) is None
    assert (await harness.history())[-1].wait_ms == 30


@pytest.mark.feature("Q2")
async def test_a_delayed_job_is_scheduled_until_it_is_due_and_then_in_line(harness: Harness) -> None:
    await harness.add("a", delay_ms=10)
    await harness.add("b", run_at_ms=START_MS + 20)
    harness.pass_ms(50)
    await harness.do(rq.Promote())
    harness.pass_ms(5)
    one, two = await harness.claim(2)
    assert await _waited(harness, one) == _time(scheduled=10, line=45, at=55)
    assert await _waited(harness, two) == _time(scheduled=20, line=35, at=55)


@pytest.mark.feature("Q2")
@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.SNOOZE, Outcome.RELEASE])
async def test_a_job_that_is_put_back_for_later_is_scheduled(harness: Harness, outcome: Outcome) -> None:
    await harness.add("a")
    harness.pass_ms(3)
    assert await _waited(harness, await harness.take(), outcome, delay_ms=100) is None
    harness.pass_ms(110)
    assert await _waited(harness, await harness.take()) == _time(scheduled=100, line=10, at=113)


@pytest.mark.feature("Q2")
async def test_each_attempt_has_its_own_time(harness: Harness) -> None:
    await harness.add("a", delay_ms=10)
    harness.pass_ms(10)
    job = await harness.take()
    harness.pass_ms(500)
    assert await _waited(harness, job, Outcome.RETRY, delay_ms=20) == _time(scheduled=10, at=10)
    harness.pass_ms(20)
    assert await _waited(harness, await harness.take(), Outcome.RETRY) == _time(scheduled=20, at=530)
    harness.pass_ms(7)
    assert await _waited(harness, await harness.take(), Outcome.RETRY, delay_ms=30) is None
    harness.pass_ms(30)
    assert await _waited(harness, await harness.take(), Outcome.FAIL) == _time(scheduled=30, at=567)
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "a")]))
    harness.pass_ms(8)
    assert await _waited(harness, await harness.take()) is None
    assert [row.wait_ms for row in await harness.history()] == [0, 0, 7, 0, 8]


@pytest.mark.feature("Q2")
async def test_a_released_job_does_not_count_its_run_as_time_in_line(harness: Harness) -> None:
    await harness.add("a")
    harness.pass_ms(1)
    job = await harness.take()
    harness.pass_ms(1_000)
    assert await _waited(harness, job, Outcome.RELEASE) is None
    harness.pass_ms(2)
    assert await _waited(harness, await harness.take()) == _time(line=2, at=1_003)


@pytest.mark.feature("Q2")
async def test_a_job_whose_worker_was_lost_waits_from_its_recovery_on(harness: Harness) -> None:
    await harness.add("a", options=StoredOptions(stall_delay_ms=40, max_stalls=9))
    await harness.add("b", options=StoredOptions(max_stalls=9))
    await harness.claim(2)
    harness.pass_ms(LEASE_MS + 1)
    await harness.do(rq.Recover())
    harness.pass_ms(50)
    jobs = {job.id: job for job in await harness.claim(2)}
    at = LEASE_MS + 51
    assert await _waited(harness, jobs["a"]) == _time(scheduled=40, line=10, at=at)
    assert await _waited(harness, jobs["b"]) == _time(line=50, at=at)


@pytest.mark.feature("Q2")
async def test_a_paused_queue_is_time_in_line(harness: Harness) -> None:
    await harness.add("a", delay_ms=10)
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    harness.pass_ms(100)
    assert await harness.claim() == []
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=False))
    assert await _waited(harness, await harness.take()) == _time(scheduled=10, line=90, at=100)


@pytest.mark.feature("Q2")
async def test_a_new_delay_counts_from_the_change(harness: Harness) -> None:
    await harness.add("a")
    harness.pass_ms(5)
    await harness.do(rq.ChangeJob(ref=JobRef(QUEUE, "a"), delay_ms=100))
    harness.pass_ms(40)
    await harness.do(rq.ChangeJob(ref=JobRef(QUEUE, "a"), delay_ms=0))
    harness.pass_ms(1)
    assert await _waited(harness, await harness.take()) == _time(scheduled=40, line=6, at=46)


@pytest.mark.feature("Q2")
@pytest.mark.parametrize("state", [JobState.SCHEDULED, JobState.RETRYING])
async def test_a_due_job_that_gets_a_new_delay_was_in_line_since_it_was_due(
    harness: Harness, state: JobState
) -> None:
    await harness.add("a", delay_ms=10)
    harness.pass_ms(10)
    if state is JobState.RETRYING:
        await harness.settle(await harness.take(), Outcome.RETRY, delay_ms=10)
        harness.pass_ms(10)
    at = 10 if state is JobState.SCHEDULED else 20
    harness.pass_ms(25)
    await harness.do(rq.ChangeJob(ref=JobRef(QUEUE, "a"), delay_ms=40))
    harness.pass_ms(47)
    assert await _waited(harness, await harness.take()) == _time(scheduled=50, line=32, at=at + 72)


@pytest.mark.feature("Q2")
@needs("restore")
@pytest.mark.parametrize("state", [JobState.WAITING, JobState.SCHEDULED, JobState.RETRYING])
@pytest.mark.parametrize("deliveries", [0, 1])
async def test_a_restored_job_waits_from_its_restore_on(
    harness: Harness, state: JobState, deliveries: int
) -> None:
    harness.pass_ms(1_000)
    due_ms = None if state is JobState.WAITING else START_MS + 1_010
    started_ms = START_MS + 1 if deliveries else None
    job = exported("a", state=state, due_ms=due_ms, deliveries=deliveries, started_ms=started_ms)
    job.ready_ms = due_ms or START_MS
    await harness.do(rq.Restore(jobs=[job]))
    harness.pass_ms(30)
    scheduled = 0 if state is JobState.WAITING else 10
    assert await _waited(harness, await harness.take()) == _time(scheduled, line=30 - scheduled, at=1_030)


@pytest.mark.feature("Q2")
@needs("restore")
@needs("signals")
async def test_a_restored_job_does_not_count_its_last_run_as_blocked(harness: Harness) -> None:
    harness.pass_ms(1_000)
    job = exported("a", state=JobState.SUSPENDED, awaits="go", deliveries=1, started_ms=START_MS + 1)
    await harness.do(rq.Restore(jobs=[job]))
    harness.pass_ms(20)
    await harness.do(fl.Signal(ref=JobRef(QUEUE, "a"), name="go", data=b"1"))
    harness.pass_ms(5)
    assert await _waited(harness, await harness.take()) == _time(blocked=20, line=5, at=1_025)


@pytest.mark.feature("Q2")
@needs("groups")
async def test_a_job_over_its_groups_limit_is_parked(harness: Harness) -> None:
    limits = GroupLimits(concurrency=1)
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=limits))
    await harness.add_many("a", "b", options=GROUPED)
    await harness.add("c", options=GROUPED, delay_ms=10)
    first = await harness.take()
    harness.pass_ms(60)
    await harness.do(rq.Promote())
    assert await _waited(harness, first) is None
    harness.pass_ms(5)
    second = await harness.take()
    harness.pass_ms(20)
    assert await _waited(harness, second) == _time(parked=60, line=5, at=65)
    third = await harness.take()
    # Due at 10, moved at 60: in line until then, for its store did not look at its group before.
    assert await _waited(harness, third) == _time(scheduled=10, parked=25, line=50, at=85)


@pytest.mark.feature("Q2")
@needs("groups")
async def test_a_job_that_a_new_limit_parks_was_in_line_before(harness: Harness) -> None:
    await harness.add_many("a", "b", options=GROUPED)
    first = await harness.take()
    harness.pass_ms(5)
    limits = GroupLimits(concurrency=1)
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=limits))
    assert await harness.claim() == []
    harness.pass_ms(20)
    await harness.settle(first, Outcome.COMPLETE)
    harness.pass_ms(3)
    assert await _waited(harness, await harness.take()) == _time(parked=20, line=8, at=28)


@pytest.mark.feature("Q2")
@needs("groups")
async def test_a_parked_job_that_is_delayed_is_scheduled_from_then_on(harness: Harness) -> None:
    limits = GroupLimits(concurrency=1)
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=limits))
    await harness.add_many("a", "b", options=GROUPED)
    first = await harness.take()
    harness.pass_ms(10)
    await harness.do(rq.ChangeJob(ref=JobRef(QUEUE, "b"), delay_ms=30))
    await harness.settle(first, Outcome.COMPLETE)
    harness.pass_ms(35)
    assert await _waited(harness, await harness.take()) == _time(scheduled=30, parked=10, line=5, at=45)


@pytest.mark.feature("Q2")
@needs("flows")
async def test_a_job_that_waits_for_others_is_blocked(harness: Harness) -> None:
    child = Dependency(OTHER, "c")
    later = harness.new("q", depends_on=[child], delay_ms=100)
    await harness.do(rq.Add(jobs=[harness.new("p", depends_on=[child]), later, harness.new("c", OTHER)]))
    harness.pass_ms(40)
    await harness.settle(await harness.take(OTHER), Outcome.COMPLETE)
    harness.pass_ms(2)
    assert await _waited(harness, await harness.take()) == _time(blocked=40, line=2, at=42)
    harness.pass_ms(60)
    # Its delay began with the add: the time that it was blocked counts as that.
    assert await _waited(harness, await harness.take()) == _time(scheduled=60, blocked=40, line=2, at=102)


@pytest.mark.feature("Q2")
@needs("flows")
async def test_a_job_that_waits_for_its_children_is_blocked(harness: Harness) -> None:
    job = await harness.start("p")
    harness.pass_ms(5)
    await harness.do(rq.Add(jobs=[harness.new("c", OTHER, parent=Dependency(QUEUE, "p"))]))
    assert await _waited(harness, job, Outcome.WAIT) is None
    harness.pass_ms(30)
    await harness.settle(await harness.take(OTHER), Outcome.COMPLETE)
    harness.pass_ms(3)
    assert await _waited(harness, await harness.take()) == _time(blocked=30, line=3, at=38)


@pytest.mark.feature("Q2")
@needs("flows")
async def test_a_waiting_job_that_gets_a_child_is_blocked_from_then_on(harness: Harness) -> None:
    await harness.add("p", delay_ms=10)
    harness.pass_ms(4)
    await harness.do(rq.Add(jobs=[harness.new("c", OTHER, parent=Dependency(QUEUE, "p"))]))
    harness.pass_ms(30)
    await harness.settle(await harness.take(OTHER), Outcome.COMPLETE)
    assert await _waited(harness, await harness.take()) == _time(scheduled=4, blocked=30, at=34)


@pytest.mark.feature("Q2")
@needs("signals")
async def test_a_job_that_waits_for_a_signal_is_blocked(harness: Harness) -> None:
    job = await harness.start("a")
    harness.pass_ms(9)
    assert await _waited(harness, job, Outcome.SUSPEND, signal="go", delay_ms=100) is None
    harness.pass_ms(30)
    await harness.do(fl.Signal(ref=JobRef(QUEUE, "a"), name="go", data=b"1"))
    harness.pass_ms(1)
    again = await harness.take()
    assert await _waited(harness, again, Outcome.SUSPEND, signal="more", delay_ms=50) == _time(
        blocked=30, line=1, at=40
    )
    harness.pass_ms(80)
    assert await _waited(harness, await harness.take()) == _time(blocked=50, line=30, at=120)


@pytest.mark.feature("Q2")
async def test_a_job_that_ends_without_an_attempt_has_none(harness: Harness) -> None:
    await harness.add("a", delay_ms=10)
    harness.pass_ms(5)
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")]))
    (row,) = await harness.history()
    assert (row.attempt, row.wait_ms, row.queue_time) == (0, None, None)


@pytest.mark.feature("Q2")
async def test_the_time_outlives_the_client(harness: Harness) -> None:
    await harness.add("a", delay_ms=10)
    harness.pass_ms(20)
    await harness.do(rq.Promote())
    await harness.reopen()
    harness.pass_ms(1)
    job = await harness.take()
    await harness.reopen()
    assert await _waited(harness, job) == _time(scheduled=10, line=11, at=21)
