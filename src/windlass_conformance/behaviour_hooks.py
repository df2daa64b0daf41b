"""Middleware, carried context, dependencies, lifespan and error hooks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Annotated, Any

import pytest

from windlass import ConfigError, Depends, Job, JobState, Snooze, Windlass, current_job
from windlass.errors import MaxRetriesError, UnrecoverableError
from windlass.handlers import AttemptEnd, Outgoing
from windlass_conformance import targets
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import QUEUE, Stage, eventually

tenant: ContextVar[str] = ContextVar("tenant")


async def pool() -> AsyncIterator[str]:
    """A dependency that records its start and end in the worker's context."""
    told = current_job().context
    told.append("pool opened")
    yield "pool"
    told.append("pool closed")


def connection(source: Annotated[str, Depends(pool)]) -> Iterator[str]:
    """A dependency that has a dependency."""
    told = current_job().context
    told.append("connection opened")
    try:
        yield f"connection of {source}"
    except ValueError:
        told.append("saw the error")
        raise
    finally:
        told.append("connection closed")


@pytest.mark.feature("J25")
@needs("priority")
async def test_hooks_run_around_an_enqueue_from_the_outside_in(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told: list[str] = []

        @stage.app.around_enqueue
        async def outer(outgoing: Outgoing, proceed: Callable[[], Awaitable[Any]]) -> Any:
            told.append("outer in")
            jobs = await proceed()
            told.append(f"outer out {len(jobs)}")
            return jobs

        @stage.app.around_enqueue
        def inner(outgoing: Outgoing) -> Iterator[None]:
            told.append(f"inner in {[outgoing.arguments(new).data for new in outgoing.jobs]}")
            for new in outgoing.jobs:
                new.priority = 7
            yield
            told.append("inner out")

        jobs = await stage.queue.add_bulk([{"name": "n", "data": 1}, {"name": "n", "data": 2}])
        assert told == ["outer in", "inner in [1, 2]", "inner out", "outer out 2"]
        assert [(await job.refresh()).priority for job in jobs] == [7, 7]


@pytest.mark.feature("J25")
async def test_an_enqueue_hook_can_refuse_and_then_nothing_is_added(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.around_enqueue
        def refuse(outgoing: Outgoing) -> Iterator[None]:
            if outgoing.jobs[0].task == "forbidden":
                raise PermissionError("not this one")
            yield

        with pytest.raises(PermissionError):
            await stage.queue.add("forbidden")
        await stage.queue.add("allowed")
        assert await stage.queue.count() == 1


@pytest.mark.feature("J25", "Q5")
async def test_hooks_run_around_every_attempt_and_see_its_end(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told: list[str] = []
        ends: list[tuple[str, int, str | None]] = []

        class Watch:
            async def execute(self, job: Job[Any], proceed: Callable[[], Awaitable[Any]]) -> Any:
                told.append(f"run {job.attempt}")
                try:
                    return [await proceed()]
                finally:
                    told.append("over")

            def ended(self, job: Job[Any], end: AttemptEnd) -> None:
                ends.append((end.outcome, end.duration_ms, type(end.error).__name__ if end.error else None))

        stage.app.use(Watch())

        @stage.app.around_execute
        async def measure(job: Job[Any]) -> AsyncIterator[None]:
            told.append("inside")
            yield

        async def fail_once(job: Job[Any]) -> str:
            if job.attempt == 1:
                raise ValueError("first")
            return "second"

        await stage.work(fail_once)
        job = await stage.queue.add("n", backoff=0)
        assert await job.result() == ["second"]
        await stage.settle()
        assert told == ["run 1", "inside", "over", "run 2", "inside", "over"]
        assert ends == [("retrying", 0, "ValueError"), ("completed", 0, None)]


@pytest.mark.feature("J25")
async def test_a_hook_can_end_a_run_before_its_handler(harness: Harness) -> None:
    async with Stage(harness) as stage:
        ran: list[str] = []

        @stage.app.around_execute
        def gate(job: Job[Any]) -> Iterator[None]:
            if job.deliveries == 1:
                raise Snooze(60)
            yield

        await stage.work(lambda job: ran.append(job.id))
        job = await stage.queue.add("n")
        await stage.until_state(job, JobState.SCHEDULED)
        assert ran == []
        await stage.advance(61)
        await stage.until_state(job, JobState.COMPLETED)
        assert (await job.refresh()).attempts == 0
        assert ran == [job.id]


async def test_what_is_no_hook_is_refused(harness: Harness) -> None:
    async with Stage(harness) as stage:
        for bad in (lambda job: None, "hook"):
            with pytest.raises(ConfigError, match="generator that yields once"):
                stage.app.around_execute(bad)  # type: ignore[type-var]
        with pytest.raises(ConfigError, match="enqueue, execute, ended or failed"):
            stage.app.use(object())
        assert stage.app.hooks.execute is None


@pytest.mark.feature("S5")
async def test_context_variables_travel_from_the_producer_to_every_kind_of_handler(harness: Harness) -> None:
    async with Stage(harness) as stage:
        stage.app.carry(tenant)

        @stage.app.task(queue=QUEUE)
        async def on_loop() -> str:
            return tenant.get("no tenant")

        @stage.app.task(queue=QUEUE)
        def in_thread() -> str:
            return tenant.get("no tenant")

        await stage.work()
        token = tenant.set("acme")
        jobs = [await on_loop.enqueue(), await in_thread.enqueue()]
        tenant.reset(token)
        assert [await job.result() for job in jobs] == ["acme", "acme"]
        assert await (await on_loop.enqueue()).result() == "no tenant"
        assert jobs[0].trace == {"ctx.tenant": '"acme"'}


@pytest.mark.feature("S5", "T1", "Y7")
async def test_context_and_dependencies_reach_a_child_process(harness: Harness) -> None:
    async with Stage(harness) as stage:
        stage.app.carry(targets.locale)  # as the app of the child's module does
        greet = stage.app.task(queue=QUEUE, isolation="process")(targets.greet.fn)
        await stage.work()
        token = targets.locale.set("de")
        job = await greet.enqueue("Ada")
        targets.locale.reset(token)
        assert await job.result() == "de: Ada, open"
        lines, _ = await stage.queue.get_job_logs(job.id)
        assert lines == ["opened", "closed"]


@pytest.mark.feature("Y7")
async def test_dependencies_are_made_for_a_run_and_closed_after_it(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told: list[str] = []

        @stage.app.task(queue=QUEUE, max_attempts=1)
        async def charge(
            db: Annotated[str, Depends(connection)],
            order: int,
            job: Job[Any] = Depends(current_job),
            again: str = Depends(pool),
        ) -> str:
            if order < 0:
                raise ValueError("no such order")
            return f"{order} by {db}, {again}, attempt {job.attempt}"

        @stage.app.task(queue=QUEUE)
        def plain(order: int, db: str = Depends(connection)) -> str:
            return f"{order} by {db}"

        await stage.work(context=told)
        enqueue: Any = charge.enqueue
        assert await (await enqueue(5)).result() == "5 by connection of pool, pool, attempt 1"
        assert told == ["pool opened", "connection opened", "connection closed", "pool closed"]
        told.clear()
        assert await (await plain.enqueue(6)).result() == "6 by connection of pool"
        told.clear()
        failed = await enqueue(order=-1)
        await stage.until_state(failed, JobState.FAILED)
        assert told == [
            "pool opened",
            "connection opened",
            "saw the error",
            "connection closed",
        ], "an error passes through what is open, as in a with block"
        with pytest.raises(ConfigError):
            await enqueue(5, db="mine")


@pytest.mark.feature("Y7")
async def test_handlers_that_receive_the_job_have_dependencies_too(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any], db: Annotated[str, Depends(connection)]) -> str:
            return f"{job.data} by {db}"

        def plain(job: Job[Any], db: str = Depends(connection)) -> str:
            return f"plain {job.data} by {db}"

        stage.app.register("n", handler)
        stage.app.register("plain", plain)
        await stage.work(context=list[str]())
        assert await (await stage.queue.add("n", 5)).result() == "5 by connection of pool"
        assert await (await stage.queue.add("plain", 6)).result() == "plain 6 by connection of pool"


@pytest.mark.feature("Y7")
async def test_a_dependency_that_fails_fails_the_attempt(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def broken() -> str:
            raise ConnectionError("no database")

        @stage.app.task(queue=QUEUE, max_attempts=1)
        async def work(db: str = Depends(broken)) -> None:
            raise AssertionError("never reached")

        await stage.work()
        job = await work.enqueue()
        await stage.until_state(job, JobState.FAILED)
        assert (await job.refresh()).errors[-1].error_class == "ConnectionError"


@pytest.mark.feature("Y7")
async def test_a_lifespan_is_opened_before_the_first_job_and_closed_after_the_last(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told: list[str] = []

        @stage.app.lifespan
        async def resources(app: Windlass) -> AsyncIterator[dict[str, str]]:
            told.append("open")
            yield {"db": "postgres"}
            told.append("closed")

        async def handler(job: Job[Any]) -> str:
            told.append("job")
            return str(job.context["db"])

        worker = await stage.work(handler)
        assert await (await stage.queue.add("n")).result() == "postgres"
        await worker.close()
        assert told == ["open", "job", "closed"]


@pytest.mark.feature("Y7")
async def test_a_worker_whose_resources_fail_does_not_start(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.lifespan
        async def resources(app: Windlass) -> AsyncIterator[None]:
            if app.tasks == {}:
                raise ConnectionError("no database")
            yield

        job = await stage.queue.add("n")
        with pytest.raises(ConnectionError):
            await stage.work(lambda job: None)
        assert await job.get_state() is JobState.WAITING


@pytest.mark.feature("S4")
async def test_error_hooks_hear_of_every_failed_run_and_of_no_signal(harness: Harness) -> None:
    async with Stage(harness) as stage:
        heard: list[tuple[str, str, bool]] = []
        done = asyncio.Event()

        @stage.app.on_error
        async def track(job: Job[Any], error: BaseException, final: bool) -> None:
            heard.append((job.name, str(error), final))
            if final:
                done.set()

        @stage.app.on_error
        def broken(job: Job[Any], error: BaseException, final: bool) -> None:
            raise RuntimeError("the tracker is down")

        async def handler(job: Job[Any]) -> None:
            if job.name == "later" and job.deliveries == 1:
                raise Snooze
            if job.name == "bad":
                raise ValueError(f"attempt {job.attempt}")

        await stage.work(handler)
        await (await stage.queue.add("later")).result()
        await stage.queue.add("bad", max_attempts=2, backoff=0)
        async with asyncio.timeout(10):
            await done.wait()
        assert heard == [("bad", "attempt 1", False), ("bad", "attempt 2", True)]


@pytest.mark.feature("C19")
async def test_a_hook_on_death_is_called_once_when_a_job_has_failed_for_good(harness: Harness) -> None:
    async with Stage(harness) as stage:
        died: list[tuple[str, type[BaseException], str]] = []

        @stage.app.on_death
        def bury(job: Job[Any], error: BaseException) -> None:
            died.append((job.name, type(error), str(error.__cause__ or error)))

        @stage.app.on_death
        def broken(job: Job[Any], error: BaseException) -> None:
            raise RuntimeError("a hook that fails harms no other")

        async def handler(job: Job[Any]) -> None:
            if job.name == "fine" and job.attempt == 2:
                return
            if job.name == "at once":
                raise UnrecoverableError("no use")
            raise ValueError(f"attempt {job.attempt}")

        await stage.work(handler)
        for name in ("fine", "spent", "at once"):
            await (await stage.queue.add(name, max_attempts=2, backoff=0)).wait_until_finished()
        await eventually(lambda: len(died) == 2)
        assert died == [
            ("spent", MaxRetriesError, "attempt 2"),
            ("at once", UnrecoverableError, "no use"),
        ]
        with pytest.raises(ConfigError, match="a function of"):
            stage.app.on_death("mail")  # type: ignore[type-var]


@pytest.mark.feature("C19")
async def test_a_job_is_retried_for_a_duration_and_no_longer(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs: list[float] = []
        start = stage.clock.now_ms()

        async def handler(job: Job[Any]) -> None:
            runs.append((stage.clock.now_ms() - start) / 1000)
            raise ValueError("not yet")

        await stage.work(handler, duties=True)
        policy = {"type": "fixed", "delay": 10, "jitter": 0}
        job = await stage.queue.add("n", max_attempts=1_000, expires_total=35, backoff=policy)
        await stage.advance(120)
        assert (await job.refresh()).state is JobState.FAILED
        assert (job.reason, [round(at) for at in runs]) == ("expired", [0, 10, 20, 30])
