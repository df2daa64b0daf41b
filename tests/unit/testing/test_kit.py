"""The kit for tests of applications: what was enqueued, drain, inline."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from tests.backends.harnesses import HARNESSES
from windlass import ConfigError, JobState, Queue, Retry, Snooze, Windlass, Worker
from windlass.core.ids import new_id
from windlass.testing import (
    ManualClock,
    all_enqueued,
    assert_enqueued,
    drain,
    inline,
    refute_enqueued,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture(params=HARNESSES)
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def app(backend_name: str, tmp_path: Path) -> AsyncIterator[Windlass]:
    base = "memory://" if backend_name == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    async with Windlass(f"{base}?namespace=n{new_id()}", clock=ManualClock()) as app:
        yield app


@pytest.fixture
def queue(app: Windlass) -> Queue:
    return app.queue("mail")


# --- what was enqueued ----------------------------------------------------------------------------


@pytest.mark.feature("U6")
async def test_an_enqueued_job_is_found_by_what_it_is(queue: Queue) -> None:
    await queue.add("send", {"to": "ada", "subject": "hi"}, delay=60, priority=5, tags=["red"])
    job = await assert_enqueued(queue, "send", data={"to": "ada"}, delay=60, priority=5, tags=["red"])
    assert job.data == {"to": "ada", "subject": "hi"}
    await assert_enqueued(queue)
    await refute_enqueued(queue, "receive")
    await refute_enqueued(queue, "send", data={"to": "bob"})
    await refute_enqueued(queue, "send", delay=61)


@pytest.mark.feature("U6")
async def test_a_task_can_stand_for_its_queue_and_name(app: Windlass) -> None:
    @app.task(queue="mail")
    async def send(to: str, subject: str = "") -> None: ...

    await send.enqueue("ada", subject="hi")
    await assert_enqueued(send, args=["ada"], kwargs={"subject": "hi"})
    await assert_enqueued(send.options(priority=1), args=("ada",))
    await refute_enqueued(send, args=["bob"])
    with pytest.raises(ConfigError):
        await assert_enqueued(send, "another-name")


@dataclass
class Order:
    number: int


@pytest.mark.feature("U6")
async def test_values_are_compared_as_handlers_read_them(app: Windlass) -> None:
    @app.task(queue="mail")
    async def ship(order: Order, on: date) -> None: ...

    await ship.options(delay=60).enqueue(Order(7), on=date(2026, 1, 2))
    await assert_enqueued(ship, args=[Order(7)], kwargs={"on": date(2026, 1, 2)}, delay=timedelta(minutes=1))
    await assert_enqueued(ship, args=[ANY], data={"args": [Order(7)]})
    matches: list[dict[str, Any]] = [
        {"args": [Order(7)]},
        {"kwargs": {"on": date(2026, 1, 2)}},
        {"delay": timedelta(minutes=1)},
    ]
    for match in matches:
        with pytest.raises(AssertionError, match="a job of queue 'mail' matches"):
            await refute_enqueued(ship, **match)
    await refute_enqueued(ship, args=[Order(8)])
    wrongs: list[dict[str, Any]] = [{"state": "schedulde"}, {"tags": "red"}, {"delay": "1m"}]
    for wrong in wrongs:  # none of them matches any job
        with pytest.raises(ConfigError):
            await refute_enqueued(ship, **wrong)


@pytest.mark.feature("U6")
async def test_the_complaint_tells_what_is_there(queue: Queue) -> None:
    await queue.add("send", {"to": "ada"})
    with pytest.raises(AssertionError, match=r"(?s)no job of queue 'mail'.*send \{'to': 'ada'\} \(waiting\)"):
        await assert_enqueued(queue, "send", data={"to": "bob"})
    with pytest.raises(AssertionError, match="a job of queue 'mail' matches"):
        await refute_enqueued(queue, "send")


@pytest.mark.feature("U6")
async def test_an_empty_queue_says_so(queue: Queue) -> None:
    with pytest.raises(AssertionError, match="nothing"):
        await assert_enqueued(queue)


@pytest.mark.feature("U6")
async def test_every_match_is_given_oldest_first(queue: Queue) -> None:
    await queue.add_bulk([{"name": "send", "data": [n]} for n in range(3)])
    assert [job.args for job in await all_enqueued(queue, "send")] == [[0], [1], [2]]
    assert len(await all_enqueued(queue, data=[1])) == 1
    assert len(await all_enqueued(queue, data=(1,))) == 1


@pytest.mark.feature("U6")
async def test_a_misspelt_match_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="priority"):
        await assert_enqueued(queue, prioritty=5)


@pytest.mark.feature("U6")
async def test_finished_jobs_count_only_when_asked_for(app: Windlass, queue: Queue) -> None:
    app.register("send", lambda job: None)
    await queue.add("send")
    await drain(app)
    await refute_enqueued(queue, "send")
    await assert_enqueued(queue, "send", states=["completed"])


# --- drain ----------------------------------------------------------------------------------------


@pytest.mark.feature("U6", "J19")
async def test_drain_runs_what_is_due_and_what_that_enqueues(app: Windlass, queue: Queue) -> None:
    ran: list[str] = []

    async def first(job: Any) -> None:
        ran.append("first")
        await app.queue("other").add("second")

    async def second(job: Any) -> None:
        ran.append("second")

    app.register("first", first)
    app.register("second", second)
    await queue.add("first")
    await queue.add("first", delay=60)
    assert await drain(app) == 2
    assert ran == ["first", "second"]
    await assert_enqueued(queue, "first", state=JobState.SCHEDULED)


@pytest.mark.feature("U6")
async def test_drain_can_look_ahead_and_runs_each_job_at_its_time(app: Windlass, queue: Queue) -> None:
    start, ran = app.clock.now_ms(), list[tuple[str, int]]()

    async def note(job: Any) -> None:
        ran.append((job.name, (app.clock.now_ms() - start) // 1000))
        if job.name == "fails" and job.attempt == 1:
            raise Retry(20)
        if job.name == "snoozes" and job.deliveries == 1:
            raise Snooze(5)

    for name in ("fails", "snoozes", "late", "too late"):
        app.register(name, note)
    await queue.add("fails", delay=10)
    await queue.add("snoozes", delay=12)
    await queue.add("late", delay=60)
    await queue.add("too late", delay=61)
    assert await drain(app, ahead=60) == 5
    assert ran == [("fails", 10), ("snoozes", 12), ("snoozes", 17), ("fails", 30), ("late", 60)]
    assert app.clock.now_ms() - start == 60_000
    await assert_enqueued(queue, "too late")


@pytest.mark.feature("U6")
async def test_drain_fires_the_schedules_that_are_due_meanwhile(app: Windlass, queue: Queue) -> None:
    start, ran = app.clock.now_ms(), list[tuple[str, int]]()

    def note(name: str) -> None:
        ran.append((name, (app.clock.now_ms() - start) // 1000))

    @app.task(name="report", queue="mail", schedule={"every": 60})
    async def report() -> None:
        note("report")

    @app.task(name="tick", queue="mail")
    async def tick() -> None:
        note("tick")

    assert await drain(app) == 0
    await queue.upsert_job_scheduler("ticks", {"every": 45}, {"name": "tick"})
    assert await drain(app, ahead=59) == 1
    assert await drain(app, ahead=61) == 3
    assert ran == [("tick", 45), ("report", 60), ("tick", 90), ("report", 120)]


@pytest.mark.feature("U6")
async def test_drain_fires_a_cron_line_at_its_minute(app: Windlass) -> None:
    ran: list[str] = []

    @app.task(name="nightly", queue="mail", cron="30 3 * * *")
    async def nightly() -> None:
        ran.append(datetime.fromtimestamp(app.clock.now_ms() / 1000, UTC).strftime("%H:%M"))

    assert await drain(app, ahead=2 * 86_400) == 2
    assert ran == ["03:30", "03:30"]


@pytest.mark.feature("U2", "U6")
async def test_deduplication_and_cached_results_work_in_tests_too(app: Windlass, queue: Queue) -> None:
    runs: list[str] = []

    async def once(job: Any) -> str:
        runs.append(job.id)
        return "done"

    app.register("once", once)
    first = await queue.add("once", job_id="own")
    assert (first.outcome, (await queue.add("once", job_id="own")).outcome) == ("queued", "duplicate")
    await drain(app)
    again = await queue.add("once", job_id="own")
    assert (again.outcome, await again.result(), runs) == ("cached", "done", ["own"])


@pytest.mark.feature("U6")
async def test_drain_leaves_paused_queues_alone(app: Windlass, queue: Queue) -> None:
    app.register("send", lambda job: None)
    await queue.pause()
    await queue.add("send")
    assert await drain(app) == 0
    await assert_enqueued(queue, "send")


@pytest.mark.feature("U6")
async def test_drain_of_nothing_does_nothing(app: Windlass) -> None:
    assert await drain(app) == 0


@pytest.mark.feature("U6")
async def test_drain_uses_a_given_worker_and_leaves_it_running(app: Windlass, queue: Queue) -> None:
    ran: list[str] = []
    worker = Worker("mail", lambda job: ran.append(job.name), url_or_app=app, duties=False)
    await queue.add("send")
    assert await drain(worker) == 1
    assert (ran, worker.is_running) == (["send"], True)
    await worker.close()


@pytest.mark.feature("U6")
async def test_looking_ahead_needs_a_clock_that_can_be_driven(tmp_path: Path) -> None:
    async with Windlass(f"memory://?namespace=n{new_id()}") as app:
        with pytest.raises(ConfigError):
            await drain(app, ahead=5)
        app.register("send", lambda job: None)
        await app.queue("mail").add("send")
        assert await drain(app) == 1


# --- inline ---------------------------------------------------------------------------------------


@pytest.mark.feature("U1", "U2", "U6")
async def test_inline_jobs_run_before_enqueue_returns(app: Windlass) -> None:
    @app.task(queue="mail")
    async def double(n: int) -> int:
        return n * 2

    with inline(app):
        job = await double.enqueue(4)
        assert (job.state, job.return_value) == (JobState.COMPLETED, 8)
        assert await double.call(5) == 10
    assert (await double.enqueue(6)).state is JobState.WAITING


@pytest.mark.feature("U1", "U6")
async def test_inline_works_for_plain_functions_and_whole_bulks(app: Windlass, queue: Queue) -> None:
    ran: list[int] = []
    app.register("note", lambda job: ran.append(job.args[0]))
    with inline(app):
        jobs = await queue.add_bulk([{"name": "note", "data": [n]} for n in range(5)])
    assert sorted(ran) == [0, 1, 2, 3, 4]
    assert {job.state for job in jobs} == {JobState.COMPLETED}


@pytest.mark.feature("U1", "U6")
async def test_inline_jobs_may_enqueue_further_jobs(app: Windlass) -> None:
    ran: list[str] = []

    @app.task(queue="mail")
    async def inner() -> None:
        ran.append("inner")

    @app.task(queue="mail")
    async def outer() -> None:
        await inner.enqueue()
        ran.append("outer")

    with inline(app):
        await outer.enqueue()
    assert ran == ["inner", "outer"]


@pytest.mark.feature("U1", "U6")
async def test_inline_leaves_delayed_jobs_for_later(app: Windlass, queue: Queue) -> None:
    app.register("send", lambda job: None)
    with inline(app):
        job = await queue.add("send", delay=60)
    assert job.state is JobState.SCHEDULED
    assert await drain(app, ahead=60) == 1


@pytest.mark.feature("U1", "U6")
async def test_an_inline_error_reaches_whoever_enqueued(app: Windlass, queue: Queue) -> None:
    def fail(job: Any) -> None:
        raise KeyError("who?")

    app.register("send", fail)
    with inline(app), pytest.raises(KeyError, match="who"):
        await queue.add("send")
    with inline(app, raise_errors=False):
        job = await queue.add("send", max_attempts=1)
        assert (job.state, job.reason) == (JobState.FAILED, "attempts")


async def test_a_drain_looks_ahead_for_any_duration() -> None:
    async with Windlass("memory://", clock=ManualClock()) as app:
        app.register("remind", lambda job: None)
        await app.queue("mail").add("remind", delay=3_600)
        with pytest.raises(ConfigError, match="ahead must be a number of seconds or a timedelta"):
            await drain(app, ahead="1h")  # type: ignore[arg-type]
        assert await drain(app, ahead=timedelta(hours=1)) == 1


async def test_an_assertion_needs_a_task_or_a_queue() -> None:
    with pytest.raises(ConfigError, match="where must be a task, or a queue"):
        await assert_enqueued("remind")  # type: ignore[arg-type]
