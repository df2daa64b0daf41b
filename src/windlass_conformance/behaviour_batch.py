"""Batches: one call for many jobs, each with its own lease, slot and end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from windlass import (
    Batch,
    BatchError,
    ConfigError,
    Depends,
    Job,
    JobState,
    Retry,
    Snooze,
    UnrecoverableError,
    Worker,
    current_job,
)
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Gate, Stage, eventually


async def add(stage: Stage, count: int, **options: Any) -> list[Job[Any]]:
    """Add jobs that one call will handle. Do it before the worker starts if the batch does not wait for more
    jobs: an idle worker may be woken by the first job before a broker has the last one."""
    return await stage.queue.add_bulk([{"name": "n", "data": n, **options} for n in range(count)])


@pytest.mark.feature("H17")
async def test_jobs_that_are_claimed_together_are_handled_in_one_call(harness: Harness) -> None:
    async with Stage(harness) as stage:
        calls: list[list[int]] = []

        @stage.app.task(queue=QUEUE, batch=4)
        async def double(numbers: list[int]) -> list[int]:
            calls.append(numbers)
            return [n * 2 for n in numbers]

        jobs = [await double.enqueue(n) for n in range(10)]
        await stage.work(concurrency=10)
        assert [await job.result() for job in jobs] == [n * 2 for n in range(10)]
        assert calls == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        with pytest.raises(ConfigError):
            await double.enqueue("seven")  # type: ignore[arg-type]


@pytest.mark.feature("H17")
async def test_a_batch_waits_for_more_jobs_no_longer_than_its_timeout(harness: Harness) -> None:
    async with Stage(harness) as stage:
        calls: list[int] = []

        async def handle(jobs: list[Job[Any]]) -> None:
            calls.append(len(jobs))

        stage.app.register("n", handle, batch={"size": 3, "timeout": 5})
        await stage.work()
        first = await add(stage, 2)
        await stage.settle()
        await stage.advance(4.9)
        assert calls == []
        await stage.advance(0.2)
        assert [await job.result() for job in first] == [None, None]
        assert calls == [2]
        full = await add(stage, 3)
        assert [await job.result() for job in full] == [None] * 3, "without any time passing"
        assert calls == [2, 3]


async def test_jobs_of_a_batch_whose_task_other_code_cancels_keep_no_slot(harness: Harness) -> None:
    """A handler may cancel every task of its loop, also one that waits for more jobs of a batch."""
    async with Stage(harness) as stage:

        async def handle(jobs: list[Job[Any]]) -> None:
            pass

        stage.app.register("n", handle, batch={"size": 3, "timeout": 5})
        await stage.work(concurrency=3)
        cancelled = await add(stage, 2, max_attempts=1)
        await stage.settle()
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == "windlass-batch"]
        task.cancel()
        assert [await job.wait_until_finished() for job in cancelled] == [JobState.FAILED] * 2
        assert [await job.result() for job in await add(stage, 3)] == [None] * 3


@pytest.mark.feature("H17")
async def test_a_batch_never_waits_for_more_jobs_than_there_are_slots(harness: Harness) -> None:
    async with Stage(harness) as stage:
        calls: list[int] = []

        async def handle(jobs: list[Job[Any]]) -> None:
            calls.append(len(jobs))

        await stage.work(handle, batch=Batch(100, timeout=60), concurrency=2)
        for job in await add(stage, 4):
            await job.result()
        assert calls == [2, 2]


@pytest.mark.feature("H17")
async def test_some_jobs_of_a_batch_can_fail(harness: Harness) -> None:
    async with Stage(harness) as stage:
        calls: list[list[int]] = []

        async def handle(jobs: list[Job[Any]]) -> None:
            calls.append([job.data for job in jobs])
            errors: dict[int | str, BaseException] = {}
            for place, job in enumerate(jobs):
                if job.data == 1 and job.attempt == 1:
                    errors[job.id] = ValueError("odd")
                if job.data == 2 and job.deliveries == 1:
                    errors[place] = Snooze(60)
                if job.data == 3:
                    errors[place] = UnrecoverableError("never")
            if errors:
                raise BatchError(errors, [f"done {job.data}" for job in jobs])

        jobs = await add(stage, 5, backoff={"type": "fixed", "delay": 5, "jitter": 0})
        await stage.work(handle, batch=10)
        assert await jobs[0].result() == "done 0"
        await stage.settle()
        states = [(await job.refresh()).state.value for job in jobs]
        assert states == ["completed", "retrying", "scheduled", "failed", "completed"]
        assert [job.attempts for job in jobs] == [0, 1, 0, 1, 0]
        await stage.advance(61)
        await stage.until_state(jobs[1], JobState.COMPLETED)
        await stage.until_state(jobs[2], JobState.COMPLETED)
        assert calls == [[0, 1, 2, 3, 4], [1], [2]]


@pytest.mark.feature("H17")
async def test_a_result_that_is_an_exception_is_the_end_of_its_job_alone(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handle(jobs: list[Job[Any]]) -> list[Any]:
            return ["fine", Retry(30)]

        good, bad = await add(stage, 2)
        await stage.work(handle, batch=2)
        assert await good.result() == "fine"
        await stage.until_state(bad, JobState.RETRYING)


@pytest.mark.feature("H17")
async def test_an_error_of_the_call_is_every_jobs_error(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handle(jobs: list[Job[Any]]) -> Any:
            if jobs[0].data == "short":
                return ["one"]
            raise ConnectionError("down")

        jobs = await add(stage, 2, max_attempts=1)
        short = await stage.queue.add_bulk([{"name": "n", "data": "short"} for _ in range(2)])
        await stage.work(handle, batch=2)
        for job in jobs:
            await stage.until_state(job, JobState.FAILED)
            assert (await job.refresh()).errors[-1].error_class == "ConnectionError"
        for job in short:
            await stage.until_state(job, JobState.FAILED)
            assert "one result for each of its 2 jobs" in (await job.refresh()).errors[-1].message


@pytest.mark.feature("H17")
async def test_a_job_whose_arguments_do_not_fit_fails_alone(harness: Harness) -> None:
    async with Stage(harness) as stage:
        calls: list[list[int]] = []

        @stage.app.task(queue=QUEUE, batch=3, name="add")
        async def handle(numbers: list[int]) -> None:
            calls.append(numbers)

        jobs = await stage.queue.add_bulk([{"name": "add", "data": data} for data in (1, "two", 3)])
        await stage.work()
        await jobs[0].result()
        await jobs[2].result()
        await stage.until_state(jobs[1], JobState.FAILED)
        assert calls == [[1, 3]]


@pytest.mark.feature("H17")
async def test_a_plain_batch_function_runs_in_a_thread_with_its_dependencies(harness: Harness) -> None:
    async with Stage(harness) as stage:
        opened: list[str] = []

        def connection() -> Iterator[str]:
            opened.append("open")
            yield "db"
            opened.append("closed")

        @stage.app.task(queue=QUEUE, batch=5)
        def store(items: list[str], db: str = Depends(connection)) -> list[str]:
            assert threading.current_thread() is not threading.main_thread()
            with pytest.raises(RuntimeError):
                current_job()  # there are several
            return [f"{item} in {db}" for item in items]

        jobs = [await store.enqueue(item) for item in ("a", "b")]
        await stage.work()
        assert [await job.result() for job in jobs] == ["a in db", "b in db"]
        assert opened == ["open", "closed"]


@pytest.mark.feature("H17", "J1")
async def test_each_job_of_a_batch_holds_a_slot_and_a_lease(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handle(jobs: list[Job[Any]]) -> None:
            await gate.pass_through()

        jobs = await add(stage, 4)
        worker = await stage.work(handle, batch=3, concurrency=3, lease=30)
        await gate.reached.wait()
        assert worker.busy == 3
        records = [(await job.refresh()).record for job in jobs]
        assert len({record.token for record in records[:3]}) == 3
        assert records[3].state is JobState.WAITING
        await stage.advance(45)  # the leases are renewed
        gate.open()
        for job in jobs:
            await job.result()
            assert (await job.refresh()).deliveries == 1


@pytest.mark.feature("H17")
async def test_a_cancelled_job_leaves_its_batch_and_the_others_go_on(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()
        calls: list[list[int]] = []

        async def handle(jobs: list[Job[Any]]) -> None:
            calls.append([job.data for job in jobs])
            await gate.pass_through()

        await stage.work(handle, batch={"size": 3, "timeout": 10})
        jobs = await add(stage, 2)
        await stage.settle()
        await jobs[0].cancel()
        await stage.until_state(jobs[0], JobState.CANCELLED)
        await stage.advance(11)
        await gate.reached.wait()
        assert calls == [[1]]
        await jobs[1].cancel()  # no attempt waits for the call any more
        await stage.until_state(jobs[1], JobState.CANCELLED)


@pytest.mark.feature("H17", "J5")
async def test_a_batch_that_runs_too_long_times_out_job_by_job(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handle(jobs: list[Job[Any]]) -> None:
            await gate.pass_through()

        await stage.work(handle, batch={"size": 2, "timeout": 100})
        slow, quick = await stage.queue.add_bulk(
            [
                {"name": "n", "data": 0, "timeout": 50},
                {"name": "n", "data": 1, "timeout": 5, "max_attempts": 1},
            ]
        )
        await gate.reached.wait()
        await stage.advance(6)
        await stage.until_state(quick, JobState.FAILED)
        assert (await quick.refresh()).errors[-1].error_class == "JobTimeoutError"
        assert await slow.get_state() is JobState.ACTIVE
        gate.open()
        await slow.result()


@pytest.mark.feature("H17")
async def test_a_worker_that_closes_gives_back_what_was_only_gathered(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handle(jobs: list[Job[Any]]) -> None:
            raise AssertionError("never called")

        worker = await stage.work(handle, batch={"size": 5, "timeout": 1_000})
        jobs = await add(stage, 2)
        await stage.settle()
        await eventually(lambda: worker.busy == 2)
        await worker.close(force=True)
        assert [(await job.refresh()).state for job in jobs] == [JobState.WAITING] * 2
        assert [job.attempts for job in jobs] == [0, 0]


@pytest.mark.feature("H17")
async def test_plain_batch_functions_let_go_of_what_was_only_gathered_too(harness: Harness) -> None:
    async with Stage(harness) as stage:
        calls: list[int] = []

        def handle(jobs: list[Job[Any]]) -> None:
            calls.append(len(jobs))

        worker = await stage.work(handle, batch={"size": 5, "timeout": 1_000})
        jobs = await add(stage, 3)
        await eventually(lambda: worker.busy == 3)
        await stage.settle()
        await jobs[0].cancel()
        await stage.until_state(jobs[0], JobState.CANCELLED)
        await worker.close(force=True)
        assert [(await job.refresh()).state for job in jobs[1:]] == [JobState.WAITING] * 2
        assert (calls, worker.abandoned) == ([], 0)


@pytest.mark.feature("H17")
async def test_batch_settings_are_checked_at_once(harness: Harness) -> None:
    async with Stage(harness) as stage:
        with pytest.raises(ConfigError, match=r"batch\.size"):
            stage.app.task(batch=0)
        with pytest.raises(ConfigError, match="batch setting"):
            Worker(QUEUE, lambda job: None, url_or_app=stage.app, batch={"sise": 5})

        async def index(items: list[int]) -> None: ...

        with pytest.raises(ConfigError, match="task with batch"):
            stage.app.task(batch=5, isolation="process")(index)
        with pytest.raises(ConfigError, match="number or id"):
            BatchError({})
