"""Managing queues: lists, logs, changes, cleaning, counters."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import ConfigError, Job, JobNotFoundError, JobState, Snooze, Worker
from windlass.errors import IllegalTransitionError
from windlass.testing.clock import START_MS
from windlass_conformance.harness import Harness
from windlass_conformance.needs import needs
from windlass_conformance.stage import QUEUE, Gate, Stage, live


async def fail_if_bad(job: Job[Any]) -> None:
    if job.name == "bad":
        raise ValueError("bad")


@pytest.mark.feature("A28")
async def test_jobs_are_listed_by_state_page_by_page(harness: Harness) -> None:
    async with Stage(harness) as stage:
        jobs = await stage.queue.add_bulk([{"name": "n"} for _ in range(7)])
        await stage.queue.add("later", delay=60)
        ids: list[str] = []
        cursor = None
        while True:
            page = await stage.queue.get_jobs("waiting", cursor, 3)
            ids += [job.id for job in page]
            cursor = page.cursor
            if cursor is None:
                break
        assert ids == [job.id for job in reversed(jobs)]


@pytest.mark.feature("A30")
@needs("priority")
async def test_jobs_are_found_by_name_state_tag_error_and_data(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add("mail.send", {"to": "ada", "n": 1}, tags=["red"])
        await stage.queue.add("mail.send", {"to": "bob"}, delay=60)
        await stage.queue.add("bad", max_attempts=1, priority=1)
        worker = await stage.work(fail_if_bad, concurrency=1)
        worker.pause()
        search = stage.queue.search_jobs
        assert [job.data["to"] for job in await search(name="mail.*")] == ["bob", "ada"]
        assert [job.data["to"] for job in await search(state="scheduled")] == ["bob"]
        assert [job.data["to"] for job in await search(data={"to": "ada"})] == ["ada"]
        worker.resume()
        await worker.drain()
        assert [job.name for job in await search(error="ValueError")] == ["bad"]
        assert [job.data["to"] for job in await search(tag="red", state="completed")] == ["ada"]


async def refuse(job: Job[Any]) -> None:
    raise ValueError(f"card {job.data} was refused")


@pytest.mark.feature("A30")
async def test_a_search_by_the_text_of_an_error_finds_exactly_the_jobs_whose_last_error_holds_it(
    harness: Harness,
) -> None:
    async with Stage(harness) as stage:
        queue = stage.queue
        cards = [{"name": "charge", "data": n, "max_attempts": 2 - n % 2, "backoff": 60} for n in range(8)]
        await queue.add_bulk(cards)
        worker = await stage.work(refuse)
        await stage.settle()
        await worker.close()
        await queue.add("charge", 3)

        async def found(text: str, **how: Any) -> list[int]:
            return sorted([job.data for job in await queue.search_jobs(query=f'error:"{text}"', **how)])

        alike = {job.record.errors[-1].fingerprint for job in await queue.search_jobs(query="error:refused")}
        assert len(alike) == 1  # messages differ inside one fingerprint
        assert await found("card 3 was refused") == [3]
        assert await found("card 8 was refused") == []
        assert await found("was refused") == list(range(8))
        assert await found("was refused", state="retrying") == [0, 2, 4, 6]
        assert await queue.retry_jobs(query='error:"card 3 was refused"', state="failed") == 1
        assert await found("card 3 was refused") == [3]
        assert await queue.remove_jobs(query='error:"card 5 was refused"', state="failed") == 1
        assert await found("was refused") == [0, 1, 2, 3, 4, 6, 7]


@pytest.mark.feature("A30")
async def test_jobs_are_retried_removed_promoted_and_cancelled_in_bulk_by_what_they_are(
    harness: Harness,
) -> None:
    async with Stage(harness) as stage:
        queue = stage.queue
        await queue.add_bulk(
            [
                {"name": "bad", "data": {"n": n}, "max_attempts": 1, "tags": ["odd" if n % 2 else "even"]}
                for n in range(6)
            ]
        )
        await (await stage.work(fail_if_bad)).drain()
        assert await queue.retry_jobs(data={"n": 3}) == 1
        assert await queue.retry_jobs(tag="odd", count=1) == 1
        assert await queue.retry_jobs(error="TypeError") == await queue.retry_jobs(name="good*") == 0
        assert await queue.remove_jobs(state="failed", tag="even", name="b?d") == 3
        later = [{"name": "later", "data": {"n": n}, "delay": 60, "tags": [f"t{n}"]} for n in range(250)]
        await queue.add_bulk(later)
        assert await queue.promote_jobs(tag="t7") == 1
        assert await queue.promote_jobs(count=200) == 200
        assert await queue.cancel_jobs(state="scheduled", reason="not needed") == 49
        counts = {state.value: n for state, n in (await queue.get_job_counts()).items() if n}
        assert counts == {"waiting": 203, "failed": 1, "cancelled": 49}
        assert [job.data["n"] for job in await queue.search_jobs(state="failed", tag="odd")] == [5]


@pytest.mark.feature("A30")
@pytest.mark.parametrize(
    "wrong", [{"state": "asleep"}, {"state": ()}, {"nane": "x"}, {"data": 7}, {"count": -1}]
)
async def test_a_bulk_change_that_makes_no_sense_changes_nothing(
    harness: Harness, wrong: dict[str, Any]
) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add("n")
        with pytest.raises(ConfigError):
            await stage.queue.remove_jobs(**{"state": "waiting", **wrong})
        assert await stage.queue.count() == 1


@pytest.mark.feature("H10")
async def test_pausing_a_queue_stops_workers_that_already_wait_for_its_jobs(harness: Harness) -> None:
    async with Stage(harness) as stage:
        ran: list[str] = []

        async def handler(job: Job[Any]) -> None:
            ran.append(job.id)

        for _ in range(3):
            await stage.work(handler)
        await stage.settle()  # all of them are blocked in a wait now
        await stage.queue.pause()
        jobs = await stage.queue.add_bulk([{"name": "n"}] * 5)
        await stage.advance(1_200)
        assert ran == []
        assert await stage.queue.is_paused()
        await stage.queue.resume()
        for job in jobs:
            await job.wait_until_finished()
        assert sorted(ran) == sorted(job.id for job in jobs)


@pytest.mark.feature("A33")
async def test_log_lines_are_kept_with_the_job(harness: Harness) -> None:
    async with Stage(harness) as stage:

        async def handler(job: Job[Any]) -> None:
            for n in range(5):
                await job.log(f"line {n}")

        await stage.work(handler)
        job = await stage.queue.add("n")
        await job.result()
        assert await stage.queue.get_job_logs(job.id, 1, 2) == (["line 1", "line 2"], 5)


@pytest.mark.feature("A21")
async def test_a_handler_leaves_new_data_for_its_next_attempt(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen: list[Any] = []

        async def handler(job: Job[Any]) -> None:
            seen.append(job.data)
            if job.attempt == 1:
                await job.update_data({"cursor": 500})
                raise ValueError("continue later")

        await stage.work(handler)
        job = await stage.queue.add("n", {"cursor": 0}, backoff=0)
        await job.result()
        assert seen == [{"cursor": 0}, {"cursor": 500}]


@pytest.mark.feature("B15", "A21")
async def test_a_job_goes_through_steps_with_long_sleeps_in_between(harness: Harness) -> None:
    async with Stage(harness) as stage:
        seen: list[tuple[Any, int, int]] = []

        async def handler(job: Job[Any]) -> str:
            seen.append((job.data["step"], stage.clock.now_ms() - START_MS, job.attempt))
            if job.data["step"] < 3:
                await job.update_data({"step": job.data["step"] + 1})
                raise Snooze(3_600)
            return "all steps"

        await stage.work(handler)
        job = await stage.queue.add("n", {"step": 1}, max_attempts=1)
        await stage.settle()
        assert await job.is_delayed()
        await stage.advance(2 * 3_600)
        assert await job.result(5) == "all steps"
        assert seen == [(1, 0, 1), (2, 3_600_000, 1), (3, 7_200_000, 1)]


@pytest.mark.feature("A23", "A21")
@needs("priority")
async def test_a_pending_job_can_be_changed_in_every_respect(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n", {"v": 1}, delay=60)
        await job.update_data({"v": 2})
        await job.change_priority(7)
        await job.change_delay(5)
        await job.refresh()
        assert (job.data, job.priority) == ({"v": 2}, 7)
        assert job.run_at_ms == stage.clock.now_ms() + 5_000
        await job.promote()
        assert await job.is_waiting()


@pytest.mark.feature("A23")
@needs("priority")
async def test_running_and_finished_jobs_refuse_to_be_changed(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> None:
            await gate.pass_through()

        await stage.work(handler)
        job = await stage.queue.add("n")
        await gate.reached.wait()
        for change in (job.change_priority(5), job.change_delay(5), job.promote(), job.remove(), job.retry()):
            with pytest.raises(IllegalTransitionError):
                await change
        gate.open()
        await job.result()
        for change in (job.change_priority(5), job.promote(), job.update_data(1)):
            with pytest.raises(IllegalTransitionError):
                await change


@pytest.mark.feature("A31")
async def test_clean_removes_old_finished_jobs_oldest_first(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(fail_if_bad, concurrency=1)
        jobs = []
        for _ in range(3):
            jobs.append(await stage.queue.add("good"))
            await jobs[-1].result()
            await stage.advance(10)
        cleaned = await stage.queue.clean(grace=15, limit=10)
        assert (cleaned.count, cleaned.ids) == (2, [jobs[0].id, jobs[1].id])
        with pytest.raises(ConfigError):
            await stage.queue.clean(state="active")


@pytest.mark.feature("A32")
async def test_drain_removes_what_waits_and_on_request_what_is_due_later(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add_bulk([{"name": "n"}, {"name": "n"}, {"name": "n", "delay": 60}])
        assert await stage.queue.drain() == 2
        assert await stage.queue.count() == 1
        assert await stage.queue.drain(delayed=True) == 1
        assert await stage.queue.count() == 0


@pytest.mark.feature("A32")
async def test_obliterate_removes_everything_but_not_behind_running_jobs(harness: Harness) -> None:
    async with Stage(harness) as stage:
        gate = Gate()

        async def handler(job: Job[Any]) -> None:
            await gate.pass_through()

        worker = await stage.work(handler, concurrency=1)
        await stage.queue.add_bulk([{"name": "n"} for _ in range(3)])
        await gate.reached.wait()
        with pytest.raises(IllegalTransitionError):
            await stage.queue.obliterate()
        assert await stage.queue.count() == 2
        worker.pause()
        assert await stage.queue.obliterate(force=True) == 3
        assert await stage.app.queues() == []


@pytest.mark.feature("A24")
async def test_a_removed_job_is_gone(harness: Harness) -> None:
    async with Stage(harness) as stage:
        job = await stage.queue.add("n")
        await job.remove()
        assert await stage.queue.get_job(job.id) is None
        assert await stage.queue.count() == 0


@pytest.mark.feature("Q1", "Q4")
async def test_lifetime_counters_survive_the_records(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add_bulk([{"name": "good"} for _ in range(3)])
        await stage.queue.add("bad", max_attempts=1)
        await (await stage.work(fail_if_bad)).drain()
        await stage.queue.obliterate()
        totals = {(row.task, row.outcome): row.total for row in await stage.queue.get_metrics()}
        assert totals == {
            ("good", "enqueued"): 3,
            ("good", "completed"): 3,
            ("bad", "enqueued"): 1,
            ("bad", "failed"): 1,
        }


@pytest.mark.feature("C12", "C13")
async def test_failed_jobs_are_the_dead_letters(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add_bulk([{"name": "bad", "max_attempts": 1}, {"name": "good"}])
        await (await stage.work(fail_if_bad)).drain()
        (dead,) = await stage.queue.get_dead_letter_jobs()
        assert (dead.name, dead.state, dead.reason) == ("bad", JobState.FAILED, "attempts")


@pytest.mark.feature("A13")
async def test_finished_jobs_are_kept_as_long_as_their_rule_says(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.work(fail_if_bad, duties=True, recover_every=600, prune_every=60)
        short = await stage.queue.add("good", keep_completed={"age": 300}, result_ttl=0)
        long = await stage.queue.add("good", keep_completed=True)
        await long.wait_until_finished()
        await stage.advance(500)
        assert await stage.queue.get_job(short.id) is None
        assert await stage.queue.get_job(long.id) is not None


@pytest.mark.feature("A28", "Q7")
async def test_the_app_lists_its_queues_with_their_counts(harness: Harness) -> None:
    async with Stage(harness) as stage:
        await stage.queue.add("n")
        await stage.app.queue("zoo").pause()
        infos = {info.name: info for info in await stage.app.queues()}
        assert set(infos) == {QUEUE, "zoo"}
        assert (infos[QUEUE].counts["waiting"], infos["zoo"].paused) == (1, True)


@pytest.mark.feature("A22")
async def test_progress_is_reported_from_outside_until_the_job_has_ended(harness: Harness) -> None:
    async with live(harness) as app:
        queue, gate = app.queue(QUEUE), Gate()
        job = await queue.add("n")
        await job.update_progress("queued")
        assert (await job.refresh()).progress == "queued"
        await job.log("a line from outside is welcome")
        assert (await queue.get_job_logs(job.id))[1] == 1
        async with Worker(QUEUE, lambda _: gate.pass_through(), url_or_app=app):
            await gate.reached.wait()
            other = await queue.get_job(job.id)
            assert other is not None
            await other.update_progress({"current": 1, "total": 2})
            assert (await job.refresh()).progress == {"current": 1, "total": 2}
            gate.open()
            await job.wait_until_finished()
        with pytest.raises(IllegalTransitionError, match="it is completed"):
            await job.update_progress(50)
        assert (await job.refresh()).progress == {"current": 1, "total": 2}
        await job.remove()
        with pytest.raises(JobNotFoundError):
            await job.update_progress(50)
