"""``Prune``: what is removed, what must stay, and that every pass is bounded."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.ids import new_id
from windlass.core.job import EVENTS_KEPT, HISTORY_KEPT_MS, WORKER_KEPT_MS, JobRef, WorkerInfo
from windlass.core.option_values import GRACE_MS, KEEP_COMPLETED, KEEP_FAILED, Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome
from windlass.core.states import JobState
from windlass.errors import HistoryTrimmedError
from windlass_conformance.harness import QUEUE, Harness, settlement

NOT_KEPT = StoredOptions(keep_completed=Keep(0, 0), keep_failed=Keep(0, 0), result_ttl_ms=1)


async def prune(harness: Harness, limit: int = 1_000) -> rq.Pruned:
    return await harness.do(rq.Prune(limit=limit))


@pytest.mark.feature("A13")
async def test_a_completed_record_goes_after_a_day(harness: Harness) -> None:
    await harness.finish("a")
    assert KEEP_COMPLETED.age_ms == 86_400_000
    harness.pass_ms(86_399_999)
    assert (await prune(harness)).jobs == 0
    harness.pass_ms(1)
    assert (await prune(harness)).jobs == 1
    assert await harness.find("a") is None


@pytest.mark.feature("A13", "C12", "L4")
async def test_a_failed_record_goes_after_180_days(harness: Harness) -> None:
    await harness.finish("a", Outcome.FAIL)
    assert KEEP_FAILED.age_ms == 180 * 86_400_000
    harness.pass_ms(180 * 86_400_000 - 1)
    await prune(harness)
    assert await harness.find("a") is not None
    harness.pass_ms(1)
    await prune(harness)
    assert await harness.find("a") is None


@pytest.mark.feature("A13")
async def test_a_cancelled_record_is_kept_like_a_completed_one(harness: Harness) -> None:
    await harness.finish("a", Outcome.CANCEL)
    harness.pass_ms(86_399_999)
    await prune(harness)
    assert await harness.find("a") is not None
    harness.pass_ms(1)
    await prune(harness)
    assert await harness.find("a") is None


@pytest.mark.feature("A13")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL])
async def test_beyond_the_count_the_oldest_go(harness: Harness, outcome: Outcome) -> None:
    options = StoredOptions(keep_completed=Keep(None, 2), keep_failed=Keep(None, 2))
    for job_id in ("a", "b", "c", "d"):
        await harness.finish(job_id, outcome, options=options)
        harness.pass_ms(1)
    harness.pass_ms(GRACE_MS)
    assert (await prune(harness)).jobs == 2
    page = await harness.do(rq.ListJobs(queue=QUEUE))
    assert [job.id for job in page.jobs] == ["d", "c"]


@pytest.mark.feature("A13")
async def test_the_count_is_of_one_state_and_one_queue(harness: Harness) -> None:
    options = StoredOptions(keep_completed=Keep(None, 1), keep_failed=Keep(None, 1))
    await harness.finish("a", options=options)
    await harness.finish("b", Outcome.FAIL, options=options)
    await harness.finish("c", Outcome.CANCEL, options=options)
    other = await harness.start("d", "other", options=options)
    await harness.settle(other, Outcome.COMPLETE)
    harness.pass_ms(GRACE_MS)
    assert (await prune(harness)).jobs == 0


@pytest.mark.feature("A13")
async def test_the_newest_finished_job_decides_the_count(harness: Harness) -> None:
    for job_id, count in [("a", 1), ("b", 1), ("c", 3)]:
        await harness.finish(job_id, options=StoredOptions(keep_completed=Keep(None, count)))
        harness.pass_ms(1)
    harness.pass_ms(GRACE_MS)
    assert (await prune(harness)).jobs == 0
    await harness.finish("d", options=StoredOptions(keep_completed=Keep(None, 1)))
    harness.pass_ms(GRACE_MS)
    assert (await prune(harness)).jobs == 3


@pytest.mark.feature("A13")
async def test_without_bounds_a_record_stays_for_ever(harness: Harness) -> None:
    await harness.finish("a", options=StoredOptions(keep_completed=Keep(None, None)))
    harness.pass_ms(50 * 366 * 86_400_000)
    await prune(harness)
    assert await harness.find("a") is not None


@pytest.mark.feature("A13", "E6")
async def test_a_record_that_is_not_kept_still_stays_for_whoever_waits(harness: Harness) -> None:
    await harness.finish("a", options=NOT_KEPT)
    harness.pass_ms(GRACE_MS - 1)
    await prune(harness)
    assert await harness.find("a") is not None
    harness.pass_ms(1)
    assert (await prune(harness)).jobs == 1


@pytest.mark.feature("A13", "E5", "E8", "L4")
async def test_an_explicit_result_ttl_holds_the_record_whatever_the_bounds_say(harness: Harness) -> None:
    options = StoredOptions(keep_completed=Keep(0, 0), result_ttl_ms=GRACE_MS * 5)
    await harness.finish("a", options=options)
    harness.pass_ms(GRACE_MS * 5 - 1)
    await prune(harness)
    assert await harness.find("a") is not None
    harness.pass_ms(1)
    await prune(harness)
    assert await harness.find("a") is None


@pytest.mark.feature("A13")
async def test_the_default_result_ttl_gives_way_to_the_count(harness: Harness) -> None:
    for job_id in ("a", "b"):
        await harness.finish(job_id, options=StoredOptions(keep_completed=Keep(None, 1)))
        harness.pass_ms(1)
    harness.pass_ms(GRACE_MS)
    assert (await prune(harness)).jobs == 1
    assert await harness.find("a") is None


@pytest.mark.feature("A13", "B2")
async def test_jobs_that_have_not_finished_are_never_pruned(harness: Harness) -> None:
    await harness.start("active", options=NOT_KEPT)
    retrying = await harness.start("retrying", options=NOT_KEPT)
    await harness.settle(retrying, Outcome.RETRY, delay_ms=10**12)
    await harness.add("waiting", options=NOT_KEPT)
    await harness.add("scheduled", options=NOT_KEPT, delay_ms=10**12)
    harness.pass_ms(10 * 366 * 86_400_000)
    assert (await prune(harness)).jobs == 0
    assert sum((await harness.counts()).values()) == 4


@pytest.mark.feature("A13", "A25")
async def test_a_job_retried_by_hand_is_not_pruned_by_its_old_end(harness: Harness) -> None:
    await harness.finish("a", Outcome.FAIL, options=NOT_KEPT)
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "a")]))
    harness.pass_ms(10**10)
    assert (await prune(harness)).jobs == 0
    await harness.settle(await harness.take(), Outcome.FAIL)
    harness.pass_ms(GRACE_MS)
    assert (await prune(harness)).jobs == 1


@pytest.mark.feature("A13")
async def test_a_pass_removes_at_most_its_limit_and_says_that_more_is_left(harness: Harness) -> None:
    for job_id in ("a", "b", "c"):
        await harness.finish(job_id, options=NOT_KEPT)
        harness.pass_ms(1)
    harness.pass_ms(GRACE_MS)
    first = await prune(harness, limit=2)
    assert (first.jobs, first.more) == (2, True)
    assert await harness.find("c") is not None
    second = await prune(harness, limit=2)
    assert (second.jobs, second.more) == (1, False)


@pytest.mark.feature("A13", "D7")
async def test_passes_go_on_while_ids_are_left_when_no_record_is(harness: Harness) -> None:
    options = StoredOptions(keep_id_ms=500_000, result_ttl_ms=0, keep_completed=Keep(0, 0))
    for _ in range(5):
        ids = [new_id() for _ in range(500)]
        await harness.add_many(*ids, options=options)
        jobs = await harness.claim(500)
        await harness.do(rq.Settle(items=[settlement(job, Outcome.COMPLETE) for job in jobs]))
    harness.pass_ms(GRACE_MS)
    await prune_all(harness)
    harness.pass_ms(500_000)
    assert await prune_all(harness) == 2_500


async def prune_all(harness: Harness) -> int:
    """Prune until nothing is left to do. Returns how many ids were removed."""
    count, more = 0, True
    while more:
        pruned = await prune(harness)
        count, more = count + pruned.ids, pruned.more
    return count


@pytest.mark.feature("A13")
async def test_pruning_takes_the_logs_along(harness: Harness) -> None:
    await harness.finish("a", options=NOT_KEPT)
    await harness.do(rq.Report(ref=JobRef(QUEUE, "a"), logs=["x"]))
    harness.pass_ms(GRACE_MS)
    await prune(harness)
    assert await harness.do(rq.GetLogs(ref=JobRef(QUEUE, "a"))) == rq.LogPage([], 0)


@pytest.mark.feature("A13", "Q1")
async def test_pruning_touches_neither_counters_nor_history(harness: Harness) -> None:
    await harness.finish("a", options=NOT_KEPT)
    counters, history = await harness.do(rq.ReadCounters()), await harness.history()
    harness.pass_ms(GRACE_MS)
    await prune(harness)
    assert (await harness.do(rq.ReadCounters()), await harness.history()) == (counters, history)


@pytest.mark.feature("D7")
async def test_kept_ids_are_pruned_when_their_time_is_over(harness: Harness) -> None:
    await harness.add("a", options=StoredOptions(keep_id_ms=100))
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    harness.pass_ms(99)
    assert (await prune(harness)).ids == 0
    assert (await harness.add("a")).outcome is AddOutcome.DUPLICATE
    harness.pass_ms(1)
    assert (await prune(harness)).ids == 1
    assert (await harness.add("a")).outcome is AddOutcome.QUEUED


@pytest.mark.feature("R2", "L5")
async def test_silent_workers_are_forgotten_after_a_day(harness: Harness) -> None:
    await harness.do(rq.Beat(worker=WorkerInfo(id="w1")))
    harness.pass_ms(WORKER_KEPT_MS - 1)
    assert (await prune(harness)).workers == 0
    harness.pass_ms(1)
    assert (await prune(harness)).workers == 1
    assert await harness.do(rq.ListWorkers(stale_ms=10**9)) == []


@pytest.mark.feature("Q2")
async def test_history_is_kept_for_a_day_and_its_end_is_told(harness: Harness) -> None:
    await harness.finish("a")
    harness.pass_ms(HISTORY_KEPT_MS - 1)
    await harness.finish("b")
    assert (await prune(harness)).history == 0
    harness.pass_ms(1)
    assert (await prune(harness)).history == 1
    with pytest.raises(HistoryTrimmedError) as caught:
        await harness.do(rq.ReadHistory(queue=QUEUE, after=0))
    assert (caught.value.queue, caught.value.after, caught.value.oldest) == (QUEUE, 0, 2)
    page = await harness.do(rq.ReadHistory(queue=QUEUE, after=1))
    assert ([row.job_id for row in page.records], page.oldest) == (["b"], 2)


@pytest.mark.feature("Q2")
async def test_a_log_that_was_trimmed_to_nothing_still_tells_of_its_gap(harness: Harness) -> None:
    await harness.finish("a")
    harness.pass_ms(HISTORY_KEPT_MS)
    await prune(harness)
    with pytest.raises(HistoryTrimmedError):
        await harness.do(rq.ReadHistory(queue=QUEUE, after=0))
    page = await harness.do(rq.ReadHistory(queue=QUEUE, after=1))
    assert (page.records, page.last, page.newest, page.oldest) == ([], 1, 1, 2)


@pytest.mark.feature("K1", "K7")
async def test_the_event_log_is_capped_and_replay_begins_at_what_is_left(harness: Harness) -> None:
    for first in range(0, EVENTS_KEPT + 500, 500):
        await harness.add_many(*(f"j{n}" for n in range(first, first + 500)))
    await prune(harness)
    page = await harness.do(rq.ReadEvents(queue=QUEUE, after=0, limit=5))
    assert page.last_id == EVENTS_KEPT + 500
    assert page.last_id - page.oldest_id + 1 == EVENTS_KEPT
    assert [event.id for event in page.events] == list(range(page.oldest_id, page.oldest_id + 5))


@pytest.mark.feature("A13")
async def test_pruning_an_empty_store_removes_nothing(harness: Harness) -> None:
    assert await prune(harness) == rq.Pruned()


@pytest.mark.feature("A13", "A28")
async def test_a_pruned_record_leaves_the_counts(harness: Harness) -> None:
    await harness.finish("a", options=NOT_KEPT)
    assert await harness.counts() == {JobState.COMPLETED: 1}
    harness.pass_ms(GRACE_MS)
    await prune(harness)
    assert await harness.counts() == {}
