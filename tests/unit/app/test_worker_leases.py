"""Leases of running jobs: kept, lost, taken back, and settled once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests.unit.app.support import (
    DrivenClock,
    WaitingHandler,
    event_names,
    eventually,
    history_of,
    states_of,
    watched,
    work_off,
    working,
)
from windlass import Job, JobState, Queue, StorageError, Windlass, Worker
from windlass.backend import requests as rq
from windlass.testing.wrapper import BackendWrapper
from windlass.worker.leases import LeaseKeeper
from windlass.worker.supervisor import TaskSupervisor

if TYPE_CHECKING:
    from windlass.backend import Backend

R = TypeVar("R")


async def _ok(job: Job[Any]) -> str:
    return "ok"


@pytest.mark.feature("J3", "J18")
async def test_a_long_job_keeps_its_lease(timed_app: Windlass, clock: DrivenClock) -> None:
    queue = timed_app.queue("default")

    async def handler(job: Job[Any]) -> str:
        await clock.wait(asyncio.Event(), 300_000)
        return "after five minutes"

    job = await queue.add("work")
    async with working(timed_app, "default", handler, lease=30, recover_every=5):
        await clock.advance(301)
        assert await job.get_state() is JobState.COMPLETED
    assert (job.deliveries, job.stalled_count) == (1, 0)


@pytest.mark.feature("J3", "J18")
@pytest.mark.parametrize("leases", [(60, 3, None), (3, 60, None), (None, 60, 3)])
async def test_jobs_of_one_claim_keep_leases_of_different_lengths(
    timed_app: Windlass, clock: DrivenClock, leases: tuple[int | None, ...]
) -> None:
    queue = timed_app.queue("default")

    async def handler(job: Job[Any]) -> None:
        await clock.wait(asyncio.Event(), 20_000)

    await queue.add_bulk([{"name": "n", "lease": lease} for lease in leases])
    async with working(timed_app, "default", handler, lease=30, recover_every=1):
        await clock.advance(21)
        assert await states_of(queue) == {JobState.COMPLETED: 3}
    jobs = await queue.get_jobs(["completed"])
    assert [(job.deliveries, job.stalled_count) for job in jobs] == [(1, 0)] * 3


class _SlowToClaim(BackendWrapper):
    """A store whose client waits for a minute before it leases the jobs of the first claim."""

    def __init__(self, inner: Backend, clock: DrivenClock) -> None:
        super().__init__(inner)
        self._clock, self._waited = clock, False

    async def execute(self, request: rq.Request[R]) -> R:
        if not isinstance(request, rq.Claim) or self._waited:
            return await super().execute(request)
        self._waited = True
        await self._clock.wait(asyncio.Event(), 60_000)
        request.now_ms = self._clock.now_ms()
        answer: Any = await super().execute(request)
        answer.held_ms = -60_000
        return answer  # type: ignore[no-any-return]

    def clone(self) -> Backend:
        return self.inner.clone()


@pytest.mark.feature("J3")
async def test_a_lease_counts_from_its_start_and_not_from_a_claim_that_waited(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")

    async def handler(job: Job[Any]) -> str:
        await clock.wait(asyncio.Event(), 10_000)
        return "ok"

    job = await queue.add("work")
    timed_app.store.backend = _SlowToClaim(timed_app.store.backend, clock)
    async with working(timed_app, "default", handler, lease=30, recover_every=5):
        await clock.advance(75)
        assert await job.get_state() is JobState.COMPLETED
    assert (job.deliveries, job.stalled_count) == (1, 0)


@pytest.mark.feature("J3", "J7", "J8", "J24", "K4")
async def test_a_silent_workers_job_is_taken_back_and_its_late_answer_refused(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    heard: list[str] = []
    job = await queue.add("work")
    claim = rq.Claim(
        worker="silent", queues=[rq.ClaimQueue("default", 1, 1)], limit=1, claim_id="c1", lease_ms=30_000
    )
    (record,) = (await timed_app.store.execute(claim)).jobs
    async with working(timed_app, "default", _ok, recover_every=5) as worker:
        worker.on("stalled", heard.append)
        await clock.advance(29)
        assert (await job.refresh()).worker_id == "silent"
        await clock.advance(10)
        await job.refresh()
    assert (job.state, job.deliveries, job.stalled_count) == (JobState.COMPLETED, 2, 1)
    assert heard == [job.id]
    from windlass.core.outcome import Outcome, Settlement

    late = Settlement(
        queue="default", id=job.id, token=record.token or "", outcome=Outcome.COMPLETE, result=b'"late"'
    )
    assert (await timed_app.store.execute(rq.Settle(items=[late]))).items == ["lost"]
    assert await job.result() == "ok"
    assert "stalled" in await event_names(queue, job.id)


@pytest.mark.feature("C18", "J3")
async def test_too_many_stalls_fail_the_job_apart_from_its_attempts(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    job = await queue.add("work", max_stalls=1, max_attempts=10)
    for number in range(2):
        claim = rq.Claim(
            worker="w",
            queues=[rq.ClaimQueue("default", 1, 1)],
            limit=1,
            claim_id=f"c{number}",
            lease_ms=1_000,
        )
        await timed_app.store.execute(claim)
        await clock.advance(1.1)
        await timed_app.store.execute(rq.Recover())
    await job.refresh()
    assert (job.state, job.reason, job.attempts) == (JobState.FAILED, "stalled", 0)
    assert job.errors[-1].error_class == "JobStalled"


async def test_a_handler_whose_lease_is_lost_is_stopped_and_changes_nothing(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    handler = WaitingHandler()
    lost: list[str] = []
    job = await queue.add("work")
    async with working(timed_app, "default", handler, lease=30, duties=False) as worker:
        worker.on("lease_lost", lambda job: lost.append(job.id))
        await clock.settle()
        backend = timed_app.store.backend

        def away(request: Any) -> None:
            raise StorageError("away")

        backend.before = away  # type: ignore[attr-defined]
        await clock.advance(60)
        assert handler.reasons == ["lost"], "by its own clock, without asking the store"
        assert lost == [job.id]
        backend.before = None  # type: ignore[attr-defined]
        await clock.settle()
        assert await job.get_state() in (JobState.ACTIVE, JobState.WAITING)


async def test_an_attempt_that_ends_while_others_are_settled_is_settled_once(
    app: Windlass, queue: Queue
) -> None:
    """The list of ended attempts that is on its way to the store must not change under way."""
    backend = watched(app)
    second = asyncio.Event()
    inner = backend.execute
    held: list[int] = []

    async def execute(request: Any) -> Any:
        if isinstance(request, rq.Settle) and not held:
            held.append(len(request.items))
            answer = inner(request)
            second.set()
            await eventually(other_ended)
            return await answer
        return await inner(request)

    async def other_ended() -> bool:
        """The other attempt ends while this settle is under way."""
        return not worker.busy

    backend.execute = execute  # type: ignore[method-assign]
    runs: Counter[str] = Counter()

    async def handler(job: Job[Any]) -> None:
        runs[job.name] += 1
        if job.name == "second":
            await second.wait()

    await queue.add_bulk([{"name": "first"}, {"name": "second"}])
    worker = Worker("default", handler, url_or_app=app)
    await worker.drain()
    assert runs == {"first": 1, "second": 1}
    assert [row.outcome for row in await history_of(queue)] == ["completed", "completed"]


@pytest.mark.feature("Z14")
@pytest.mark.parametrize("kind", ["Claim", "Settle"])
async def test_a_lost_reply_neither_loses_doubles_nor_stalls_a_job(
    app: Windlass, queue: Queue, kind: str
) -> None:
    backend = watched(app)
    lost: list[str] = []

    def lose(request: rq.Request[Any]) -> None:
        if type(request).__name__ == kind and not lost:
            lost.append(kind)
            raise StorageError("the reply was lost")

    backend.after = lose
    runs: list[str] = []

    async def handler(job: Job[Any]) -> None:
        runs.append(job.id)

    jobs = await queue.add_bulk([{"name": "n"} for _ in range(5)])
    await work_off(app, "default", handler, concurrency=2)
    assert lost == [kind]
    assert sorted(runs) == sorted(job.id for job in jobs)
    assert await states_of(queue) == {JobState.COMPLETED: 5}
    for job in jobs:
        await job.refresh()
        assert (job.stalled_count, job.attempts) == (0, 0)


class _Interrupted(dict[str, Any]):
    """Leases. The functions in ``then`` are called one after the other, each after a reading, as by another
    thread.
    """

    then: tuple[Callable[[], None], ...] = ()

    def values(self) -> Any:
        found = dict(self)
        for step in self.then[:1]:
            self.then = self.then[1:]
            step()
        return found.values()


@pytest.mark.feature("J3", "J18")
async def test_a_lease_that_begins_while_the_next_renewal_is_planned_is_renewed_in_time(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    await timed_app.queue("default").add("work")
    claim = rq.Claim(worker="w", queues=[rq.ClaimQueue("default", 1, 1)], limit=1, claim_id="c")
    jobs = (await timed_app.store.execute(claim)).jobs
    lost: list[str] = []
    keeper = LeaseKeeper(
        timed_app.store, TaskSupervisor(clock), on_lost=lost.append, on_cancel=lambda token: None
    )
    keeper._held = leases = _Interrupted()
    await keeper.start()
    await clock.advance(4)
    renewal, plan = lambda: None, lambda: keeper.hold(jobs, 3_000, clock.monotonic_ms())
    leases.then = renewal, plan
    await clock.advance(5)
    assert keeper.tokens == [job.token for job in jobs]
    assert lost == []
    await keeper.stop()
