"""``ReadHistory`` and ``ReadCounters``: one exact row for each settled attempt, and matching totals."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from windlass.backend import requests as rq
from windlass.core.job import (
    BRIEF_CHARS,
    HISTORY_SCHEMA_VERSION,
    AttemptOutcome,
    AttemptRecord,
    ErrorInfo,
    JobRef,
    WorkerFacts,
)
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.core.queue_time import QueueTime
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, Harness, settlement

ERROR = ErrorInfo(error_class="ValueError", message="bad", fingerprint="f00")
TAGGED = StoredOptions(tags=("red", "blue"))


async def _run(harness: Harness, outcome: Outcome, **fields: object) -> tuple[str | None, AttemptRecord]:
    """One attempt: added at 0, due at 10, claimed at 30, settled at 70."""
    await harness.add("a", task="t", options=TAGGED, delay_ms=10)
    harness.pass_ms(30)
    job = await harness.take()
    harness.pass_ms(40)
    await harness.settle(job, outcome, duration_ms=38, **fields)
    (row,) = await harness.history()
    return job.token, row


@pytest.mark.feature("Q2", "Q11")
async def test_a_completed_attempt_leaves_a_row_with_exact_values(harness: Harness) -> None:
    token, row = await _run(harness, Outcome.COMPLETE)
    assert token is not None
    assert row == AttemptRecord(
        run_id=token,
        job_id="a",
        attempt=1,
        delivery=1,
        queue=QUEUE,
        task="t",
        group=None,
        tags=("red", "blue"),
        worker="w1",
        enqueued_ms=START_MS,
        ready_ms=START_MS + 10,
        started_ms=START_MS + 30,
        finished_ms=START_MS + 70,
        wait_ms=20,
        duration_ms=38,
        outcome=AttemptOutcome.COMPLETED,
        error_class=None,
        error_fingerprint=None,
        schema_version=HISTORY_SCHEMA_VERSION,
        queue_time=QueueTime(START_MS + 30, scheduled_ms=10, in_line_ms=20),
    )


@pytest.mark.feature("Q2", "Q11")
@pytest.mark.parametrize(
    ("outcome", "wanted"),
    [
        (Outcome.COMPLETE, AttemptOutcome.COMPLETED),
        (Outcome.FAIL, AttemptOutcome.FAILED),
        (Outcome.RETRY, AttemptOutcome.RETRYING),
        (Outcome.SNOOZE, AttemptOutcome.SNOOZED),
        (Outcome.RELEASE, AttemptOutcome.RELEASED),
        (Outcome.CANCEL, AttemptOutcome.CANCELLED),
    ],
)
async def test_each_outcome_has_its_name_in_history(
    harness: Harness, outcome: Outcome, wanted: AttemptOutcome
) -> None:
    token, row = await _run(harness, outcome, error=ERROR)
    assert (row.outcome, row.run_id, row.attempt) == (wanted, token, 1)
    assert (row.started_ms, row.finished_ms) == (START_MS + 30, START_MS + 70)


@pytest.mark.feature("Q2", "Q11")
@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.RETRY])
async def test_a_failed_attempt_names_its_error(harness: Harness, outcome: Outcome) -> None:
    _, row = await _run(harness, outcome, error=ERROR)
    assert (row.error_class, row.error_fingerprint) == ("ValueError", "f00")


STORY = StoredOptions(schedule="nightly", slot_ms=5, parent="other/p", root="top/r", cost=2, tags=("red",))


def _story(row: AttemptRecord) -> tuple[object, ...]:
    return (row.priority, row.schedule, row.slot_ms, row.parent, row.root, row.cost)


@pytest.mark.feature("Q2")
async def test_a_row_says_what_the_worker_said_of_itself(harness: Harness) -> None:
    for n, facts in enumerate(
        [WorkerFacts("1.2.3"), WorkerFacts("1.2.3", 7), WorkerFacts("2.0", 1, "box"), None]
    ):
        await harness.settle(await harness.start(f"j{n}"), Outcome.COMPLETE, facts=facts)
        await harness.settle(await harness.start(f"k{n}"), Outcome.FAIL, facts=facts, error=ERROR)
    said = [(row.worker_version, row.max_attempts, row.worker_host) for row in await harness.history()]
    wanted = [("1.2.3", 3, None), ("1.2.3", 7, None), ("2.0", 1, "box"), (None, None, None)]
    assert said == [one for one in wanted for _ in "jk"]


@pytest.mark.feature("Q2")
async def test_workers_facts_stay_with_their_jobs_when_several_end_at_once(harness: Harness) -> None:
    for name in "abcd":
        await harness.add(name)
    jobs = await harness.claim(4)
    said = [WorkerFacts("1"), WorkerFacts("1"), WorkerFacts("1", 9), None]
    ends = [
        settlement(job, Outcome.COMPLETE, facts=facts, result=b"1")
        for job, facts in zip(jobs, said, strict=True)
    ]
    await harness.do(rq.Settle(items=ends))
    rows = [(row.job_id, row.worker_version, row.max_attempts) for row in await harness.history()]
    assert rows == [("a", "1", 3), ("b", "1", 3), ("c", "1", 9), ("d", None, None)]


@pytest.mark.feature("Q2")
@pytest.mark.parametrize("outcome", [Outcome.FAIL, Outcome.RETRY])
@pytest.mark.parametrize(
    ("brief", "kept"), [(None, "ü" * BRIEF_CHARS), ("key=[masked]", "key=[masked]"), ("", None)]
)
async def test_a_row_keeps_the_beginning_of_the_message_or_what_the_worker_made_of_it(
    harness: Harness, outcome: Outcome, brief: str | None, kept: str | None
) -> None:
    error = ErrorInfo(error_class="E", message="ü" * 600, fingerprint="f", brief=brief)
    _, row = await _run(harness, outcome, error=error)
    assert row.error_message == kept
    (kept_error,) = (await harness.get("a")).errors
    assert (kept_error.message, kept_error.brief) == ("ü" * 600, None)


@pytest.mark.feature("Q2")
async def test_a_row_tells_the_priority_and_where_the_job_came_from(harness: Harness) -> None:
    await harness.add("a", options=STORY, priority=3)
    for outcome in (Outcome.RETRY, Outcome.COMPLETE):
        await harness.settle(await harness.take(), outcome)
    await harness.finish("plain")
    rows = [_story(row) for row in await harness.history()]
    assert rows == [(3, "nightly", 5, "other/p", "top/r", 2)] * 2 + [(0, None, None, None, None, 1)]


@pytest.mark.feature("Q2")
async def test_an_end_that_no_worker_settled_has_no_facts_but_the_rest(harness: Harness) -> None:
    await harness.add("a", options=STORY, priority=3)
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")]))
    await harness.add("late", options=STORY, expires_in_ms=5)
    harness.pass_ms(5)
    await harness.claim()
    await harness.start("silent", options=STORY)
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())
    cancelled, late, silent = await harness.history()
    assert _story(cancelled) == (3, "nightly", 5, "other/p", "top/r", 2)
    assert _story(late) == _story(silent) == (0, "nightly", 5, "other/p", "top/r", 2)
    assert late.error_message == "not started before its expires_in passed"
    for row in (cancelled, late, silent):
        assert (row.max_attempts, row.worker_version, row.worker_host) == (None, None, None)
        assert (row.tags, row.schema_version) == (("red",), HISTORY_SCHEMA_VERSION)


@pytest.mark.feature("Q2")
async def test_attempts_and_deliveries_are_counted_apart(harness: Harness) -> None:
    await harness.add("a")
    for outcome in (Outcome.RELEASE, Outcome.RETRY, Outcome.SNOOZE, Outcome.RETRY, Outcome.COMPLETE):
        await harness.settle(await harness.take(), outcome)
    rows = [(row.attempt, row.delivery) for row in await harness.history()]
    assert rows == [(1, 1), (1, 2), (2, 3), (2, 4), (3, 5)]


@pytest.mark.feature("Q2")
async def test_a_released_job_has_waited_since_it_first_was_ready(harness: Harness) -> None:
    await harness.add("a")
    harness.pass_ms(10)
    await harness.settle(await harness.take(), Outcome.RELEASE)
    harness.pass_ms(10)
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    assert [row.wait_ms for row in await harness.history()] == [10, 20]


@pytest.mark.feature("Q2")
async def test_a_retry_has_waited_since_its_delay_was_over(harness: Harness) -> None:
    await harness.add("a")
    await harness.settle(await harness.take(), Outcome.RETRY, delay_ms=100)
    harness.pass_ms(130)
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    assert [row.wait_ms for row in await harness.history()] == [0, 30]


@pytest.mark.feature("Q2", "J3")
async def test_a_stalled_attempt_leaves_a_row_without_a_duration(harness: Harness) -> None:
    job = await harness.start("a")
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())
    (row,) = await harness.history()
    assert (row.run_id, row.outcome, row.duration_ms) == (job.token, AttemptOutcome.STALLED, None)
    assert (row.attempt, row.worker, row.finished_ms) == (1, "w1", START_MS + LEASE_MS)


@pytest.mark.feature("Q2", "C18")
async def test_the_stall_that_fails_a_job_is_a_failed_attempt(harness: Harness) -> None:
    job = await harness.start("a", options=StoredOptions(max_stalls=0))
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())
    (row,) = await harness.history()
    assert (row.run_id, row.outcome, row.error_class) == (job.token, AttemptOutcome.FAILED, "JobStalled")


@pytest.mark.feature("Q2", "Z14")
async def test_a_reconciled_lease_leaves_a_released_row(harness: Harness) -> None:
    job = await harness.start("a")
    await harness.do(rq.Reconcile(worker="w1", held=[]))
    (row,) = await harness.history()
    assert (row.run_id, row.outcome, row.duration_ms) == (job.token, AttemptOutcome.RELEASED, None)


@pytest.mark.feature("Q2", "A35")
async def test_an_expired_job_leaves_a_row_with_attempt_zero(harness: Harness) -> None:
    await harness.add("a", expires_in_ms=5)
    harness.pass_ms(5)
    await harness.claim()
    (row,) = await harness.history()
    assert (row.attempt, row.delivery, row.outcome) == (0, 0, AttemptOutcome.EXPIRED)
    assert (row.worker, row.started_ms, row.wait_ms, row.duration_ms) == (None, None, None, None)
    assert row.error_class == "JobExpired"


@pytest.mark.feature("Q2")
async def test_no_run_id_ever_repeats(harness: Harness) -> None:
    ref = JobRef(QUEUE, "a")
    for _ in range(2):
        await harness.add("a")
        await harness.do(rq.CancelJobs(refs=[ref]))
        await harness.do(rq.RetryJobs(refs=[ref]))
        await harness.do(rq.CancelJobs(refs=[ref]))
    await harness.add("a")
    await harness.settle(await harness.take(), Outcome.RELEASE)
    await harness.do(rq.CancelJobs(refs=[ref]))
    run_ids = [row.run_id for row in await harness.history()]
    assert len(set(run_ids)) == len(run_ids) == 6


@pytest.mark.feature("Q2")
async def test_an_id_added_and_removed_twice_in_one_millisecond_has_two_run_ids(harness: Harness) -> None:
    for _ in range(2):
        await harness.add("a")
        await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    first, second = await harness.history()
    assert first.run_id != second.run_id


@pytest.mark.feature("Q2", "Q11")
async def test_history_is_read_by_cursor_in_pages(harness: Harness) -> None:
    for n in range(5):
        await harness.finish(f"j{n}")
    first = await harness.do(rq.ReadHistory(queue=QUEUE, limit=2))
    assert ([row.job_id for row in first.records], first.last) == (["j0", "j1"], 2)
    assert (first.newest, first.oldest) == (5, 1)
    rest = await harness.do(rq.ReadHistory(queue=QUEUE, after=first.last, limit=10))
    assert ([row.job_id for row in rest.records], rest.last) == (["j2", "j3", "j4"], 5)
    end = await harness.do(rq.ReadHistory(queue=QUEUE, after=rest.last))
    assert (end.records, end.last, end.newest) == ([], 5, 5)


@pytest.mark.feature("Q2")
async def test_a_queue_without_history_answers_an_empty_log(harness: Harness) -> None:
    page = await harness.do(rq.ReadHistory(queue="nowhere"))
    assert page == rq.HistoryPage([], 0, 0, 1)


@pytest.mark.feature("Q2")
async def test_each_queue_has_its_own_history(harness: Harness) -> None:
    for queue in ("one", "two"):
        job = await harness.start("a", queue)
        await harness.settle(job, Outcome.COMPLETE)
    page = await harness.do(rq.ReadHistory(queue="two"))
    assert ([row.queue for row in page.records], page.last) == (["two"], 1)


@pytest.mark.feature("Q2", "L1")
async def test_history_and_counters_survive_reopening(harness: Harness) -> None:
    await harness.finish("a")
    history, counters = await harness.history(), await harness.do(rq.ReadCounters())
    await harness.reopen()
    assert (await harness.history(), await harness.do(rq.ReadCounters())) == (history, counters)


@pytest.mark.feature("Q1", "Q4")
async def test_counters_tell_what_happened_per_task(harness: Harness) -> None:
    await harness.finish("a", task="x")
    await harness.finish("b", Outcome.FAIL, task="x")
    await harness.add("c", task="y")
    await harness.add("c", task="y")
    rows = await harness.do(rq.ReadCounters())
    assert sorted((row.task, row.outcome, row.total) for row in rows) == [
        ("x", "completed", 1),
        ("x", "enqueued", 2),
        ("x", "failed", 1),
        ("y", "enqueued", 1),
    ]
    assert {row.queue for row in rows} == {QUEUE}


@pytest.mark.feature("Q1")
async def test_counters_can_be_read_for_one_queue(harness: Harness) -> None:
    await harness.add("a", "one")
    await harness.add("b", "two")
    rows = await harness.do(rq.ReadCounters(queue="two"))
    assert [(row.queue, row.outcome, row.total) for row in rows] == [("two", "enqueued", 1)]


@pytest.mark.feature("Q1", "Q2")
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_counters_agree_with_history_after_a_random_life(harness: Harness, seed: int) -> None:
    rng = random.Random(seed)
    added = 0
    for step in range(120):
        harness.pass_ms(rng.choice([0, 1, LEASE_MS // 4]))
        verb = rng.choice(["add", "add", "claim", "claim", "recover", "cancel", "remove", "promote"])
        ref = JobRef(QUEUE, f"j{rng.randrange(step + 1)}")
        if verb == "add":
            task, later = rng.choice(["x", "y"]), rng.choice([0, 0, 10])
            added += (await harness.add(f"j{step}", task=task, delay_ms=later)).outcome == "queued"
        elif verb == "claim":
            for job in await harness.claim(2):
                if rng.random() < 0.7:
                    await harness.settle(job, rng.choice(list(Outcome)), delay_ms=rng.choice([0, 10]))
        elif verb == "recover":
            await harness.do(rq.Recover())
        elif verb == "cancel":
            await harness.do(rq.CancelJobs(refs=[ref]))
        elif verb == "remove":
            await harness.do(rq.RemoveJobs(refs=[ref]))
        else:
            await harness.do(rq.Promote())
    totals = {(row.task, row.outcome): row.total for row in await harness.do(rq.ReadCounters())}
    enqueued = sum(totals.pop((task, "enqueued"), 0) for task in ("x", "y"))
    assert enqueued == added
    assert totals == Counter((row.task, row.outcome.value) for row in await harness.history())
