"""Edges of what runs around jobs: transactions, refusals, what is shared and what is closed."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.app.support import work_off
from windlass import ConfigError, Depends, Job, JobState, Queue, Windlass, Worker, current_job
from windlass.handlers import Outgoing
from windlass.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

request_id: ContextVar[Any] = ContextVar("request_id")


@pytest.mark.feature("A34", "S5")
@pytest.mark.parametrize("backend_name", ["sqlite"])
async def test_hooks_also_see_what_is_added_inside_a_transaction(
    app: Windlass, queue: Queue, tmp_path: Path
) -> None:
    seen: list[str] = []

    @app.around_enqueue
    def watch(outgoing: Outgoing) -> Iterator[None]:
        seen.append(outgoing.jobs[0].task)
        yield

    app.carry(request_id)
    token = request_id.set("r-1")
    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        job = queue.add_in_transaction(connection, "work")
    connection.close()
    request_id.reset(token)
    assert seen == ["work"]
    assert (await job.refresh()).trace == {"ctx.request_id": '"r-1"'}


@pytest.mark.feature("A34")
@pytest.mark.parametrize("backend_name", ["sqlite"])
async def test_a_hook_that_must_be_awaited_refuses_a_transaction(
    app: Windlass, queue: Queue, tmp_path: Path
) -> None:
    @app.around_enqueue
    async def waits(outgoing: Outgoing, proceed: Callable[[], Awaitable[Any]]) -> Any:
        return await proceed()

    with sqlite3.connect(tmp_path / "jobs.db") as connection:
        with pytest.raises(ConfigError, match="plain generator"):
            queue.add_in_transaction(connection, "work")
    connection.close()
    assert await queue.count() == 0


@pytest.mark.parametrize("backend_name", ["sqlite"])
async def test_a_hook_that_swallows_the_error_of_a_transaction_is_told_so(
    app: Windlass, queue: Queue, tmp_path: Path
) -> None:
    @app.around_enqueue
    def swallows(outgoing: Outgoing) -> Iterator[None]:
        try:
            yield
        except Exception:
            return

    connection = sqlite3.connect(tmp_path / "elsewhere.db")
    with pytest.raises(ConfigError, match="the job was not added: an enqueue hook suppressed the error"):
        queue.add_in_transaction(connection, "work")
    connection.close()
    assert await queue.count() == 0


async def test_an_enqueue_hook_that_loses_the_jobs_is_told_so(app: Windlass, queue: Queue) -> None:
    @app.around_enqueue
    async def forgets(outgoing: Outgoing, proceed: Callable[[], Awaitable[Any]]) -> Any:
        await proceed()

    with pytest.raises(ConfigError, match=r"must return what proceed\(\) returned, but returned None"):
        await queue.add("work")


@pytest.mark.keeps_threads("windlass-sync", reason="the portal lives as long as the process")
async def test_hooks_see_the_synchronous_door_too(app: Windlass) -> None:
    seen: list[int] = []

    @app.around_enqueue
    def watch(outgoing: Outgoing) -> Iterator[None]:
        seen.append(len(outgoing.jobs))
        yield

    await asyncio.to_thread(lambda: app.sync.queue("default").add_bulk([{"name": "a"}, {"name": "b"}]))
    assert seen == [2]


async def test_what_a_job_says_itself_wins_over_what_is_carried(app: Windlass, queue: Queue) -> None:
    app.carry(request_id)
    token = request_id.set({"id": 5})
    own = await queue.add("work", trace={"ctx.request_id": '"mine"', "other": "x"})
    carried = await queue.add("work")
    request_id.set(object())
    with pytest.raises(ConfigError, match=r"context variable .* has a value that JSON cannot hold"):
        await queue.add("work")
    request_id.reset(token)
    assert own.trace == {"ctx.request_id": '"mine"', "other": "x"}
    assert carried.trace == {"ctx.request_id": '{"id":5}'}
    assert await queue.count() == 2


def test_registrations_that_cannot_work_are_refused() -> None:
    app = Windlass("memory://")
    app.carry(request_id)
    app.carry(request_id)  # the same again changes nothing
    with pytest.raises(ConfigError, match="already propagated as 'request_id'"):
        app.carry(ContextVar("another"), "request_id")

    async def resources(app: Windlass) -> AsyncIterator[None]:
        yield

    app.lifespan(resources)
    with pytest.raises(ConfigError, match="already has a lifespan"):
        app.lifespan(resources)
    with pytest.raises(ConfigError, match="async generator"):
        app.lifespan(lambda app: None)
    with pytest.raises(ConfigError, match="job, error, final"):
        app.on_error("sentry")  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="Depends needs a function that makes the value, got 'pool'"):
        Depends("pool")  # type: ignore[call-overload]


def test_dependencies_that_need_each_other_are_refused() -> None:
    app = Windlass("memory://")

    def one(value: Any = None) -> None: ...

    def two(value: Any = Depends(one)) -> None: ...

    one.__defaults__ = (Depends(two),)

    with pytest.raises(ConfigError, match=r"dependencies form a cycle: \S+two -> \S+one -> \S+two$"):

        @app.task
        def work(value: Any = Depends(two)) -> None: ...

    with pytest.raises(ConfigError, match=r"parameter 'value' of \S+strict is filled by the worker"):

        @app.task
        def strict(value: Any = Depends(lambda: 1), /) -> None: ...


@pytest.mark.feature("Y7")
async def test_a_lifespan_that_fails_to_close_does_not_keep_the_worker_open(
    app: Windlass, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    @app.lifespan
    async def resources(app: Windlass) -> AsyncIterator[str]:
        yield "pool"
        raise ConnectionError("already gone")

    async def handler(job: Job[Any]) -> Any:
        return job.context

    job = await queue.add("work")
    worker = await work_off(app, "default", handler)
    assert not worker.is_running
    assert await job.result() == "pool"
    assert "lifespan failed to close" in caplog.text


async def test_a_context_of_the_worker_wins_over_the_lifespan(app: Windlass, queue: Queue) -> None:
    @app.lifespan
    async def resources(app: Windlass) -> AsyncIterator[str]:
        yield "the app's"

    async def handler(job: Job[Any]) -> Any:
        return job.context

    job = await queue.add("work")
    await Worker("default", handler, url_or_app=app, context="the worker's").drain()
    assert await job.result() == "the worker's"


async def test_a_start_that_is_tried_again_uses_the_new_resources(app: Windlass, queue: Queue) -> None:
    opened: list[int] = []

    @app.lifespan
    async def resources(app: Windlass) -> AsyncIterator[int]:
        opened.append(len(opened) + 1)
        if len(opened) == 1:
            starting.cancel()
        yield opened[-1]

    async def handler(job: Job[Any]) -> Any:
        return job.context

    job = await queue.add("work")
    worker = Worker("default", handler, url_or_app=app)
    starting = asyncio.create_task(worker.start())
    with pytest.raises(asyncio.CancelledError):
        await starting
    await worker.drain()
    assert await job.result() == 2


@pytest.mark.feature("Y7")
async def test_hooks_about_the_last_job_can_use_the_lifespan(app: Windlass, queue: Queue) -> None:
    steps: list[str] = []
    closing = asyncio.Event()

    @app.lifespan
    async def resources(app: Windlass) -> AsyncIterator[None]:
        yield
        steps.append("left")

    @app.on_death
    async def report(job: Job[Any], error: BaseException) -> None:
        await closing.wait()
        for _ in range(100):  # longer than closing takes
            await job.refresh()
        steps.append("reported")

    async def handler(job: Job[Any]) -> None:
        raise ValueError

    await queue.add("work", max_attempts=1)
    worker = Worker("default", handler, url_or_app=app)
    worker.on("closing", closing.set)
    await worker.drain()
    assert steps == ["reported", "left"]


@pytest.mark.feature("S1")
def test_nothing_of_telemetry_is_loaded_until_it_is_asked_for() -> None:
    libraries = ("opentelemetry", "prometheus_client", "cryptography")
    script = (
        "import sys, windlass, windlass.telemetry; windlass.Windlass('memory://').queue('a');"
        f"print(*[name for name in {libraries!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.feature("S1")
@pytest.mark.parametrize(
    ("module", "library", "extra"),
    [
        ("windlass.telemetry.otel", "opentelemetry", "otel"),
        ("windlass.telemetry.prometheus", "prometheus_client", "prometheus"),
        ("windlass.serde.encrypted", "cryptography", "crypto"),
    ],
)
def test_a_library_that_is_not_there_is_named(module: str, library: str, extra: str) -> None:
    script = f"import sys; sys.modules[{library!r}] = None; import windlass; import {module}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"pip install 'windlass[{extra}]'" in done.stderr


@pytest.mark.feature("S5")
async def test_what_a_schedule_adds_passes_the_hooks_and_can_be_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    app = Windlass("memory://", clock=clock)
    ran: list[dict[str, str]] = []
    refuse = False

    @app.task(name="tick", schedule={"every": 60})
    async def tick() -> None:
        ran.append(current_job().trace)

    @app.around_enqueue
    async def stamp(outgoing: Outgoing, proceed: Callable[[], Awaitable[Any]]) -> Any:
        if refuse:
            raise PermissionError("not today")
        outgoing.carry({"by": "the scheduler"})
        return await proceed()

    async with app, Worker("default", url_or_app=app):
        await clock.advance(60)
        assert ran == [{"by": "the scheduler"}]
        job = await app.queue("default").run_job_scheduler("tick")
        await clock.advance(1)
        assert (await job.get_state(), len(ran)) == (JobState.COMPLETED, 2)

        refuse = True
        await clock.advance(120)
        assert len(ran) == 2
        assert "refused the job of schedule tick of queue default; its slot passes" in caplog.text
        with pytest.raises(PermissionError):
            await app.queue("default").run_job_scheduler("tick")
        refuse = False
        await clock.advance(60)
        assert len(ran) == 3, "it goes on with the next slot"


async def test_a_decorator_may_take_other_parameters_than_what_it_wraps(app: Windlass, queue: Queue) -> None:
    def with_name(handle: Callable[[Job[Any], str], Awaitable[str]]) -> Callable[[Job[Any]], Awaitable[str]]:
        @wraps(handle)
        async def named(job: Job[Any]) -> str:
            return await handle(job, "Ada")

        return named

    @with_name
    async def greet(job: Job[Any], name: str) -> str:
        return f"hello {name}"

    job = await queue.add("greet")
    await Worker(queue.name, greet, url_or_app=app).drain()
    assert await job.result() == "hello Ada"
