"""Queues and tasks: adding jobs, running them, reading their results."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from windlass import ConfigError, Job, JobNotFoundError, JobState, Queue, current_job
from windlass.errors import PayloadTooLargeError
from windlass.jobs import AddOutcome
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import QUEUE, Gate, Stage, eventually


async def echo(job: Job[Any]) -> Any:
    return job.data


@pytest.mark.feature("A1", "E7", "J1", "J9", "J17")
async def test_a_task_is_enqueued_run_and_answered(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(queue=QUEUE)
        async def add(a: int, b: int = 0) -> int:
            return a + b

        await stage.work()
        job = await add.enqueue(1, b=2)
        assert (job.outcome, job.state) == (AddOutcome.QUEUED, JobState.WAITING)
        assert await job.result() == 3
        assert await job.get_state() is JobState.COMPLETED


@pytest.mark.feature("A1", "J1", "Y2")
@pytest.mark.parametrize("data", [None, {"to": "ada"}, [1, "two", None], "text", 7, 1.5, True, {}, []])
async def test_the_class_api_gives_back_the_data_that_was_added(harness: Harness, data: Any) -> None:
    async with Stage(harness) as stage:
        await stage.work(echo)
        job = await stage.queue.add("echo", data)
        assert job.data == data
        assert await job.result() == data


@pytest.mark.feature("A5", "A28")
async def test_a_bulk_of_thousands_is_added_and_run(harness: Harness) -> None:
    async with Stage(harness) as stage:
        jobs = await stage.queue.add_bulk([{"name": "n", "data": [n]} for n in range(2_500)])
        assert len({job.id for job in jobs}) == 2_500
        assert await stage.queue.count() == 2_500
        ran: list[int] = []
        worker = await stage.work(lambda job: ran.append(job.args[0]), concurrency=50)
        await worker.drain()
        assert sorted(ran) == list(range(2_500))
        counts = await stage.queue.get_job_counts()
        assert (counts[JobState.COMPLETED], counts[JobState.WAITING]) == (2_500, 0)


@pytest.mark.feature("A5", "A38")
async def test_one_bad_item_of_a_bulk_is_refused_before_anything_is_stored(harness: Harness) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(ConfigError):
            await stage.queue.add_bulk([{"name": "good"}, {"name": "bad", "priority": "high"}])
        assert await stage.queue.count() == 0


@pytest.mark.feature("A39")
async def test_a_bulk_can_be_spread_over_a_time(harness: Harness) -> None:
    async with Stage(harness) as stage:
        start = stage.clock.now_ms()
        jobs = await stage.queue.add_bulk([{"name": "n"} for _ in range(4)], spread=timedelta(seconds=60))
        assert [job.run_at_ms for job in jobs] == [None, start + 15_000, start + 30_000, start + 45_000]
        assert [job.state for job in jobs] == ["waiting", "scheduled", "scheduled", "scheduled"]
        ran: list[int] = []

        async def note(job: Job[Any]) -> None:
            ran.append((stage.clock.now_ms() - start) // 1000)

        await stage.work(note)
        await stage.advance(31)
        assert ran == [0, 15, 30]


@pytest.mark.feature("A39")
async def test_a_bulk_may_hold_a_time_for_each_job_and_spread_adds_to_it(harness: Harness) -> None:
    async with Stage(harness) as stage:
        start = stage.clock.now_ms()
        at = datetime.fromtimestamp(start / 1000 + 100, UTC)
        jobs = await stage.queue.add_bulk(
            [{"name": "n", "run_at": at}, {"name": "n", "delay": 5}, {"name": "n", "run_at": at}], spread=30
        )
        assert [(job.run_at_ms or 0) - start for job in jobs] == [100_000, 15_000, 120_000]


@pytest.mark.feature("A8", "B1")
async def test_a_delayed_job_runs_at_its_time_and_not_before(harness: Harness) -> None:
    async with Stage(harness) as stage:
        ran: list[int] = []

        async def note(job: Job[Any]) -> None:
            ran.append(stage.clock.now_ms())

        await stage.work(note)
        start = stage.clock.now_ms()
        await stage.queue.add("later", delay=60)
        await eventually(lambda: (stage.clock.next_wake_ms or 10**6) <= 60_001)  # the worker was notified
        await stage.advance(59.999)
        assert ran == []
        await stage.advance(ms=1)
        await stage.advance(0.1)
        assert ran and ran[0] - start in range(60_000, 60_010)


@pytest.mark.feature("A8", "B4")
async def test_a_job_can_be_scheduled_for_an_instant(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(echo)
        at = stage.clock.now() + timedelta(hours=2)
        job = await stage.queue.add("later", run_at=at)
        assert job.run_at_ms == round(at.timestamp() * 1000)
        await stage.advance(3_600)
        assert await job.is_delayed()
        await stage.advance(3_601)
        assert await job.is_completed()


@pytest.mark.feature("A8", "B1")
async def test_an_idle_worker_wakes_for_the_next_due_job_by_itself(harness: Harness) -> None:
    async with Stage(harness) as stage:
        ran: list[str] = []

        async def note(job: Job[Any]) -> None:
            ran.append(job.name)

        await stage.work(note, poll=3_600)
        for name, delay in (("c", 0.3), ("a", 0.1), ("b", 0.2)):
            await stage.queue.add(name, delay=delay)
        await eventually(lambda: (stage.clock.next_wake_ms or 10**6) <= 101)  # the worker was notified
        await stage.advance(0.5)
        assert ran == ["a", "b", "c"]


@pytest.mark.feature("A2", "A6", "D1")
async def test_the_same_id_is_added_once_while_its_job_lives(harness: Harness) -> None:
    async with Stage(harness) as stage:
        first = await stage.queue.add("n", {"v": 1}, job_id="own")
        again = await stage.queue.add("n", {"v": 2}, job_id="own")
        assert (first.outcome, again.outcome) == (AddOutcome.QUEUED, AddOutcome.DUPLICATE)
        assert (again.id, again.data, again.state) == ("own", {"v": 1}, JobState.WAITING)


@pytest.mark.feature("D2", "E4")
async def test_a_completed_id_answers_with_its_cached_result(harness: Harness) -> None:
    async with Stage(harness) as stage:
        ran: list[str] = []

        async def handler(job: Job[Any]) -> str:
            ran.append(job.id)
            return "done"

        await stage.work(handler)
        await (await stage.queue.add("n", job_id="own")).result()
        again = await stage.queue.add("n", job_id="own")
        assert (again.outcome, again.return_value) == (AddOutcome.CACHED, "done")
        assert await again.result() == "done"
        assert ran == ["own"]


@pytest.mark.feature("D7")
async def test_keep_id_outlives_the_record(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n", job_id="own", keep_id=3_600)
        await job.remove()
        again = await stage.queue.add("n", job_id="own")
        assert again.outcome is AddOutcome.DUPLICATE
        await stage.advance(3_600)
        assert (await stage.queue.add("n", job_id="own")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("A35")
async def test_a_job_that_nobody_starts_in_time_fails_as_expired(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n", expires_in=10)
        await stage.advance(10)
        ran: list[str] = []
        await stage.work(lambda job: ran.append(job.id))
        assert await job.wait_until_finished() is JobState.FAILED
        assert (job.reason, job.failed_reason, ran) == ("expired", None, [])


@pytest.mark.feature("A35")
async def test_a_worker_ends_an_expired_job_that_it_may_not_start(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.pause()
        paused = await stage.queue.add("n", expires_in=10)
        later = await stage.queue.add("n", expires_in=10, delay=3_600)
        await stage.work(lambda job: None, duties=True)
        await stage.advance(30)
        for job in (paused, later):
            assert await job.wait_until_finished() is JobState.FAILED
            assert job.reason == "expired"


@pytest.mark.feature("A35")
async def test_expires_total_ends_a_job_between_its_attempts(harness: Harness) -> None:
    runs: list[str] = []

    def fail(job: Job[Any]) -> None:
        runs.append(job.id)
        raise ValueError("again")

    async with Stage(harness) as stage:
        job = await stage.queue.add("n", expires_total=10, backoff=3_600, max_attempts=5)
        await stage.work(fail, duties=True)
        await stage.until_state(job, JobState.RETRYING)
        await stage.advance(30)
        assert await job.wait_until_finished() is JobState.FAILED
        assert (job.reason, job.failed_reason, len(runs)) == ("expired", "again", 1)


@pytest.mark.feature("A38")
@needs("priority")
async def test_options_come_from_app_queue_task_and_call_in_this_order(harness: Harness) -> None:
    async with Stage(harness, defaults={"max_attempts": 9, "priority": 1, "tags": ["app"]}) as stage:

        @stage.app.task(queue=QUEUE, priority=2)
        async def job_task() -> None: ...

        plain = await stage.queue.add("n")
        task = await job_task.enqueue()
        call = await job_task.options(priority=3).enqueue()
        assert [job.priority for job in (plain, task, call)] == [1, 2, 3]
        assert {job.max_attempts for job in (plain, task, call)} == {9}
        assert call.tags == ("app",)


@pytest.mark.feature("A38")
async def test_a_misspelt_option_is_refused_with_the_nearest_name(harness: Harness) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(ConfigError, match="priority"):
            await stage.queue.add("n", prioritty=1)  # type: ignore[call-arg]
        assert await stage.queue.count() == 0


@pytest.mark.feature("A37")
async def test_a_payload_over_the_cap_is_refused(harness: Harness) -> None:
    async with Stage(harness, max_payload_bytes=1_000) as stage:
        with pytest.raises(PayloadTooLargeError) as caught:
            await stage.queue.add("n", "x" * 1_000)
        assert caught.value.limit == 1_000
        assert await stage.queue.count() == 0


@pytest.mark.feature("A2", "F1")
async def test_answers_are_told_in_the_words_of_other_systems(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> int:
            await gate.pass_through()
            return 7

        queued = await stage.queue.add("n", job_id="one")
        assert queued.enqueue_result == {"status": "queued"}
        again = await stage.queue.add("n", job_id="one")
        assert again.enqueue_result == {"status": "duplicate", "existing_state": JobState.WAITING}
        await stage.work(handler)
        await gate.reached.wait()
        gate.open()
        await queued.result()
        cached = await stage.queue.add("n", job_id="one")
        assert cached.enqueue_result == {"status": "completed", "result": 7}
        assert (await stage.queue.cancel("one")).code == "completed"
        assert (await stage.queue.cancel("nothing")).code == "not_found"
        later = await stage.queue.add("n", delay=60)
        assert (await later.cancel()).code == "cancelled"
        with pytest.raises(ConfigError, match="that an add returned"):
            _ = (await stage.queue.get_jobs())[0].enqueue_result


@pytest.mark.feature("A19", "A20")
async def test_a_running_handler_sees_its_job_whole(harness: Harness) -> None:
    async with Stage(harness, context={"db": "handle"}) as stage:
        seen: dict[str, Any] = {}

        @stage.app.task(queue=QUEUE, name="look", max_attempts=4, tags=["red"])
        async def look(a: int) -> None:
            job = current_job()
            seen.update(
                id=job.id,
                name=job.name,
                args=job.args,
                attempt=job.attempt,
                attempts=job.attempts,
                deliveries=job.deliveries,
                max_attempts=job.max_attempts,
                tags=job.tags,
                context=job.context,
                worker=job.worker_id,
                state=job.state,
            )

        worker = await stage.work()
        job = await look.enqueue(5)
        await job.result()
        assert seen == {
            "id": job.id,
            "name": "look",
            "args": [5],
            "attempt": 1,
            "attempts": 0,
            "deliveries": 1,
            "max_attempts": 4,
            "tags": ("red",),
            "context": {"db": "handle"},
            "worker": worker.id,
            "state": JobState.ACTIVE,
        }


@pytest.mark.feature("A19")
async def test_a_finished_job_tells_when_it_was_added_started_and_finished(harness: Harness) -> None:
    async with Stage(harness) as stage:
        start = stage.clock.now_ms()
        job = await stage.queue.add("n")
        await stage.advance(5)
        await stage.work(echo)
        await job.result()
        assert (job.enqueued_ms, job.started_ms, job.finished_ms) == (start, start + 5_000, start + 5_000)


@pytest.mark.feature("W4", "Y1")
async def test_arguments_arrive_as_their_annotations_say(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen: list[Any] = []

        @stage.app.task(queue=QUEUE)
        async def take(at: datetime, names: set[str], pair: tuple[int, int]) -> None:
            seen.extend([at, names, pair])

        await stage.work()
        at = datetime(2030, 1, 1, tzinfo=UTC)
        await (await take.enqueue(at, {"a"}, (1, 2))).result()
        assert seen == [at, {"a"}, (1, 2)]


@pytest.mark.feature("W1", "W2")
async def test_another_codec_travels_with_its_jobs(harness: Harness) -> None:
    async with Stage(harness, codec="msgpack") as stage:
        await stage.work(echo)
        job = await stage.queue.add("n", {"raw": b"\x00\xff"})
        assert await job.result() == {"raw": b"\x00\xff"}


@pytest.mark.feature("C17", "A20")
async def test_bytes_that_are_no_arguments_end_as_failed_with_their_bytes_kept(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await harness.add("bad", QUEUE, payload=b"\xff not json")
        await stage.work(echo)
        job = await stage.queue.get_job("bad")
        assert job is not None
        assert await job.wait_until_finished() is JobState.FAILED
        assert (job.reason, job.record.payload) == ("bad_payload", b"\xff not json")


@pytest.mark.feature("A28")
async def test_an_unknown_job_is_none_and_its_verbs_say_so(harness: Harness) -> None:
    async with Stage(harness) as stage:
        assert await stage.queue.get_job("no-such-job") is None
        with pytest.raises(JobNotFoundError):
            await stage.queue.remove("no-such-job")


@pytest.mark.feature("A4", "A40")
async def test_a_producer_needs_no_worker_and_no_registration(harness: Harness) -> None:
    async with Stage(harness) as stage:
        queue = Queue("never-seen-before", stage.app)
        await queue.add("n")
        assert await queue.count() == 1
