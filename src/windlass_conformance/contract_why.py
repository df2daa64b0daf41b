"""Why a job is not running: each cause, and workers that stopped reporting."""

from __future__ import annotations

from typing import Any, cast

from windlass.api.why import Why, explain
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.edges import Dependency
from windlass.core.job import WORKER_KEPT_MS, ErrorInfo, JobRecord, JobRef, WorkerInfo
from windlass.core.limit_rules import GroupLimits
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass_conformance.harness import QUEUE, Harness
from windlass_conformance.needs import needs


class _Asked:
    """Answers the requests of ``explain`` at the time of the harness."""

    def __init__(self, harness: Harness) -> None:
        self.execute = harness.do
        self.capabilities = harness.backend.capabilities

    async def get(self, ref: JobRef) -> JobRecord | None:
        return (await self.execute(rq.GetJobs(refs=[ref])))[0]


async def why(harness: Harness, job_id: str) -> Why:
    """The explanation for a job of the queue."""
    return await explain(cast("Store", _Asked(harness)), JobRef(QUEUE, job_id), harness.now_ms)


def kinds(found: Why) -> list[str]:
    return [cause.kind for cause in found.causes]


async def serve(harness: Harness, *, slots: int = 4, **fields: Any) -> None:
    """Send the heartbeat of a worker that serves the queue."""
    info = WorkerInfo(id="w1", queues=(QUEUE,), concurrency=slots, **fields)
    await harness.do(rq.Beat(worker=info))


async def test_a_job_that_no_worker_serves_says_so(harness: Harness) -> None:
    await harness.add("a")
    assert kinds(await why(harness, "a")) == ["no_worker"]
    await serve(harness, quiet=True)
    assert kinds(await why(harness, "a")) == ["workers_quiet"]


async def test_a_job_says_that_its_queue_is_paused(harness: Harness) -> None:
    await harness.add("a")
    await serve(harness)
    await harness.do(rq.PauseQueue(queue=QUEUE, paused=True))
    assert kinds(await why(harness, "a")) == ["queue_paused"]


async def test_a_waiting_job_knows_its_place_in_line(harness: Harness) -> None:
    await serve(harness)
    await harness.add_many("a", "b")
    await harness.add("first", priority=1)
    assert [(await why(harness, name)).place for name in ("first", "a", "b")] == [1, 2, 3]
    found = await why(harness, "b")
    assert kinds(found) == ["behind"] and found.causes[0].used == 2


async def test_a_job_says_that_all_slots_are_busy(harness: Harness) -> None:
    await serve(harness, slots=2, busy=2)
    await harness.add("a")
    found = await why(harness, "a")
    assert kinds(found) == ["workers_busy"] and (found.causes[0].used, found.causes[0].limit) == (2, 2)


async def test_a_job_that_is_due_later_says_when(harness: Harness) -> None:
    await serve(harness)
    await harness.settle(await harness.start("again"), Outcome.RETRY, delay_ms=7_000)
    await harness.add("later", delay_ms=5_000)
    later, again = await why(harness, "later"), await why(harness, "again")
    assert (kinds(later), later.causes[0].until_ms) == (["scheduled"], harness.now_ms + 5_000)
    assert (kinds(again), again.causes[0].until_ms) == (["retry_later"], harness.now_ms + 7_000)


async def test_a_job_that_runs_or_has_ended_says_so(harness: Harness) -> None:
    await harness.finish("done")
    await harness.start("running")
    assert kinds(await why(harness, "done")) == ["finished"]
    assert kinds(await why(harness, "running")) == ["running"]


async def test_a_job_whose_task_no_worker_knows_says_so(harness: Harness) -> None:
    await serve(harness)
    job = await harness.start("a")
    await harness.settle(job, Outcome.RELEASE, delay_ms=5_000, miss=True, reason="unknown_task")
    found = await why(harness, "a")
    assert kinds(found) == ["unknown_task", "scheduled"]
    assert repr(job.task) in found.causes[0].text


async def test_a_job_that_failed_names_its_last_error(harness: Harness) -> None:
    error = ErrorInfo(at_ms=harness.now_ms, attempt=1, error_class="ValueError", message="no luck")
    await harness.settle(await harness.start("a"), Outcome.FAIL, error=error, reason="attempts")
    (cause,) = (await why(harness, "a")).causes
    assert cause.text == "it has ended: failed (attempts); its last error is ValueError"
    assert "windlass job" in cause.advice and "windlass retry" in cause.advice


async def test_a_worker_that_fell_silent_is_remembered_for_a_day_and_one_that_left_is_not(
    harness: Harness,
) -> None:
    await serve(harness)
    await harness.do(rq.Beat(worker=WorkerInfo(id="left")))
    await harness.do(rq.Beat(worker=WorkerInfo(id="left"), gone=True))
    harness.pass_ms(WORKER_KEPT_MS - 1)
    await harness.do(rq.Prune())
    assert await harness.do(rq.ListWorkers()) == []
    known = await harness.do(rq.ListWorkers(stale_ms=WORKER_KEPT_MS))
    assert [worker.id for worker in known] == ["w1"]
    harness.pass_ms(2)
    await harness.do(rq.Prune())
    assert await harness.do(rq.ListWorkers(stale_ms=2 * WORKER_KEPT_MS)) == []


@needs("limits")
async def test_a_job_names_those_that_use_up_the_concurrency_of_its_queue(harness: Harness) -> None:
    await serve(harness)
    await harness.do(lrq.SetQueueLimits(queue=QUEUE, fields=["concurrency"], concurrency=1))
    await harness.start("holder")
    await harness.add("a")
    found = await why(harness, "a")
    assert kinds(found) == ["queue_concurrency"]
    assert found.causes[0].jobs == [JobRef(QUEUE, "holder")]
    assert (found.causes[0].limit, found.causes[0].used) == (1, 1)


@needs("groups")
async def test_a_parked_job_names_those_that_use_up_the_concurrency_of_its_group(harness: Harness) -> None:
    await serve(harness)
    limits = GroupLimits(concurrency=1)
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="acme", limits=limits))
    await harness.start("holder", options=StoredOptions(group="acme"))
    await harness.add("a", options=StoredOptions(group="acme"))
    found = await why(harness, "a")
    assert kinds(found)[0] == "group_concurrency"
    assert found.causes[0].jobs == [JobRef(QUEUE, "holder")]
    await harness.do(lrq.PauseGroup(queue=QUEUE, group="acme", paused=True))
    assert kinds(await why(harness, "a"))[0] == "group_paused"


@needs("flows")
async def test_a_blocked_job_names_those_that_it_waits_for(harness: Harness) -> None:
    await serve(harness)
    jobs = [harness.new("child"), harness.new("parent", depends_on=[Dependency(QUEUE, "child")])]
    await harness.do(rq.Add(jobs=jobs))
    found = await why(harness, "parent")
    assert kinds(found) == ["dependencies"]
    assert (found.causes[0].jobs, found.causes[0].job_count) == ([JobRef(QUEUE, "child")], 1)
