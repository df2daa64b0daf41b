"""Looking at jobs: fields, lists, counts, search, status."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.app.support import DrivenClock, states_of, work_off, working
from windlass import ConfigError, Job, JobNotFoundError, JobState, Queue, Windlass
from windlass.errors import ResultExpiredError


@pytest.mark.feature("A19")
async def test_a_fresh_job_shows_every_field(timed_app: Windlass, clock: DrivenClock) -> None:
    queue = timed_app.queue("mail")
    job = await queue.add("send", {"to": "ada"}, priority=3, tags=["a"], max_attempts=4, delay=5)
    for seen in (job, await queue.get_job(job.id)):
        assert seen is not None
        assert (seen.name, seen.queue_name, seen.data) == ("send", "mail", {"to": "ada"})
        assert (seen.args, seen.kwargs) == ([], {"to": "ada"})
        assert (seen.priority, seen.tags, seen.max_attempts) == (3, ("a",), 4)
        assert (seen.attempt, seen.attempts, seen.deliveries, seen.stalled_count) == (1, 0, 0, 0)
        assert (seen.state, seen.run_at_ms) == (JobState.SCHEDULED, clock.now_ms() + 5_000)
        assert seen.enqueued_ms == clock.now_ms()
        assert (seen.started_ms, seen.finished_ms, seen.worker_id) == (None, None, None)
        assert (seen.progress, seen.return_value, seen.failed_reason) == (None, None, None)
        assert (seen.errors, seen.stacktrace, seen.manual_retries) == ([], [], 0)
        assert seen.run_id is None
        assert seen.idempotency_key == f"mail:{job.id}:{clock.now_ms()}"


@pytest.mark.feature("A19", "E7", "J5")
async def test_a_completed_job_shows_when_and_where_it_ran(timed_app: Windlass, clock: DrivenClock) -> None:
    queue = timed_app.queue("default")

    async def handler(job: Job[Any]) -> list[int]:
        assert job.run_id is not None
        assert job.abort_signal is not None
        await job.update_progress({"current": 1, "total": 2})
        await clock.wait(__import__("asyncio").Event(), 3_000)
        return [1, 2]

    job = await queue.add("work")
    start = clock.now_ms()
    worker = await clock.until(work_off(timed_app, "default", handler))
    await job.refresh()
    assert job.state is JobState.COMPLETED
    assert (job.started_ms, job.finished_ms) == (start, start + 3_000)
    assert job.return_value == [1, 2]
    assert job.progress == {"current": 1, "total": 2}
    assert (job.deliveries, job.attempts) == (1, 0)
    assert job.worker_id == worker.id


@pytest.mark.feature("A19", "C20")
async def test_every_failed_attempt_leaves_its_error(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise KeyError(f"try {job.attempt}")

    job = await queue.add("work", max_attempts=2, backoff=0)
    await work_off(app, "default", handler)
    await job.refresh()
    assert [(error.attempt, error.error_class, error.message) for error in job.errors] == [
        (1, "KeyError", "'try 1'"),
        (2, "KeyError", "'try 2'"),
    ]
    assert all("in handler" in trace for trace in job.stacktrace)
    assert all(error.at_ms and error.fingerprint for error in job.errors)
    assert len({error.fingerprint for error in job.errors}) == 1, "they differ in quoted values only"


@pytest.mark.feature("A19")
async def test_the_traceback_begins_in_the_users_code(app: Windlass, queue: Queue) -> None:
    def handler(job: Job[Any]) -> None:
        raise ValueError("here")

    job = await queue.add("work", max_attempts=1)
    await work_off(app, "default", handler)
    (trace,) = (await job.refresh()).stacktrace
    first_frame = trace.splitlines()[1]
    assert "test_inspect.py" in first_frame


@pytest.mark.feature("A28")
async def test_jobs_are_listed_newest_first_page_by_page(queue: Queue) -> None:
    jobs = await queue.add_bulk([{"name": "n", "data": number} for number in range(25)])
    first = await queue.get_jobs(limit=10)
    second = await queue.get_jobs(cursor=first.cursor, limit=10)
    third = await queue.get_jobs(cursor=second.cursor, limit=10)
    listed = [job.id for page in (first, second, third) for job in page]
    assert listed == [job.id for job in reversed(jobs)]
    assert third.cursor is None


@pytest.mark.feature("A28")
async def test_pages_do_not_shift_when_jobs_are_added_meanwhile(queue: Queue) -> None:
    jobs = await queue.add_bulk([{"name": "n"} for _ in range(4)])
    first = await queue.get_jobs(limit=2)
    await queue.add("new")
    second = await queue.get_jobs(cursor=first.cursor, limit=2)
    assert [job.id for job in [*first, *second]] == [job.id for job in reversed(jobs)]


@pytest.mark.feature("A28")
async def test_jobs_are_listed_and_counted_by_state(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        if job.name == "bad":
            raise ValueError

    await queue.add_bulk([{"name": "ok"}, {"name": "bad", "max_attempts": 1}])
    await work_off(app, "default", handler)
    later = await queue.add("later", delay=60)
    waiting = await queue.add("waiting")
    gone = await queue.add("gone")
    await gone.cancel()

    assert [job.id for job in await queue.get_jobs("scheduled")] == [later.id]
    assert {job.name for job in await queue.get_jobs(["completed", JobState.FAILED])} == {"ok", "bad"}
    assert [job.id for job in await queue.get_jobs(JobState.WAITING)] == [waiting.id]
    counts = await queue.get_job_counts()
    assert set(counts) == set(JobState)
    assert await states_of(queue) == dict.fromkeys(
        ["completed", "failed", "scheduled", "waiting", "cancelled"], 1
    )
    assert await queue.count() == 2, "what is yet to run"


@pytest.mark.feature("A28")
@pytest.mark.parametrize(
    "wrong", [{"states": "wating"}, {"limit": 0}, {"limit": 1_001}, {"cursor": "x"}, {"cursor": "-1"}]
)
async def test_bad_questions_are_refused(queue: Queue, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        await queue.get_jobs(**wrong)


async def test_an_unknown_job_is_none_and_its_verbs_say_not_found(queue: Queue) -> None:
    assert await queue.get_job("nope") is None
    assert await queue.get_status("nope") is None
    for verb in (queue.remove, queue.retry, queue.get_result):
        with pytest.raises(JobNotFoundError):
            await verb("nope")
    job = await queue.add("work")
    await job.remove()
    with pytest.raises(JobNotFoundError):
        await job.refresh()
    with pytest.raises(JobNotFoundError):
        await job.change_priority(1)


@pytest.mark.feature("A27")
async def test_a_job_answers_every_question_about_its_state(app: Windlass, queue: Queue) -> None:
    import asyncio

    started, go = asyncio.Event(), asyncio.Event()

    async def handler(job: Job[Any]) -> None:
        started.set()
        await go.wait()

    job = await queue.add("work", delay=60)
    assert await job.is_delayed()
    assert not await job.is_waiting()
    await job.promote()
    assert await job.is_waiting()
    async with working(app, "default", handler):
        await started.wait()
        assert await job.is_active()
        assert not await job.is_finished()
        go.set()
        await job.wait_until_finished()
    assert await job.is_completed()
    assert await job.is_finished()
    assert not await job.is_failed()
    assert not await job.is_revoked()
    other = await queue.add("work")
    await other.cancel()
    assert await other.is_cancelled()
    assert await other.is_revoked()
    assert await other.get_state() is JobState.CANCELLED


@pytest.mark.feature("A20", "A29")
async def test_status_tells_the_result_of_a_completed_job_none_included(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> Any:
        return job.data

    nothing = await queue.add("work", None)
    something = await queue.add("work", {"n": 1})
    waiting = await queue.add("work", delay=60)
    await work_off(app, "default", handler)
    status = await queue.get_status(nothing.id)
    assert status == {
        "id": nothing.id,
        "state": "completed",
        "created_at": nothing.enqueued_ms,
        "attempts": 0,
        "result": None,
    }
    assert (await queue.get_status(something.id) or {})["result"] == {"n": 1}
    assert "result" not in (await queue.get_status(waiting.id) or {})
    assert await queue.get_result(nothing.id) is None
    assert await queue.get_result(something.id) == {"n": 1}


@pytest.mark.feature("A29", "E5")
async def test_status_tells_the_error_of_a_failed_job(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise ValueError("bad input")

    job = await queue.add("work", max_attempts=1)
    await work_off(app, "default", handler)
    status = await queue.get_status(job.id) or {}
    assert status["state"] == "failed"
    assert status["attempts"] == 1
    assert status["error"] == {"class": "ValueError", "message": "bad input"}


@pytest.mark.feature("E5", "E8")
async def test_a_result_is_readable_for_its_time_and_the_time_can_be_changed(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")

    async def handler(job: Job[Any]) -> str:
        return "kept"

    default = await queue.add("work")
    short = await queue.add("work", result_ttl=60)
    await clock.until(work_off(timed_app, "default", handler))
    await clock.advance(59)
    assert await queue.get_result(short.id) == "kept"
    await clock.advance(1)
    with pytest.raises(ResultExpiredError):
        await queue.get_result(short.id)
    await queue.update_result_ttl(default.id, 7_200)
    await clock.advance(3_600)
    assert await queue.get_result(default.id) == "kept"
    await clock.advance(3_600)
    with pytest.raises(ResultExpiredError):
        await queue.get_result(default.id)


@pytest.mark.feature("A30")
async def test_jobs_are_found_by_name_pattern_state_tag_and_data(queue: Queue) -> None:
    await queue.add_bulk(
        [
            {"name": "mail.send", "data": {"to": "ada", "n": 1}, "tags": ["x"]},
            {"name": "mail.send", "data": {"to": "bob", "n": 1}},
            {"name": "mail.bounce", "data": ["ada"], "delay": 60},
            {"name": "report", "data": {"to": "ada"}},
        ]
    )

    async def names(**query: Any) -> list[str]:
        return sorted(job.name for job in await queue.search_jobs(**query))

    assert await names(name="mail.*") == ["mail.bounce", "mail.send", "mail.send"]
    assert await names(name="mail.s?nd") == ["mail.send", "mail.send"]
    assert await names(name="mail") == []
    assert await names(data={"to": "ada"}) == ["mail.send", "report"]
    assert await names(data={"to": "ada", "n": 1}) == ["mail.send"]
    assert await names(data={"to": "nobody"}) == []
    assert await names(data={"missing": None}) == []
    assert await names(tag="x") == ["mail.send"]
    assert await names(state="scheduled") == ["mail.bounce"]
    assert await names(state=["waiting"], name="report") == ["report"]


@pytest.mark.feature("A30")
async def test_jobs_are_found_by_their_last_error(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise {"a": KeyError, "b": ValueError}[job.name]("x")

    await queue.add_bulk([{"name": "a", "max_attempts": 1}, {"name": "b", "max_attempts": 1}])
    await work_off(app, "default", handler)
    assert [job.name for job in await queue.search_jobs(error="ValueError")] == ["b"]


@pytest.mark.feature("A30")
async def test_a_search_goes_on_from_its_cursor_without_gaps_or_repeats(queue: Queue) -> None:
    jobs = await queue.add_bulk([{"name": "n", "data": {"odd": number % 2 == 1}} for number in range(60)])
    wanted = [job.id for job in reversed(jobs) if job.data["odd"]]
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = await queue.search_jobs(data={"odd": True}, limit=7, cursor=cursor)
        assert len(page) <= 7
        found += [job.id for job in page]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == wanted


@pytest.mark.feature("A30")
async def test_a_search_looks_at_no_more_than_it_was_allowed(queue: Queue) -> None:
    await queue.add_bulk([{"name": "n", "data": {"k": number}} for number in range(2_500)])
    page = await queue.search_jobs(data={"k": 0}, scan=1_000)
    assert list(page) == []
    assert page.cursor is not None, "the rest can be asked for"
    rest = await queue.search_jobs(data={"k": 0}, cursor=page.cursor)
    assert [job.data for job in rest] == [{"k": 0}]


@pytest.mark.feature("C13")
async def test_dead_letter_jobs_are_the_failed_ones(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise ValueError

    job = await queue.add("work", max_attempts=1)
    await work_off(app, "default", handler)
    await queue.add("waiting")
    assert [dead.id for dead in await queue.get_dead_letter_jobs()] == [job.id]


@pytest.mark.feature("A33")
async def test_log_lines_are_kept_and_read_by_range(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        for number in range(5):
            await job.log(f"line {number}")

    job = await queue.add("work")
    await work_off(app, "default", handler)
    assert await queue.get_job_logs(job.id) == ([f"line {number}" for number in range(5)], 5)
    assert await queue.get_job_logs(job.id, start=1, limit=2) == (["line 1", "line 2"], 5)
    assert await queue.get_job_logs("nope") == ([], 0)


@pytest.mark.feature("A33", "J10")
async def test_a_plain_function_logs_and_reports_through_its_job(app: Windlass, queue: Queue) -> None:
    from windlass import current_job

    @app.task
    def work() -> None:
        job = current_job()
        job.sync.log("from a thread")
        job.sync.update_progress(50)
        job.sync.update_data({"step": 2})

    job = await work.enqueue()
    await work_off(app)
    await job.refresh()
    assert await queue.get_job_logs(job.id) == (["from a thread"], 1)
    assert job.progress == 50
    assert job.data == {"step": 2}


async def test_the_blocking_verbs_of_a_job_are_for_plain_handlers_only(queue: Queue) -> None:
    job = await queue.add("work")
    with pytest.raises(RuntimeError, match="await the verb instead"):
        job.sync.log("no")


@pytest.mark.feature("A33", "J15")
async def test_the_jobs_logger_names_the_job(
    app: Windlass, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(job: Job[Any]) -> None:
        job.logger.warning("careful with %s", "that", extra={"more": 1})

    job = await queue.add("work")
    await work_off(app, "default", handler)
    (line,) = [record for record in caplog.records if record.name == "windlass.job"]
    assert line.getMessage() == f"[work {job.id}] careful with that"
    assert (line.__dict__["job_id"], line.__dict__["attempt"], line.__dict__["more"]) == (job.id, 1, 1)


@pytest.mark.feature("J15")
async def test_the_shared_context_reaches_handlers_and_tasks(url: str) -> None:
    from windlass import current_job

    context = {"db": object()}
    async with Windlass(url, context=context) as app:
        seen: list[Any] = []

        @app.task
        async def work() -> None:
            seen.append(current_job().context)

        await work.enqueue()
        await work_off(app)
        other = {"own": True}
        await app.queue("default").add("x")
        await work_off(app, "default", lambda job: seen.append(job.context), context=other)
    assert seen[0] is context
    assert seen[1] is other


async def test_lifetime_counters_only_grow(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        return None

    await queue.add_bulk([{"name": "a"}, {"name": "a"}, {"name": "b"}])
    await work_off(app, "default", handler)
    await queue.clean()
    rows = {(row.task, row.outcome): row.total for row in await queue.get_metrics()}
    assert rows == {
        ("a", "enqueued"): 2,
        ("b", "enqueued"): 1,
        ("a", "completed"): 2,
        ("b", "completed"): 1,
    }
