"""Waiting for results, cached results, and how long results are kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import (
    ConfigError,
    Job,
    JobFailedError,
    JobNotFoundError,
    JobState,
    WaitTimeoutError,
    Worker,
    as_completed,
    gather,
)
from windlass.errors import (
    IllegalTransitionError,
    MaxRetriesError,
    RemoteError,
    ResultExpiredError,
    UnrecoverableError,
)
from windlass_conformance.harness import Harness
from windlass_conformance.stage import QUEUE, Gate, Stage, eventually, live


@pytest.mark.feature("E1", "E2")
async def test_add_and_wait_gives_the_result(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> int:
            return int(job.data) * 2

        await stage.work(handler)
        assert await stage.queue.add_and_wait("double", 21) == 42


@pytest.mark.feature("E1", "Y1")
async def test_a_task_can_be_called(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(queue=QUEUE)
        async def double(n: int) -> int:
            return n * 2

        await stage.work()
        assert await double.call(4) == 8


@pytest.mark.feature("E1", "E2")
async def test_many_callers_wait_at_once(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(queue=QUEUE)
        async def double(n: int) -> int:
            return n * 2

        await stage.work()
        answers = await asyncio.gather(*(double.call(n) for n in range(50)))
        assert answers == [n * 2 for n in range(50)]


@pytest.mark.feature("E9")
async def test_a_task_is_mapped_over_many_values_and_their_results_gathered(harness: Harness) -> None:
    async with Stage(harness) as stage:

        @stage.app.task(queue=QUEUE, max_attempts=1)
        async def divide(n: int, by: int) -> float:
            return n / by

        await stage.work()
        assert await gather(await divide.map(range(1_100), [2] * 1_100)) == [n / 2 for n in range(1_100)]
        jobs = await divide.map([1, 2, 3], [1, 0, 2])
        with pytest.raises(JobFailedError, match="ZeroDivisionError"):
            await gather(jobs)
        first, failed, last = await gather(jobs, return_errors=True)
        assert (first, last) == (1.0, 1.5)
        assert isinstance(failed, JobFailedError)
        assert await gather([]) == await divide.map([], []) == []
        with pytest.raises(ConfigError, match="same length"):
            await divide.map([1, 2], [1])
        with pytest.raises(ConfigError, match="missing a required argument"):
            await divide.map([1, 2])  # type: ignore[call-overload]


@pytest.mark.feature("E9")
async def test_jobs_are_seen_in_the_order_of_their_ends(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gates = {name: Gate() for name in ("first", "second")}

        async def handler(job: Job[Any]) -> str:
            await gates[job.data].pass_through()
            return str(job.data).upper()

        await stage.work(handler)
        jobs = [await stage.queue.add("n", name) for name in gates]
        gates["second"].open()
        seen = []
        async for job in as_completed(jobs):
            seen.append(await job.result())
            gates["first"].open()
        assert seen == ["SECOND", "FIRST"]


@pytest.mark.feature("E4", "Z15")
async def test_waiting_ends_in_time_and_the_job_goes_on(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> str:
            await gate.pass_through()
            return "late"

        await stage.work(handler)
        job = await stage.queue.add("n")
        waiting = asyncio.create_task(job.result(timeout=5))
        await stage.advance(5)
        with pytest.raises(WaitTimeoutError):
            await waiting
        gate.open()
        assert await job.result() == "late"


@pytest.mark.feature("E1")
async def test_a_call_that_names_no_timeout_waits_for_30_seconds(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n")
        waits = [
            asyncio.create_task(waiting)
            for waiting in (
                stage.queue.add_and_wait("n", job_id="call"),
                job.result(),
                job.wait_until_finished(),
            )
        ]
        await stage.settle()
        await stage.advance(29.9)
        assert [wait.done() for wait in waits] == [False] * 3
        await stage.advance(0.2)
        ends = await asyncio.gather(*waits, return_exceptions=True)
        assert [(type(end), end.timeout_s) for end in ends if isinstance(end, WaitTimeoutError)] == [
            (WaitTimeoutError, 30)
        ] * 3


@pytest.mark.feature("E4", "Z15")
async def test_a_failed_job_raises_its_error_to_whoever_waits(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> None:
            raise ValueError("no such user")

        await stage.work(handler)
        with pytest.raises(JobFailedError) as caught:
            await stage.queue.add_and_wait("n", max_attempts=1)
        assert (caught.value.error_class, caught.value.error_message) == ("ValueError", "no such user")


@pytest.mark.feature("E4", "Z15")
async def test_the_original_error_is_the_cause_of_what_a_caller_gets(harness: Harness) -> None:
    async with Stage(harness) as stage:

        class OrderError(LookupError):
            pass

        async def handler(job: Job[Any]) -> None:
            if job.name == "own":
                raise OrderError("no order 7")
            raise ValueError("no such user") from KeyError("ada")

        await stage.work(handler)
        with pytest.raises(JobFailedError) as caught:
            await stage.queue.add_and_wait("n", max_attempts=1)
        cause = caught.value.__cause__
        assert isinstance(cause, ValueError) and isinstance(cause, RemoteError)
        assert caught.value.original_error is cause
        assert (type(cause).__name__, str(cause)) == ("ValueError", "no such user")
        assert "no such user" in cause.remote_traceback and "handler" in cause.remote_traceback
        with pytest.raises(JobFailedError) as caught:
            await stage.queue.add_and_wait("own", max_attempts=1)
        cause = caught.value.__cause__
        assert (type(cause).__name__, str(cause)) == ("OrderError", "no order 7")


@pytest.mark.feature("E4", "C16", "Z15")
async def test_spent_attempts_reach_the_callbacks_of_the_worker(harness: Harness) -> None:
    async with Stage(harness) as stage:
        told: list[BaseException] = []
        hooked: list[tuple[str, bool]] = []
        raised = [ValueError("first"), ValueError("second")]

        async def handler(job: Job[Any]) -> None:
            if job.name == "at once":
                raise UnrecoverableError("no use")
            raise raised[job.attempts]

        stage.app.on_error(lambda job, error, final: hooked.append((str(error), final)))
        worker = await stage.work(handler)
        worker.on("failed", lambda job, error: told.append(error))
        job = await stage.queue.add("n", {"to": "ada"}, max_attempts=2, backoff=0)
        await stage.until_state(job, JobState.FAILED)
        await eventually(lambda: bool(told))
        spent = told.pop()
        assert isinstance(spent, MaxRetriesError)
        assert (spent.job_id, spent.attempts, spent.payload) == (job.id, 2, {"to": "ada"})
        assert spent.__cause__ is raised[1]
        with pytest.raises(MaxRetriesError) as caught:
            await job.result()
        assert (caught.value.attempts, caught.value.payload) == (2, {"to": "ada"})
        assert hooked == [("first", False), ("second", True)]
        other = await stage.queue.add("at once")
        await stage.until_state(other, JobState.FAILED)
        await eventually(lambda: bool(told))
        assert isinstance(told[0], UnrecoverableError)


@pytest.mark.feature("E8", "E5")
async def test_how_long_a_failed_job_is_kept_can_be_changed(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> None:
            raise ValueError("no such user")

        await stage.work(handler)
        job = await stage.queue.add("n", max_attempts=1)
        await stage.until_state(job, JobState.FAILED)
        await stage.queue.update_result_ttl(job.id, 7_200)
        kept = (await job.refresh()).options.keep_failed
        assert kept.age_ms is not None and 7_200_000 <= kept.age_ms < 7_205_000
        assert (await stage.queue.get_status(job.id) or {})["error"]["message"] == "no such user"


@pytest.mark.feature("E4", "D2")
async def test_a_second_request_under_the_same_id_joins_the_running_job(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> str:
            await gate.pass_through()
            return "shared"

        await stage.work(handler)
        first = asyncio.create_task(stage.queue.add_and_wait("n", job_id="own"))
        await gate.reached.wait()
        second = asyncio.create_task(stage.queue.add_and_wait("n", job_id="own"))
        await stage.settle()
        gate.open()
        assert [await first, await second] == ["shared", "shared"]
        assert gate.count == 1


@pytest.mark.feature("E4", "D2", "E5")
async def test_a_request_after_the_end_is_answered_from_the_cache(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs: list[str] = []
        await stage.work(lambda job: runs.append(job.id))
        for _ in range(3):
            assert await stage.queue.add_and_wait("n", job_id="own") is None
        assert runs == ["own"]


@pytest.mark.feature("E5", "E8")
async def test_a_result_is_gone_after_its_time_and_the_next_request_runs_anew(harness: Harness) -> None:
    async with Stage(harness) as stage:
        runs: list[str] = []

        async def handler(job: Job[Any]) -> int:
            runs.append(job.id)
            return len(runs)

        await stage.work(handler)
        assert await stage.queue.add_and_wait("n", job_id="own", result_ttl=100) == 1
        await stage.advance(99)
        assert await stage.queue.get_result("own") == 1
        await stage.advance(1)
        with pytest.raises(ResultExpiredError, match="raise its result_ttl"):
            await stage.queue.get_result("own")
        assert await stage.queue.add_and_wait("n", job_id="own", result_ttl=100) == 2


@pytest.mark.feature("E5", "A29")
async def test_the_status_of_a_job_has_its_progress_and_its_result_or_error(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> str:
            if job.data == "bad":
                raise ValueError("no")
            await job.update_progress({"done": 3, "of": 3})
            return "fine"

        await stage.work(handler)
        good = await stage.queue.add("n", "good")
        bad = await stage.queue.add("n", "bad", max_attempts=1)
        await good.wait_until_finished()
        await bad.wait_until_finished()
        status = await stage.queue.get_status(good.id)
        assert status is not None and (status["state"], status["result"]) == (JobState.COMPLETED, "fine")
        assert status["progress"] == {"done": 3, "of": 3}
        status = await stage.queue.get_status(bad.id)
        assert status is not None and "progress" not in status
        assert status["error"] == {"class": "ValueError", "message": "no"}
        assert await stage.queue.get_status("no-such-job") is None


@pytest.mark.feature("E6", "E3")
async def test_whoever_waits_learns_of_the_end_without_time_passing(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> None:
            await gate.pass_through()

        await stage.work(handler)
        job = await stage.queue.add("n")
        waiting = asyncio.create_task(job.wait_until_finished())
        await gate.reached.wait()
        before = stage.clock.now_ms()
        gate.open()
        assert await waiting is JobState.COMPLETED
        assert stage.clock.now_ms() == before


@pytest.mark.feature("E3")
async def test_a_waiter_reads_its_job_once_at_first_and_at_most_once_when_it_has_ended(
    harness: Harness,
) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> int:
            await gate.pass_through()
            return int(job.data)

        await stage.work(handler, concurrency=20)
        jobs = [await stage.queue.add("n", n) for n in range(20)]
        before = stage.faults.sent["GetJobs"]
        waiting = [asyncio.create_task(job.result()) for job in jobs]
        await eventually(lambda: stage.faults.sent["GetJobs"] - before == 20)
        gate.open()
        assert await asyncio.gather(*waiting) == list(range(20))
        # One for each waiter, one for all each time that some of the jobs ended: the notice has no results,
        # or it has them and nothing is read at all.
        assert stage.faults.sent["GetJobs"] - before <= 40
        before = stage.faults.sent["GetJobs"]
        assert await stage.queue.get_result(jobs[3].id) == 3
        assert stage.faults.sent["GetJobs"] - before == 1


@pytest.mark.feature("E5")
async def test_a_result_past_its_time_is_an_error_wherever_it_is_read_and_none_a_returned_none(
    harness: Harness,
) -> None:
    async with live(harness) as app:
        queue = app.queue(QUEUE)
        async with Worker(QUEUE, lambda job: job.data, url_or_app=app):
            gone = await queue.add("n", 7, job_id="gone", result_ttl=0)
            none = await queue.add("n", None, job_id="none")
            assert await gone.wait_until_finished() is JobState.COMPLETED
            assert await none.result() is None
        assert await queue.get_result("none") is None
        gone = await gone.refresh()
        with pytest.raises(ResultExpiredError, match=r"job 'gone' of queue 'mail' completed"):
            await gone.result()
        with pytest.raises(ResultExpiredError):
            await queue.get_result("gone")
        with pytest.raises(ResultExpiredError):
            _ = gone.return_value
        status = await queue.get_status("gone")
        assert status is not None and status["result_expired"] is True and "result" not in status
        assert await none.refresh() is none and none.return_value is None


@pytest.mark.feature("E4", "E5")
async def test_callers_who_wait_while_a_job_runs_get_its_result_however_short_it_is_kept(
    harness: Harness,
) -> None:
    async with live(harness) as app:
        queue, gate = app.queue(QUEUE), Gate()

        async def handler(job: Job[Any]) -> Any:
            if job.data == "slow":
                await gate.pass_through()
            return f"{job.data} value"

        async with Worker(QUEUE, handler, url_or_app=app):
            for number in range(5):
                assert await queue.add_and_wait("n", number, result_ttl=0) == f"{number} value"
            job = await queue.add("n", "slow", job_id="own", result_ttl=0)
            await gate.reached.wait()
            waits: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(job.result(None)),
                asyncio.ensure_future(queue.add_and_wait("n", "slow", job_id="own", result_ttl=0)),
            ]
            for _ in range(20):  # both have looked by then
                await queue.count()
            gate.open()
            assert await asyncio.gather(*waits) == ["slow value", "slow value"]


@pytest.mark.feature("E4", "E5", "A13")
async def test_callers_who_wait_get_the_result_of_a_job_whose_record_goes_at_once(harness: Harness) -> None:
    nothing: dict[str, Any] = {"keep_completed": False, "result_ttl": 0}
    async with Stage(harness) as stage:
        await stage.work(lambda job: f"{job.data} value")
        for number in range(3):
            assert await stage.queue.add_and_wait("n", number, **nothing) == f"{number} value"
        job = await stage.queue.add("n", 7, **nothing)
        assert await job.wait_until_finished() is JobState.COMPLETED
        assert list(await stage.queue.get_jobs()) == []
        found = await stage.queue.get_job(job.id)
        assert found is not None and await found.is_completed()
        await stage.advance(60)
        assert await stage.queue.get_job(job.id) is None
        with pytest.raises(JobNotFoundError):
            await job.refresh()


@pytest.mark.feature("E5")
async def test_the_result_of_a_job_that_has_none_yet_is_refused_with_what_became_of_it(
    harness: Harness,
) -> None:
    async with live(harness) as app:
        queue = app.queue(QUEUE)
        job = await queue.add("n", max_attempts=1)
        with pytest.raises(IllegalTransitionError, match=r"it is waiting; wait for it with job\.result"):
            await queue.get_result(job.id)
        with pytest.raises(JobNotFoundError):
            await queue.get_result("no-such-job")
        async with Worker(QUEUE, lambda job: 1 / 0, url_or_app=app):
            await job.wait_until_finished()
        with pytest.raises(JobFailedError, match="ZeroDivisionError"):
            await queue.get_result(job.id)
