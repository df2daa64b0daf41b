"""``Restore``: when an exported job is not restored. ``behaviour_restore`` tests restored jobs."""

from __future__ import annotations

from typing import Any

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.job import JobRecord
from windlass.core.limit_rules import GroupLimits
from windlass.core.option_values import Keep, StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, START_MS, Harness

NEEDS = "restore"
GROUPED = StoredOptions(group="g")
KEYED = StoredOptions(unique=StoredUnique(key="k", mode=UniqueMode.UNTIL_DONE))


def exported(job_id: str, *, ended: bool = False, **fields: Any) -> JobRecord:
    """A job as an import reads it: waiting, or completed."""
    times: dict[str, Any] = {"enqueued_ms": START_MS, "ready_ms": START_MS, "request_id": f"import-{job_id}"}
    if ended:
        times |= {"state": JobState.COMPLETED, "started_ms": START_MS, "finished_ms": START_MS}
    return JobRecord(queue=QUEUE, id=job_id, task="t", payload=b"{}", **times, **fields)


async def restore(harness: Harness, *jobs: JobRecord) -> list[AddOutcome]:
    return [answer.outcome for answer in await harness.do(rq.Restore(jobs=list(jobs)))]


async def limit(harness: Harness, **limits: Any) -> None:
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=GroupLimits(**limits)))


async def test_a_job_whose_id_is_kept_without_its_record_is_not_restored(harness: Harness) -> None:
    await harness.finish("a", options=StoredOptions(keep_id_ms=1_000))
    await harness.do(rq.RemoveJobs(refs=[(await harness.get("a")).ref]))
    (answer,) = await harness.do(rq.Restore(jobs=[exported("a")]))
    assert (answer.outcome, answer.state) == (AddOutcome.DUPLICATE, None)
    harness.pass_ms(1_000)
    assert await restore(harness, exported("a")) == [AddOutcome.QUEUED]


async def test_a_job_whose_unique_key_is_held_is_restored_only_if_it_has_ended(harness: Harness) -> None:
    await harness.add("holder", options=KEYED)
    jobs = [exported("a", options=KEYED), exported("b", ended=True, options=KEYED)]
    assert await restore(harness, *jobs) == [AddOutcome.DUPLICATE, AddOutcome.QUEUED]
    assert await harness.find("a") is None
    assert await harness.order() == ["holder"]


async def test_a_restored_job_holds_its_unique_key(harness: Harness) -> None:
    assert await restore(harness, exported("a", options=KEYED), exported("b", options=KEYED)) == [
        *(AddOutcome.QUEUED, AddOutcome.DUPLICATE),
    ]
    assert (await harness.add("c", options=KEYED)).outcome is AddOutcome.DUPLICATE


async def test_a_full_group_takes_only_restored_jobs_that_have_ended(harness: Harness) -> None:
    await limit(harness, max_size=1)
    jobs = [exported("a", options=GROUPED), exported("b", options=GROUPED)]
    answers = await restore(harness, *jobs, exported("c", ended=True, options=GROUPED))
    assert answers == [AddOutcome.QUEUED, AddOutcome.REFUSED, AddOutcome.QUEUED]
    assert await harness.counts() == {JobState.WAITING: 1, JobState.COMPLETED: 1}


async def test_an_ordered_group_takes_no_restored_job_with_a_priority_that_has_yet_to_run(
    harness: Harness,
) -> None:
    await limit(harness, ordered=True)
    ranked = [exported(name, ended=name == "b", priority=5, options=GROUPED) for name in "ab"]
    assert await restore(harness, *ranked) == [AddOutcome.OUT_OF_ORDER, AddOutcome.QUEUED]
    assert await harness.counts() == {JobState.COMPLETED: 1}


async def test_a_restore_that_is_repeated_after_the_job_ended_is_answered_by_its_stub(
    harness: Harness,
) -> None:
    gone = StoredOptions(keep_completed=Keep(0, 0), result_ttl_ms=0)
    assert await restore(harness, exported("a", options=gone)) == [AddOutcome.QUEUED]
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    (again,) = await harness.do(rq.Restore(jobs=[exported("a", options=gone)]))
    assert (again.outcome, again.state) == (AddOutcome.QUEUED, JobState.COMPLETED)
    other = exported("a", options=gone)
    other.request_id = "another import"
    assert await restore(harness, other) == [AddOutcome.DUPLICATE]
    assert await harness.counts() == {}


async def test_a_job_that_started_is_restored_beside_the_next_holder_of_its_key(harness: Harness) -> None:
    until_start = StoredOptions(unique=StoredUnique(key="k", mode=UniqueMode.UNTIL_START))
    for first, second in (("ran", "next"), ("next", "ran")):
        jobs = {
            "ran": exported("ran", deliveries=1, attempts=1, options=until_start),
            "next": exported("next", options=until_start),
        }
        assert await restore(harness, jobs[first], jobs[second]) == [AddOutcome.QUEUED] * 2
        held = await harness.do(lrq.GetUniqueKey(queue=QUEUE, key="k"))
        assert held is not None and held.job_id == "next"
        await harness.do(rq.RemoveJobs(refs=[job.ref for job in jobs.values()]))


async def test_a_job_whose_key_is_free_by_its_time_is_restored_beside_the_next_holder(
    harness: Harness,
) -> None:
    throttled = StoredOptions(unique=StoredUnique(key="k", mode=UniqueMode.THROTTLE, ttl_ms=50))
    harness.pass_ms(60)
    late = exported("b", options=throttled)
    late.enqueued_ms = late.ready_ms = START_MS + 55
    assert await restore(harness, late, exported("a", options=throttled)) == [AddOutcome.QUEUED] * 2
    held = await harness.do(lrq.GetUniqueKey(queue=QUEUE, key="k"))
    assert held is not None and held.job_id == "b"
