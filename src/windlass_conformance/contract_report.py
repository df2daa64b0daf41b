"""``Report``: progress and log lines."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.job import LOGS_KEPT, ErrorInfo, EventType, JobRef, LogLine
from windlass.core.outcome import Changed, Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, START_MS, Harness

A, NOBODY = JobRef(QUEUE, "a"), JobRef(QUEUE, "no-such-job")


@pytest.mark.feature("A22", "K1")
async def test_progress_is_stored_and_told(harness: Harness) -> None:
    job = await harness.start("a")
    mark = await harness.mark()
    report = rq.Report(ref=A, token=job.token, progress=b'{"current":1,"total":9}')
    assert await harness.do(report) == rq.ChangeResult(Changed.OK, JobState.ACTIVE)
    job.progress = b'{"current":1,"total":9}'
    assert await harness.get("a") == job
    (event,) = await harness.events(after=mark)
    assert (event.type, event.data) == (EventType.PROGRESS, {"progress": '{"current":1,"total":9}'})


@pytest.mark.feature("A22", "J24")
@pytest.mark.parametrize("token", ["", "never.0"])
async def test_progress_under_a_token_needs_the_newest_and_otherwise_nothing_is_written(
    harness: Harness, token: str
) -> None:
    job = await harness.start("a")
    mark = await harness.mark()
    report = rq.Report(ref=A, token=token, progress=b"1", logs=["line"])
    assert await harness.do(report) == rq.ChangeResult(Changed.LOST, JobState.ACTIVE)
    assert (await harness.get("a"), await harness.mark()) == (job, mark)
    assert (await harness.do(rq.GetLogs(ref=A))).count == 0


@pytest.mark.feature("A22")
@pytest.mark.parametrize("state", [JobState.WAITING, JobState.SCHEDULED, JobState.ACTIVE, JobState.RETRYING])
async def test_progress_told_from_outside_changes_nothing_else_of_a_job_that_has_not_ended(
    harness: Harness, state: JobState
) -> None:
    if state in (JobState.WAITING, JobState.SCHEDULED):
        await harness.add("a", delay_ms=5_000 if state is JobState.SCHEDULED else 0)
    else:
        job = await harness.start("a")
        if state is JobState.RETRYING:
            await harness.settle(job, Outcome.RETRY, delay_ms=5_000)
    before, mark = await harness.get("a"), await harness.mark()
    assert await harness.do(rq.Report(ref=A, progress=b"1")) == rq.ChangeResult(Changed.OK, state)
    before.progress = b"1"
    assert await harness.get("a") == before
    (event,) = await harness.events(after=mark)
    assert (event.type, event.data) == (EventType.PROGRESS, {"progress": "1"})


@pytest.mark.feature("A22")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL, Outcome.CANCEL])
async def test_no_progress_is_told_of_a_job_that_has_ended(harness: Harness, outcome: Outcome) -> None:
    await harness.finish("a", outcome)
    before, mark = await harness.get("a"), await harness.mark()
    answer = await harness.do(rq.Report(ref=A, progress=b"1"))
    assert (answer.status, await harness.get("a"), await harness.mark()) == (Changed.ILLEGAL, before, mark)


@pytest.mark.feature("A22", "J24")
async def test_a_settled_attempt_cannot_report_progress(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.settle(job, Outcome.COMPLETE)
    report = rq.Report(ref=A, token=job.token, progress=b"1")
    assert await harness.do(report) == rq.ChangeResult(Changed.LOST, JobState.COMPLETED)


@pytest.mark.feature("A22", "J24")
async def test_an_empty_token_is_not_that_of_a_job_without_a_lease(harness: Harness) -> None:
    await harness.add("a")
    report = rq.Report(ref=A, token="", progress=b"1")
    assert await harness.do(report) == rq.ChangeResult(Changed.LOST, JobState.WAITING)
    assert (await harness.get("a")).progress is None


@pytest.mark.feature("A22")
async def test_the_last_progress_stays_with_a_finished_job(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.do(rq.Report(ref=A, token=job.token, progress=b"70"))
    await harness.settle(job, Outcome.FAIL)
    assert (await harness.get("a")).progress == b"70"


@pytest.mark.feature("A33")
@pytest.mark.parametrize("outcome", [None, Outcome.COMPLETE, Outcome.RETRY])
async def test_log_lines_need_no_token_in_any_state(harness: Harness, outcome: Outcome | None) -> None:
    job = await harness.start("a")
    if outcome is not None:
        await harness.settle(job, outcome)
    assert (await harness.do(rq.Report(ref=A, logs=["one", "two"]))).status is Changed.OK
    await harness.do(rq.Report(ref=A, logs=["three"]))
    page = await harness.do(rq.GetLogs(ref=A))
    assert (page.lines, page.count) == (["one", "two", "three"], 3)


@pytest.mark.feature("A22")
async def test_a_log_line_says_when_and_in_which_run_it_was_written(harness: Harness) -> None:
    """A manual retry resets the number of attempts, but not that of runs."""
    await harness.add("a")
    await harness.do(rq.Report(ref=A, logs=["before"]))
    job = await harness.take()
    harness.pass_ms(5)
    await harness.do(rq.Report(ref=A, token=job.token, logs=["first"], level="warning"))
    await harness.settle(job, Outcome.FAIL, error=ErrorInfo(error_class="E"), reason="attempts")
    await harness.do(rq.Report(ref=A, logs=["after"], level="error"))
    await harness.do(rq.RetryJobs(refs=[A]))
    job = await harness.take()
    await harness.do(rq.Report(ref=A, token=job.token, logs=["second"], level="debug"))
    page = await harness.do(rq.GetLogs(ref=A))
    assert page.entries == [
        LogLine("before", START_MS, "info", 0, 0),
        LogLine("first", START_MS + 5, "warning", 1, 1),
        LogLine("after", START_MS + 5, "error", 1, 1),
        LogLine("second", START_MS + 5, "debug", 1, 2),
    ]


@pytest.mark.feature("A33")
async def test_logs_are_read_from_a_position_up_to_a_limit(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.Report(ref=A, logs=[f"l{n}" for n in range(10)]))
    page = await harness.do(rq.GetLogs(ref=A, start=3, limit=2))
    assert (page.lines, page.count) == (["l3", "l4"], 10)
    page = await harness.do(rq.GetLogs(ref=A, start=9, limit=5))
    assert (page.lines, page.count) == (["l9"], 10)
    assert await harness.do(rq.GetLogs(ref=A, start=10)) == rq.LogPage([], 10)


@pytest.mark.feature("A33")
async def test_only_the_newest_log_lines_are_kept(harness: Harness) -> None:
    await harness.add("a")
    for first in range(0, LOGS_KEPT + 200, 200):
        await harness.do(rq.Report(ref=A, logs=[f"l{n}" for n in range(first, first + 200)]))
    page = await harness.do(rq.GetLogs(ref=A))
    assert (page.count, len(page.lines)) == (LOGS_KEPT, LOGS_KEPT)
    assert (page.lines[0], page.lines[-1]) == ("l200", f"l{LOGS_KEPT + 199}")


@pytest.mark.feature("A33")
async def test_a_report_on_an_unknown_job_answers_not_found(harness: Harness) -> None:
    assert await harness.do(rq.Report(ref=NOBODY, logs=["x"])) == rq.ChangeResult(Changed.NOT_FOUND)
    assert await harness.do(rq.GetLogs(ref=NOBODY)) == rq.LogPage([], 0)


@pytest.mark.feature("A33")
async def test_a_job_that_replaces_another_begins_with_empty_logs(harness: Harness) -> None:
    await harness.finish("a", Outcome.FAIL)
    await harness.do(rq.Report(ref=A, logs=["old"]))
    await harness.add("a")
    assert await harness.do(rq.GetLogs(ref=A)) == rq.LogPage([], 0)
