"""A stored record that cannot be read affects no other job, and can be seen, set aside and removed.

These tests use the system clock, queues and a worker as in production. ``harness.damages`` lists the kinds of
damage for the store under test; each is done to one job among intact ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from windlass import Job, JobState, Queue, Unique, Windlass, Worker
from windlass.api.health import CheckContext
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.cli.checks import check_records, set_aside
from windlass.core.bad_records import BAD_RECORD
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.outcome import CancelResult
from windlass.core.states import FINISHED
from windlass.errors import IllegalTransitionError, UnsupportedByBackendError
from windlass_conformance.damage import Damaged
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs

#: Intact jobs before and after the damaged one, and in the other queue.
NEIGHBOURS = 3


@asynccontextmanager
async def ground(harness: Harness) -> AsyncIterator[Windlass]:
    """An application on the store under test, with the settings of production."""
    app = Windlass("memory://")
    app.store = Store(harness.connect(harness.namespace), SYSTEM_CLOCK)
    try:
        yield app
    finally:
        await app.close()


async def spoiled(
    harness: Harness, queue: Queue, kind: str, **options: Any
) -> tuple[list[Job[Any]], Damaged]:
    """Add intact jobs to a queue, with a damaged one in the middle."""
    jobs = [await queue.add("n", {"n": n}, **options) for n in range(2 * NEIGHBOURS + 1)]
    damaged = await asyncio.to_thread(harness.damage, jobs[NEIGHBOURS].id, kind, queue.name)
    lost = damaged.ref.id if damaged.ref is not None and damaged.job_is_lost else ""
    return [job for job in jobs if job.id != lost], damaged


async def until(
    condition: Callable[[Windlass, Damaged], Awaitable[bool]], app: Windlass, damaged: Damaged
) -> None:
    async with asyncio.timeout(10):
        while not await condition(app, damaged):  # noqa: ASYNC110 - any condition of a store, so nothing to wait on
            await asyncio.sleep(0.005)


async def has_none(harness: Harness) -> bool:
    """Whether the store has no bytes that could be damaged; then it must declare that."""
    if harness.damages:
        return False
    with pytest.raises(UnsupportedByBackendError):
        harness.damage("j", "truncated")
    return True


async def failed_as_bad(app: Windlass, damaged: Damaged) -> bool:
    if damaged.ref is None:
        return True
    job = await app.queue(damaged.ref.queue).get_job(damaged.ref.id)
    return job is not None and (job.state, job.record.reason) == (JobState.FAILED, BAD_RECORD)


async def has_ended(app: Windlass, damaged: Damaged) -> bool:
    """Whether the job has ended in any way: promoting it may have overwritten the damaged part."""
    if damaged.ref is None:
        return True
    job = await app.queue(damaged.ref.queue).get_job(damaged.ref.id)
    return job is not None and job.state in FINISHED


@pytest.mark.feature("J24")
async def test_a_damaged_record_stops_no_neighbour_and_ends_as_bad_record(harness: Harness) -> None:
    if await has_none(harness):
        return
    async with ground(harness) as app:
        for number, kind in enumerate(harness.damages):
            queue, other = app.queue(f"q{number}"), app.queue(f"other{number}")
            honest, damaged = await spoiled(harness, queue, kind)
            honest += [await other.add("n", {"n": n}) for n in range(NEIGHBOURS)]
            ran: list[str] = []

            async def handler(job: Job[Any], ran: list[str] = ran) -> str:
                ran.append(job.id)
                return "done"

            async with Worker([queue.name, other.name], handler, url_or_app=app, poll=0.05):
                for job in honest:
                    assert await job.result(timeout=10) == "done", kind
                await until(failed_as_bad, app, damaged)
            assert sorted(ran) == sorted(job.id for job in honest), kind
            if damaged.ref is not None:
                bad = await app.queue(damaged.ref.queue).get_job(damaged.ref.id)
                assert bad is not None and bad.errors[-1].error_class, kind
                assert bad.record.payload or kind.startswith(("empty", "nothing")), kind
            counts = await queue.get_job_counts()
            assert counts[JobState.WAITING] == counts[JobState.ACTIVE] == 0, kind


@pytest.mark.feature("J24")
async def test_every_look_at_a_damaged_record_answers(harness: Harness) -> None:
    if await has_none(harness):
        return
    async with ground(harness) as app:
        for number, kind in enumerate(harness.damages):
            queue = app.queue(f"q{number}")
            honest, damaged = await spoiled(harness, queue, kind)
            listed = {job.id for job in await queue.get_jobs()}
            assert {job.id for job in honest} <= listed, kind
            if damaged.ref is not None and damaged.job_is_lost:
                assert damaged.ref.id in listed, kind
                bad = await queue.get_job(damaged.ref.id)
                assert bad is not None and bad.record.reason == BAD_RECORD, kind
                assert await queue.get_status(damaged.ref.id) is not None, kind
            found = {job.id for job in await queue.search_jobs(name="n")}
            assert {job.id for job in honest} <= found, kind
            found = {job.id for job in await queue.search_jobs(data={"n": 1})}
            assert honest[1].id in found, kind
            assert sum((await queue.get_job_counts()).values()) >= len(honest), kind
            assert queue.name in {info.name for info in await app.queues()}, kind
            await queue.get_metrics()
            await app.store.execute(rq.ReadEvents(queue=queue.name, limit=1_000))
            await app.store.execute(rq.ReadHistory(queue=queue.name, limit=1_000))


@pytest.mark.feature("J24")
async def test_every_verb_on_a_damaged_record_leaves_the_honest_ones_right(harness: Harness) -> None:
    if await has_none(harness):
        return

    async def removed(queue: Queue, bad: str) -> None:
        await queue.remove(bad)
        assert await queue.get_job(bad) is None

    async def retried(queue: Queue, bad: str) -> None:
        assert await queue.cancel(bad) is CancelResult.FINISHED  # it is set aside
        assert await queue.retry_jobs() == 0
        with pytest.raises(IllegalTransitionError):
            await queue.retry(bad)

    async def cleaned(queue: Queue, bad: str) -> None:
        await queue.cancel(bad)
        assert (await queue.clean(0, state="failed")).ids == [bad]

    async def changed(queue: Queue, bad: str) -> None:
        job = await queue.get_job(bad)
        assert job is not None
        with pytest.raises(IllegalTransitionError):
            await job.change_priority(5)
        assert await job.get_state() is JobState.FAILED

    async with ground(harness) as app:
        for number, kind in enumerate(harness.damages):
            for verb in (removed, retried, cleaned, changed):
                queue = app.queue(f"{verb.__name__}{number}")
                honest, damaged = await spoiled(harness, queue, kind)
                if damaged.ref is None or not damaged.job_is_lost:
                    continue
                await verb(queue, damaged.ref.id)
                states = {await job.get_state() for job in honest}
                assert states == {JobState.WAITING}, (kind, verb.__name__)


@pytest.mark.feature("J24")
async def test_a_queue_with_a_damaged_record_can_be_drained_and_obliterated(harness: Harness) -> None:
    if await has_none(harness):
        return
    async with ground(harness) as app:
        for number, kind in enumerate(harness.damages):
            queue = app.queue(f"d{number}")
            # A message that no worker has seen is none of ours yet: it waits for one.
            _, damaged = await spoiled(harness, queue, kind)
            foreign = int(
                damaged.ref is not None and not damaged.job_is_lost and damaged.ref.queue == queue.name
            )
            await queue.drain()
            counts = await queue.get_job_counts()
            assert counts[JobState.WAITING] == foreign, kind
            queue = app.queue(f"o{number}")
            await spoiled(harness, queue, kind)
            await queue.obliterate(force=True)
            assert sum((await queue.get_job_counts()).values()) == foreign, kind


@pytest.mark.feature("J24")
async def test_a_record_that_is_damaged_while_it_is_due_later_or_runs_or_has_ended(harness: Harness) -> None:
    if await has_none(harness):
        return
    async with ground(harness) as app:
        for number, kind in enumerate(harness.damages):
            queue = app.queue(f"later{number}")
            honest, damaged = await spoiled(harness, queue, kind, delay=0.3)
            running = asyncio.Event()
            go_on = asyncio.Event()

            async def handler(
                job: Job[Any], running: asyncio.Event = running, go_on: asyncio.Event = go_on
            ) -> int:
                if job.name == "slow":
                    running.set()
                    await go_on.wait()
                return 1

            async with Worker(queue.name, handler, url_or_app=app, poll=0.05):
                for job in honest:
                    assert await job.result(timeout=10) == 1, kind
                await until(has_ended, app, damaged)
                slow = await queue.add("slow")
                await running.wait()
                await asyncio.to_thread(harness.damage, slow.id, kind, queue.name)
                go_on.set()
                after = await queue.add("n")
                assert await after.result(timeout=10) == 1, kind
                done = honest[0]
                await asyncio.to_thread(harness.damage, done.id, kind, queue.name)
                await queue.get_jobs()
                if damaged.job_is_lost:
                    await queue.remove(done.id)


@pytest.mark.feature("J24", "X3")
async def test_the_doctor_names_a_damaged_record_and_sets_it_aside(harness: Harness) -> None:
    if await has_none(harness):
        return
    async with ground(harness) as app:
        for number, kind in enumerate(harness.damages):
            queue = app.queue(f"q{number}")
            honest, damaged = await spoiled(harness, queue, kind)
            if damaged.ref is None or not damaged.job_is_lost:
                continue
            infos = [info for info in await app.queues() if info.name == queue.name]
            patient = CheckContext(app, True, SYSTEM_CLOCK.now_ms(), infos, [])
            found = [finding async for finding in check_records(patient)]
            assert len(found) == 1 and damaged.ref.id in found[0].text, kind
            assert [finding async for finding in set_aside(app)] or await failed_as_bad(app, damaged), kind
            assert await failed_as_bad(app, damaged), kind
            assert {await job.get_state() for job in honest} == {JobState.WAITING}, kind


@needs("groups")
@pytest.mark.feature("J24")
async def test_a_damaged_record_holds_up_no_other_job_of_its_group(harness: Harness) -> None:
    if await has_none(harness):
        return
    async with ground(harness) as app:
        for number, kind in enumerate(harness.damages):
            for at in (0, 2):  # one that may start, and one that is parked
                queue = app.queue(f"group{at}x{number}")
                await queue.set_group_limits("g", concurrency=1)
                jobs = [await queue.add("n", {"n": n}, group="g") for n in range(5)]
                damaged = await asyncio.to_thread(harness.damage, jobs[at].id, kind, queue.name)

                async def handler(job: Job[Any]) -> str:
                    return "done"

                lost = damaged.ref is not None and damaged.job_is_lost
                async with Worker(queue.name, handler, url_or_app=app, poll=0.05):
                    for job in jobs:
                        if not lost or job is not jobs[at]:
                            assert await job.result(timeout=10) == "done", (kind, at)


@needs("flows")
@pytest.mark.feature("J24")
async def test_who_waits_for_a_damaged_record_is_told_that_it_failed(harness: Harness) -> None:
    if await has_none(harness):
        return
    async with ground(harness) as app:
        for number, kind in enumerate(harness.damages):
            queue = app.queue(f"flow{number}")
            child = await queue.add("n", {"n": 1})
            parent = await queue.add("n", {"n": 2}, depends_on=[child], on_failure="ignore")
            await asyncio.to_thread(harness.damage, child.id, kind, queue.name)

            async def handler(job: Job[Any]) -> str:
                return "done"

            async with Worker(queue.name, handler, url_or_app=app, poll=0.05, heartbeat=0.1):
                assert await parent.result(timeout=10) == "done", kind


@needs("unique")
@pytest.mark.feature("J24")
async def test_a_damaged_record_keeps_no_unique_key_and_no_id_from_others(harness: Harness) -> None:
    if await has_none(harness):
        return
    async with ground(harness) as app:
        for number, kind in enumerate(harness.damages):
            queue = app.queue(f"keys{number}")
            holders = [
                await queue.add("n", unique=Unique("now")),
                await queue.add("n", unique=Unique("later"), delay=3_600),
                await queue.add("n", unique=Unique("bounced", ttl=3_600, mode="debounce")),
                await queue.add("n", job_id="named"),
            ]
            found = [await asyncio.to_thread(harness.damage, job.id, kind, queue.name) for job in holders]

            async def handler(job: Job[Any]) -> str:
                return "done"

            async with Worker(queue.name, handler, url_or_app=app, poll=0.05):
                for damaged in (found[0], found[3]):
                    await until(failed_as_bad, app, damaged)
                lost = found[0].ref is not None and found[0].job_is_lost
                again = [
                    await queue.add("n", unique=Unique("now")),
                    await queue.add("n", unique=Unique("later")),
                    await queue.add("n", job_id="named"),
                ]
                bounced = await queue.add("n", unique=Unique("bounced", ttl=3_600, mode="debounce"))
                for job in again if lost else ():
                    assert await job.result(timeout=10) == "done", (kind, job.outcome)
                assert (bounced.id != holders[2].id) is lost, kind
