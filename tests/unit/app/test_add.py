"""Adding jobs: one, many, again, later."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.app.support import DrivenClock, event_names, states_of, watched, work_off
from windlass import (
    ClosedError,
    ConfigError,
    Job,
    JobState,
    Queue,
    StorageError,
    UnsupportedByBackendError,
    Windlass,
    Worker,
)
from windlass.backend import requests as rq
from windlass.jobs import AddOutcome

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.feature("A1", "A6")
async def test_add_gives_a_job_with_an_id_of_ours(queue: Queue) -> None:
    job = await queue.add("work", {"a": 1})
    assert job.outcome is AddOutcome.QUEUED
    assert job.state is JobState.WAITING
    assert len(job.id) == 32
    assert int(job.id, 16) >> 76 & 0xF == 7, "a UUIDv7"
    assert await event_names(queue) == ["enqueued"]


@pytest.mark.feature("A6")
async def test_our_ids_sort_by_time(queue: Queue) -> None:
    jobs = [await queue.add("work") for _ in range(20)]
    assert [job.id for job in jobs] == sorted(job.id for job in jobs)


@pytest.mark.feature("A2", "A6")
async def test_the_callers_id_is_used_and_answers_duplicate_while_the_job_lives(queue: Queue) -> None:
    first = await queue.add("work", {"n": 1}, job_id="invoice-7")
    again = await queue.add("work", {"n": 2}, job_id="invoice-7")
    assert first.outcome is AddOutcome.QUEUED
    assert again.outcome is AddOutcome.DUPLICATE
    assert again.state is JobState.WAITING, "the existing state is told"
    assert again.data == {"n": 1}, "the job is the one that exists"
    assert await queue.count() == 1
    assert await event_names(queue) == ["enqueued", "deduplicated"]


@pytest.mark.feature("A1", "A2")
async def test_a_duplicate_of_a_scheduled_job_tells_its_state(queue: Queue) -> None:
    await queue.add("work", job_id="x", delay=60)
    again = await queue.add("work", job_id="x")
    assert (again.outcome, again.state) == (AddOutcome.DUPLICATE, JobState.SCHEDULED)


@pytest.mark.feature("A2", "E4", "E5")
async def test_a_completed_job_answers_cached_with_its_result(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> int:
        return 42

    await queue.add("work", job_id="sum")
    await work_off(app, "default", handler)
    again = await queue.add("work", job_id="sum")
    assert again.outcome is AddOutcome.CACHED
    assert again.state is JobState.COMPLETED
    assert again.return_value == 42
    assert await again.result() == 42


@pytest.mark.feature("A2")
async def test_a_failed_or_cancelled_job_makes_way_for_a_new_one(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise ValueError("no")

    await queue.add("work", {"n": 1}, job_id="x", max_attempts=1)
    await work_off(app, "default", handler)
    second = await queue.add("work", {"n": 2}, job_id="x")
    assert (second.outcome, second.data) == (AddOutcome.QUEUED, {"n": 2})
    await second.cancel()
    third = await queue.add("work", {"n": 3}, job_id="x")
    assert (third.outcome, third.data) == (AddOutcome.QUEUED, {"n": 3})


@pytest.mark.feature("A2")
async def test_after_the_results_time_the_id_is_free_again(timed_app: Windlass, clock: DrivenClock) -> None:
    queue = timed_app.queue("default")

    async def handler(job: Job[Any]) -> int:
        return 1

    await queue.add("work", job_id="x", result_ttl=10)
    await clock.until(work_off(timed_app, "default", handler))
    await clock.advance(9)
    assert (await queue.add("work", job_id="x")).outcome is AddOutcome.CACHED
    await clock.advance(1)
    assert (await queue.add("work", job_id="x")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("A2")
async def test_keep_id_answers_duplicate_after_the_record_is_gone(queue: Queue) -> None:
    job = await queue.add("work", job_id="once", keep_id=3600)
    await job.remove()
    again = await queue.add("work", job_id="once")
    assert again.outcome is AddOutcome.DUPLICATE
    assert await queue.get_job("once") is None
    assert await queue.count() == 0


@pytest.mark.feature("A6", "A7")
@pytest.mark.parametrize("job_id", ["a", "0123456789abcdef01234567", "f" * 32, "x" * 256, "A.b-c_9"])
async def test_ids_of_any_producer_are_accepted(queue: Queue, job_id: str) -> None:
    assert (await queue.add("work", job_id=job_id)).id == job_id
    assert await queue.get_job(job_id) is not None


@pytest.mark.feature("A6")
@pytest.mark.parametrize("job_id", ["", "a:b", "a/b", "../x", "a{b}", "a b", "a\n", "x" * 257, "ä", 5, b"x"])
async def test_ids_that_could_be_keys_or_paths_are_refused(queue: Queue, job_id: Any) -> None:
    with pytest.raises(ConfigError, match="job_id must be"):
        await queue.add("work", job_id=job_id)
    assert await queue.count() == 0


async def test_an_id_belongs_to_its_queue(app: Windlass) -> None:
    first = await app.queue("a").add("work", job_id="same")
    second = await app.queue("b").add("work", job_id="same")
    assert (first.outcome, second.outcome) == (AddOutcome.QUEUED, AddOutcome.QUEUED)


async def test_two_namespaces_of_one_store_do_not_meet(url: str) -> None:
    async with Windlass(url) as one, Windlass(f"{url}?namespace=other") as other:
        await one.queue("default").add("work", job_id="x")
        assert await other.queue("default").get_job("x") is None
        assert (await other.queue("default").add("work", job_id="x")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("A5")
async def test_add_bulk_answers_per_job_in_order(queue: Queue) -> None:
    jobs = await queue.add_bulk(
        [
            {"name": "a", "data": 1},
            {"name": "b", "data": {"k": 2}, "priority": 5},
            {"name": "a", "job_id": "mine"},
            {"name": "a", "job_id": "mine"},
            {"name": "c", "delay": 60},
        ]
    )
    assert [job.name for job in jobs] == ["a", "b", "a", "a", "c"]
    assert [job.data for job in jobs] == [1, {"k": 2}, None, None, None]
    assert [job.outcome for job in jobs] == ["queued", "queued", "queued", "duplicate", "queued"]
    assert jobs[1].priority == 5
    assert jobs[4].state is JobState.SCHEDULED
    assert await states_of(queue) == {JobState.WAITING: 3, JobState.SCHEDULED: 1}


@pytest.mark.feature("A5")
@pytest.mark.parametrize(
    "bad", [{"data": 1}, {"name": ""}, {"name": "x", "priorty": 1}, {"name": "x", "delay": -1}, "x", None]
)
async def test_one_bad_item_of_a_bulk_changes_nothing(queue: Queue, bad: Any) -> None:
    with pytest.raises(ConfigError):
        await queue.add_bulk([{"name": "fine"}, bad])
    assert await queue.count() == 0


@pytest.mark.feature("A5")
async def test_a_bulk_may_be_empty_or_larger_than_a_chunk(queue: Queue) -> None:
    assert await queue.add_bulk([]) == []
    jobs = await queue.add_bulk({"name": "n", "data": number} for number in range(2_500))
    assert len({job.id for job in jobs}) == 2_500
    assert await queue.count() == 2_500


@pytest.mark.feature("A5")
async def test_a_chunk_of_a_bulk_is_one_request(app: Windlass, queue: Queue) -> None:
    backend = watched(app)
    await queue.add_bulk([{"name": "n"}] * 1_500)
    sizes = [len(request.jobs) for request in backend.requests if isinstance(request, rq.Add)]
    assert sizes == [1_000, 500]


@pytest.mark.feature("A8")
async def test_a_delayed_job_is_scheduled_and_does_not_run_before_its_time(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    from tests.unit.app.support import working

    queue = timed_app.queue("default")
    ran: list[int] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(clock.now_ms())

    due = clock.now_ms() + 90_000
    job = await queue.add("work", delay=90)
    assert (job.state, job.run_at_ms) == (JobState.SCHEDULED, due)
    async with working(timed_app, "default", handler):
        await clock.advance(89.9)
        assert ran == []
        await clock.advance(0.2)
        assert len(ran) == 1
        assert due <= ran[0] <= due + 100


@pytest.mark.feature("A8")
async def test_run_at_takes_an_aware_datetime_or_seconds(timed_app: Windlass, clock: DrivenClock) -> None:
    queue = timed_app.queue("default")
    at = datetime(2099, 1, 1, tzinfo=UTC)
    assert (await queue.add("work", run_at=at)).run_at_ms == round(at.timestamp() * 1000)
    assert (await queue.add("work", run_at=at.timestamp())).run_at_ms == round(at.timestamp() * 1000)
    past = await queue.add("work", run_at=datetime(2001, 1, 1, tzinfo=UTC))
    assert (past.state, past.run_at_ms) == (JobState.WAITING, None)


@pytest.mark.feature("A9", "G1", "G2")
async def test_higher_priorities_run_first_and_ties_in_order_of_arrival(app: Windlass, queue: Queue) -> None:
    from windlass import Priority

    order: list[str] = []

    async def handler(job: Job[Any]) -> None:
        order.append(job.data)

    for name, priority in [
        ("normal-1", 0),
        ("low", Priority.LOW),
        ("high", Priority.HIGH),
        ("normal-2", Priority.NORMAL),
        ("critical", Priority.CRITICAL),
        ("a bit higher", 1),
        ("a bit lower", -1),
    ]:
        await queue.add("work", name, priority=priority)
    await work_off(app, "default", handler, concurrency=1)
    assert order == ["critical", "high", "a bit higher", "normal-1", "normal-2", "a bit lower", "low"]


@pytest.mark.feature("A10")
async def test_the_default_budget_is_three_runs(app: Windlass, queue: Queue) -> None:
    runs: list[int] = []

    async def handler(job: Job[Any]) -> None:
        runs.append(job.attempt)
        raise ValueError("no")

    job = await queue.add("work", backoff=0)
    await work_off(app, "default", handler)
    assert runs == [1, 2, 3]
    assert (await job.refresh()).attempts == 3
    assert job.state is JobState.FAILED


@pytest.mark.feature("A35")
async def test_a_job_that_does_not_start_in_time_fails_as_expired(
    timed_app: Windlass, clock: DrivenClock
) -> None:
    queue = timed_app.queue("default")
    ran: list[str] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(job.id)

    late = await queue.add("work", expires_in=10)
    fresh = await queue.add("work", expires_in=100)
    await clock.advance(10)
    await clock.until(work_off(timed_app, "default", handler))
    assert ran == [fresh.id]
    assert (await late.refresh()).state is JobState.FAILED
    assert late.reason == "expired"
    assert late.attempts == 0


@pytest.mark.feature("A18")
async def test_tags_and_trace_travel_with_the_job(queue: Queue) -> None:
    job = await queue.add("work", tags=["tenant-1", "urgent"], trace={"traceparent": "00-ab"})
    stored = await queue.get_job(job.id)
    assert stored is not None
    assert stored.tags == ("tenant-1", "urgent")
    assert stored.trace == {"traceparent": "00-ab"}


@pytest.mark.feature("A18")
async def test_the_kept_lines_of_a_traceback_are_limited_per_job(app: Windlass, queue: Queue) -> None:
    async def handler(job: Job[Any]) -> None:
        raise ValueError("no")

    short = await queue.add("work", max_attempts=1, backtrace=1)
    none = await queue.add("work", max_attempts=1, backtrace=0)
    await work_off(app, "default", handler)
    assert (await short.refresh()).stacktrace == ["ValueError: no"]
    assert (await none.refresh()).stacktrace == []


@pytest.mark.parametrize("name", ["", " ", "a\tb", "x" * 257, None, 5])
async def test_a_name_that_cannot_be_a_task_is_refused(queue: Queue, name: Any) -> None:
    with pytest.raises(ConfigError, match="name must be"):
        await queue.add(name)


async def test_a_reply_that_was_lost_is_asked_for_again_and_adds_once(app: Windlass, queue: Queue) -> None:
    backend = watched(app)
    failures = iter([StorageError("cut"), None])

    def lose(request: rq.Request[Any]) -> None:
        error = next(failures, None)
        if error is not None:
            raise error

    backend.after = lose
    job = await queue.add("work", job_id="x")
    assert job.outcome is AddOutcome.QUEUED, "as the first time"
    assert await queue.count() == 1


async def test_a_store_that_stays_away_is_an_error_for_the_caller(app: Windlass, queue: Queue) -> None:
    backend = watched(app)

    def refuse(request: rq.Request[Any]) -> None:
        raise StorageError("away")

    backend.before = refuse
    with pytest.raises(StorageError, match="away"):
        await queue.add("work")
    assert len(backend.requests) == 3, "two quick repeats, no more"


@pytest.mark.feature("J9", "A40")
async def test_a_bare_queue_adds_and_a_worker_elsewhere_runs(url: str) -> None:
    async def handler(job: Job[Any]) -> Any:
        return job.data

    async with Queue("mail", url) as producer:
        job = await producer.add("echo", {"x": 1})
        worker = Worker("mail", handler, url_or_app=url)
        await worker.drain()
        assert await job.result() == {"x": 1}


async def test_a_closed_queue_may_be_closed_again_but_not_used(url: str) -> None:
    queue = Queue("mail", url)
    await queue.add("work", job_id="a")
    await queue.close()
    await queue.close()
    assert repr(queue).startswith("<Queue mail on")
    with pytest.raises(ClosedError, match=r"queue 'mail' was closed; take another"):
        await queue.add("work", job_id="a")
    with pytest.raises(ClosedError):
        async with queue:
            pass


@pytest.mark.feature_missing("A34", reason="jobs in memory are in no database that an application could open")
@pytest.mark.parametrize("backend_name", ["memory"])
async def test_memory_refuses_to_add_in_somebodys_transaction(backend_name: str) -> None:
    import sqlite3

    app = Windlass("memory://")
    connection = sqlite3.connect(":memory:")
    try:
        with pytest.raises(UnsupportedByBackendError, match="transactions"):
            app.queue("default").add_in_transaction(connection, "work")
    finally:
        connection.close()


@pytest.mark.feature("A34")
@pytest.mark.parametrize("backend_name", ["sqlite"])
async def test_a_job_added_in_the_applications_transaction_lives_and_dies_with_it(
    backend_name: str, tmp_path: Path
) -> None:
    import sqlite3

    path = tmp_path / "app.db"
    async with Windlass(f"sqlite:///{path}") as app:
        queue = app.queue("default")
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("CREATE TABLE orders (id INTEGER)")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO orders VALUES (1)")
            gone = queue.add_in_transaction(connection, "ship", {"order": 1})
            connection.execute("ROLLBACK")
            assert await queue.get_job(gone.id) is None

            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO orders VALUES (2)")
            kept = queue.add_in_transaction(connection, "ship", {"order": 2}, priority=3)
            assert kept.outcome is AddOutcome.QUEUED
            assert await queue.get_job(kept.id) is None, "not before the commit"
            connection.execute("COMMIT")
        finally:
            connection.close()
        stored = await queue.get_job(kept.id)
        assert stored is not None
        assert (stored.data, stored.priority, stored.state) == ({"order": 2}, 3, JobState.WAITING)


@pytest.mark.feature("A2", "A6")
async def test_an_id_by_content_makes_equal_data_one_job(queue: Queue) -> None:
    from windlass.jobs import content_id

    one = await queue.add("work", {"a": 1, "b": [2]}, job_id=content_id({"a": 1, "b": [2]}))
    two = await queue.add("work", {"b": [2], "a": 1}, job_id=content_id({"b": [2], "a": 1}))
    other = await queue.add("work", {"a": 2}, job_id=content_id({"a": 2}))
    assert [job.outcome for job in (one, two, other)] == ["queued", "duplicate", "queued"]
    assert len(one.id) == 16
