"""``ReadHistory`` and ``ReadCounters``: one exact row per settled attempt, and totals that agree with it."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from windlass.backend import requests as rq
from windlass.core.job import HISTORY_SCHEMA_VERSION, AttemptOutcome, AttemptRecord, ErrorInfo, JobRef
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, Harness

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
