"""``RevokeTask`` and ``RestoreTask``: jobs of a revoked task are cancelled instead of started."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import Dependency, OnFailure
from windlass.core.job import AttemptOutcome, EventType
from windlass.core.limit_rules import MAX_REVOKED, GroupLimits, Rate, Revocation
from windlass.core.option_values import StoredUnique
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass.errors import ConfigError
from windlass_conformance.harness import QUEUE, START_MS, Harness, settlement

NEEDS = "revoked_tasks"
REASON = "task t is revoked"


async def revoke(harness: Harness, task: str = "t", **how: Any) -> None:
    await harness.do(lrq.RevokeTask(queue=QUEUE, task=task, **how))


async def restore(harness: Harness, task: str = "t") -> bool:
    return await harness.do(lrq.RestoreTask(queue=QUEUE, task=task))


async def revoked(harness: Harness) -> dict[str, Revocation]:
    return (await harness.do(lrq.GetLimits(queue=QUEUE))).queue.revoked


async def started(harness: Harness, limit: int = 100) -> list[str]:
    return [job.id for job in await harness.claim(limit)]


@pytest.mark.feature("F7")
async def test_a_job_of_a_revoked_task_ends_instead_of_starting(harness: Harness) -> None:
    await revoke(harness)
    await harness.add("a", task="t")
    await harness.add("b", task="u")
    await harness.add("c", task="t")
    assert await harness.state("a") is JobState.WAITING
    mark = await harness.mark()
    assert await started(harness) == ["b"]
    assert await harness.counts() == {JobState.ACTIVE: 1, JobState.CANCELLED: 2}
    job = await harness.get("c")
    assert (job.reason, job.deliveries, job.started_ms) == (REASON, 0, None)
    ends = [event for event in await harness.events(after=mark) if event.type is EventType.CANCELLED]
    assert [(event.job_id, event.data) for event in ends] == [(id, {"reason": REASON}) for id in "ac"]
    assert [(row.job_id, row.outcome) for row in await harness.history()] == [
        ("a", AttemptOutcome.CANCELLED),
        ("c", AttemptOutcome.CANCELLED),
    ]


@pytest.mark.feature("F7")
async def test_a_revoke_is_obeyed_by_every_claim_that_follows_it(harness: Harness) -> None:
    other = await harness.clone()
    for n in range(5):
        await harness.add(f"a{n}", task="t")
        await other.execute(lrq.RevokeTask(queue=QUEUE, task="t", now_ms=harness.now_ms))
        assert await started(harness) == []
        await other.execute(lrq.RestoreTask(queue=QUEUE, task="t", now_ms=harness.now_ms))
        await harness.add(f"b{n}", task="t")
        assert await started(harness) == [f"b{n}"]


@pytest.mark.feature("F7")
async def test_a_claim_that_comes_with_a_settlement_obeys_it_too(harness: Harness) -> None:
    await harness.add_many("a", "b", task="t")
    job = await harness.take()
    await revoke(harness)
    end = settlement(job, Outcome.COMPLETE)
    result = await harness.do(rq.Settle(items=[end], claim=harness.claim_request(limit=5)))
    assert result.claimed is not None
    assert result.claimed.jobs == []
    assert await harness.counts() == {JobState.COMPLETED: 1, JobState.CANCELLED: 1}


@pytest.mark.feature("F7")
async def test_a_running_job_of_a_revoked_task_continues(harness: Harness) -> None:
    await harness.add("a", task="t")
    job = await harness.take()
    await revoke(harness)
    await harness.settle(job, Outcome.COMPLETE)
    assert await harness.state("a") is JobState.COMPLETED


@pytest.mark.feature("F7")
async def test_a_revocation_ends_at_its_instant(harness: Harness) -> None:
    await revoke(harness, until_ms=START_MS + 50)
    await revoke(harness, "u", for_ms=60)
    await harness.add("a", task="t")
    harness.now_ms = START_MS + 49
    assert await revoked(harness) == {"t": Revocation(START_MS + 50), "u": Revocation(START_MS + 60)}
    assert await started(harness) == []
    await harness.add_many("b", task="t")
    await harness.add_many("c", task="u")
    harness.now_ms = START_MS + 50
    assert await revoked(harness) == {"u": Revocation(START_MS + 60)}
    assert await started(harness) == ["b"]
    assert await harness.state("c") is JobState.CANCELLED
    harness.now_ms = START_MS + 60
    assert await restore(harness, "u") is False
    await harness.add("d", task="u")
    assert await started(harness) == ["d"]
    assert await revoked(harness) == {}


@pytest.mark.feature("F7")
async def test_a_revocation_for_one_start_ends_one_job(harness: Harness) -> None:
    await revoke(harness, once=True)
    await harness.add("other", task="u")
    await harness.add_many("a", "b", "c", task="t")
    assert await revoked(harness) == {"t": Revocation(once=True)}
    assert await started(harness) == ["other", "b", "c"]
    assert await harness.state("a") is JobState.CANCELLED
    assert await revoked(harness) == {}
    assert await restore(harness) is False


@pytest.mark.feature("F7")
async def test_a_revocation_for_one_start_ends_one_job_however_many_workers_claim(harness: Harness) -> None:
    clients = [harness.backend, *[await harness.clone() for _ in range(3)]]
    for n in range(5):
        await revoke(harness, once=True)
        await harness.add_many(*(f"{name}{n}" for name in "abcdef"), task="t")
        requests = [harness.claim_request(limit=2, worker=f"w{at}") for at in range(4)]
        for request in requests:
            request.now_ms = harness.now_ms
        answers = await asyncio.gather(
            *(client.execute(request) for client, request in zip(clients, requests, strict=True))
        )
        taken = sum(len(answer.jobs) for answer in answers) + len(await started(harness))
        assert taken == 5
    assert await harness.counts() == {JobState.ACTIVE: 25, JobState.CANCELLED: 5}


@pytest.mark.feature("F7")
async def test_a_restored_task_starts_again_and_what_was_ended_stays(harness: Harness) -> None:
    await revoke(harness)
    await harness.add("a", task="t")
    assert await started(harness) == []
    assert await restore(harness) is True
    assert await restore(harness) is False
    await harness.add("b", task="t")
    assert await started(harness) == ["b"]
    assert await harness.state("a") is JobState.CANCELLED


@pytest.mark.feature("F7")
async def test_a_later_revoke_of_a_task_replaces_the_earlier(harness: Harness) -> None:
    await revoke(harness, once=True)
    await revoke(harness)
    await harness.add_many("a", "b", task="t")
    assert await started(harness) == []
    assert await harness.counts() == {JobState.CANCELLED: 2}


@pytest.mark.feature("F7")
async def test_a_revocation_outlives_the_connection_and_other_settings(harness: Harness) -> None:
    await revoke(harness)
    await revoke(harness, "once", once=True)
    await harness.do(lrq.SetQueueLimits(queue=QUEUE, fields=["concurrency"], concurrency=5))
    await harness.do(lrq.SetQueueLimits(queue=QUEUE, fields=["concurrency"]))
    await harness.reopen()
    assert await revoked(harness) == {"t": Revocation(), "once": Revocation(once=True)}
    await harness.add("a", task="t")
    await harness.add("b", task="once")
    assert await started(harness) == []
    assert await revoked(harness) == {"t": Revocation()}


@pytest.mark.feature("F7")
async def test_it_is_of_one_queue_and_goes_with_it(harness: Harness) -> None:
    await revoke(harness)
    await harness.add("a", queue="other", task="t")
    assert [job.id for job in await harness.claim(queue="other")] == ["a"]
    assert QUEUE in [info.name for info in await harness.do(rq.ListQueues())]
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState), forget=True))
    assert await revoked(harness) == {}
    await harness.add("b", task="t")
    assert await started(harness) == ["b"]


@pytest.mark.feature("F7")
async def test_jobs_that_may_not_start_now_are_left_alone(harness: Harness) -> None:
    await revoke(harness)
    await harness.add("later", task="t", delay_ms=50)
    await harness.add("a", task="t")
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    assert await started(harness) == []
    assert await harness.counts() == {JobState.WAITING: 1, JobState.SCHEDULED: 1}


@pytest.mark.feature("F7")
async def test_a_job_that_is_due_for_another_attempt_ends_as_well(harness: Harness) -> None:
    await harness.add("a", task="t")
    await harness.settle(await harness.take(), Outcome.RETRY, delay_ms=20)
    await revoke(harness)
    harness.pass_ms(20)
    assert await started(harness) == []
    job = await harness.get("a")
    assert (job.state, job.reason, job.attempts) == (JobState.CANCELLED, REASON, 1)
    await restore(harness)
    await harness.do(rq.RetryJobs(refs=[job.ref]))
    assert await started(harness) == ["a"]


@pytest.mark.feature("F7")
async def test_what_is_ended_takes_nothing_of_its_groups_rate(harness: Harness) -> None:
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=GroupLimits(rate=Rate(1, 1_000))))
    await revoke(harness)
    await harness.add_many("a", "b", task="t", options=StoredOptions(group="g"))
    await harness.add_many("c", "d", task="u", options=StoredOptions(group="g"))
    assert await started(harness) == ["c"]
    assert await harness.state("d") is JobState.PARKED
    harness.pass_ms(1_000)
    assert await started(harness) == ["d"]
    assert await harness.counts() == {JobState.ACTIVE: 2, JobState.CANCELLED: 2}


@pytest.mark.feature("F7")
async def test_what_is_ended_frees_its_key_and_fails_what_waits_for_it(harness: Harness) -> None:
    await revoke(harness)
    await harness.add("a", task="t", options=StoredOptions(unique=StoredUnique(key="k")))
    await harness.add("b", task="u", depends_on=[Dependency(QUEUE, "a", OnFailure.FAIL)])
    assert await started(harness) == []
    assert await harness.do(lrq.GetUniqueKey(queue=QUEUE, key="k")) is None
    assert (await harness.state("a"), await harness.state("b")) == (JobState.CANCELLED, JobState.FAILED)


@pytest.mark.feature("F7")
async def test_no_more_tasks_are_revoked_than_a_claim_can_look_at(harness: Harness) -> None:
    requests = [lrq.RevokeTask(queue=QUEUE, task=f"t{n}") for n in range(MAX_REVOKED)]
    await asyncio.gather(*(harness.do(request) for request in requests))
    await revoke(harness, "t7", once=True)
    with pytest.raises(ConfigError, match="revoked tasks"):
        await revoke(harness, "one-more")
    assert len(await revoked(harness)) == MAX_REVOKED
    await restore(harness, "t0")
    await revoke(harness, "one-more")
