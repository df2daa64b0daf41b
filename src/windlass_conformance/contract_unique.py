"""Unique keys: the answer to an add whose key is held, and when a key is freed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import Dependency
from windlass.core.job import EventType, JobRef
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome
from windlass.core.states import JobState
from windlass.core.unique_rules import UniqueHolder
from windlass.errors import DependencyError
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, Harness
from windlass_conformance.needs import needs

NEEDS = "unique"


def unique(mode: UniqueMode | str = "until_done", ttl_ms: int | None = None, key: str = "k") -> StoredOptions:
    return StoredOptions(unique=StoredUnique(key=key, mode=UniqueMode(mode), ttl_ms=ttl_ms), max_stalls=0)


async def add(harness: Harness, job_id: str, options: StoredOptions, **fields: Any) -> rq.Added:
    return await harness.add(job_id, options=options, **fields)


async def holder(harness: Harness, key: str = "k") -> str | None:
    found = await harness.do(lrq.GetUniqueKey(queue=QUEUE, key=key))
    return None if found is None else found.job_id


# --- until_done -------------------------------------------------------------------------------------


@pytest.mark.feature("D3")
async def test_a_key_that_is_held_answers_duplicate_with_its_holder(harness: Harness) -> None:
    assert (await add(harness, "a", unique())).outcome is AddOutcome.QUEUED
    mark = await harness.mark()
    answer = await add(harness, "b", unique())
    assert (answer.outcome, answer.state) == (AddOutcome.DUPLICATE, JobState.WAITING)
    assert answer.record == await harness.get("a")
    assert await harness.find("b") is None
    events = [(event.type, event.job_id) for event in await harness.events(after=mark)]
    assert events == [(EventType.DEDUPLICATED, "a")]


@pytest.mark.feature("D3")
async def test_a_key_is_held_while_its_job_waits_runs_and_retries(harness: Harness) -> None:
    await add(harness, "a", unique(), delay_ms=10)
    assert (await add(harness, "b", unique())).outcome is AddOutcome.DUPLICATE
    harness.pass_ms(10)
    job = await harness.take()
    assert (await add(harness, "b", unique())).state is JobState.ACTIVE
    await harness.settle(job, Outcome.RETRY, delay_ms=50)
    assert (await add(harness, "b", unique())).state is JobState.RETRYING


@pytest.mark.feature("D3", "D7")
@pytest.mark.parametrize("outcome", [Outcome.COMPLETE, Outcome.FAIL, Outcome.CANCEL])
async def test_the_step_that_ends_a_job_frees_its_key(harness: Harness, outcome: Outcome) -> None:
    await harness.finish("a", outcome, options=unique())
    assert await holder(harness) is None
    assert (await add(harness, "b", unique())).outcome is AddOutcome.QUEUED
    assert await holder(harness) == "b"


@pytest.mark.feature("D3", "D7")
async def test_cancelling_removing_expiring_and_stalling_free_the_key_too(harness: Harness) -> None:
    await add(harness, "cancelled", unique())
    await harness.do(rq.CancelJobs(refs=[(await harness.get("cancelled")).ref]))
    await add(harness, "removed", unique())
    await harness.do(rq.RemoveJobs(refs=[(await harness.get("removed")).ref]))
    assert (await add(harness, "expired", unique(), expires_in_ms=5)).outcome is AddOutcome.QUEUED
    harness.pass_ms(5)
    assert await harness.claim() == []
    assert (await add(harness, "stalled", unique())).outcome is AddOutcome.QUEUED
    await harness.take()
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())
    assert await harness.state("stalled") is JobState.FAILED
    assert (await add(harness, "purged", unique())).outcome is AddOutcome.QUEUED
    await harness.do(rq.Purge(queue=QUEUE, states=[JobState.WAITING]))
    assert await holder(harness) is None


@pytest.mark.feature("D3", "D7")
async def test_a_key_with_a_time_is_free_when_that_has_passed(harness: Harness) -> None:
    await add(harness, "a", unique(ttl_ms=100))
    harness.pass_ms(99)
    assert (await add(harness, "b", unique(ttl_ms=100))).outcome is AddOutcome.DUPLICATE
    harness.pass_ms(1)
    assert (await add(harness, "b", unique(ttl_ms=100))).outcome is AddOutcome.QUEUED
    assert await holder(harness) == "b"
    job = await harness.take()
    assert job.id == "a"
    await harness.settle(job, Outcome.COMPLETE)
    assert await holder(harness) == "b"  # the first one holds it no more


@pytest.mark.feature("D3")
async def test_keys_are_scoped_to_a_queue(harness: Harness) -> None:
    await add(harness, "a", unique())
    answer = await harness.add("a", "other", options=unique())
    assert answer.outcome is AddOutcome.QUEUED
    assert (await add(harness, "b", unique(key="k2"))).outcome is AddOutcome.QUEUED


@pytest.mark.feature("D3")
async def test_keys_hold_within_one_batch(harness: Harness) -> None:
    jobs = [harness.new(job_id, options=unique()) for job_id in ("a", "b", "c")]
    outcomes = [answer.outcome for answer in await harness.do(rq.Add(jobs=jobs))]
    assert outcomes == [AddOutcome.QUEUED, AddOutcome.DUPLICATE, AddOutcome.DUPLICATE]


@pytest.mark.feature("D1", "D2", "D3")
async def test_the_id_is_looked_at_before_the_key(harness: Harness) -> None:
    await harness.finish("a")
    await add(harness, "holds", unique())
    assert (await add(harness, "a", unique())).outcome is AddOutcome.CACHED
    await harness.finish("failed", Outcome.FAIL, priority=5)
    answer = await add(harness, "failed", unique())
    assert answer.outcome is AddOutcome.DUPLICATE
    assert answer.record is not None
    assert answer.record.id == "holds"
    assert await harness.state("failed") is JobState.FAILED  # the old record stays


@pytest.mark.feature("D3")
async def test_repeating_an_add_answers_as_the_first_time(harness: Harness) -> None:
    for _ in range(2):
        answer = await add(harness, "a", unique(), request_id="r1")
        assert answer.outcome is AddOutcome.QUEUED
    assert (await add(harness, "b", unique(), request_id="r2")).outcome is AddOutcome.DUPLICATE


@pytest.mark.feature("D3")
async def test_a_job_that_is_retried_by_hand_takes_its_key_if_it_is_free(harness: Harness) -> None:
    job = await harness.finish("a", Outcome.FAIL, options=unique())
    await harness.do(rq.RetryJobs(refs=[job.ref]))
    assert await holder(harness) == "a"
    assert (await add(harness, "b", unique())).outcome is AddOutcome.DUPLICATE
    await harness.settle(await harness.take(), Outcome.FAIL)
    await add(harness, "b", unique())
    await harness.do(rq.RetryJobs(refs=[job.ref]))
    assert await holder(harness) == "b"


# --- until_start, throttle --------------------------------------------------------------------------


@pytest.mark.feature("D9")
async def test_until_start_frees_the_key_at_the_first_claim(harness: Harness) -> None:
    await add(harness, "a", unique("until_start"))
    assert (await add(harness, "b", unique("until_start"))).outcome is AddOutcome.DUPLICATE
    job = await harness.take()
    assert await holder(harness) is None
    assert (await add(harness, "b", unique("until_start"))).outcome is AddOutcome.QUEUED
    await harness.settle(job, Outcome.RELEASE)
    assert await holder(harness) == "b"


@pytest.mark.feature("D4")
async def test_a_throttle_lets_one_job_through_per_window(harness: Harness) -> None:
    options = unique("throttle", 1_000)
    await harness.finish("a", options=options)
    harness.pass_ms(400)
    answer = await add(harness, "b", options)
    assert (answer.outcome, answer.state) == (AddOutcome.DUPLICATE, JobState.COMPLETED)
    harness.pass_ms(599)
    assert (await add(harness, "b", options)).outcome is AddOutcome.DUPLICATE
    harness.pass_ms(1)
    assert (await add(harness, "b", options)).outcome is AddOutcome.QUEUED
    harness.pass_ms(999)
    assert (await add(harness, "c", options)).outcome is AddOutcome.DUPLICATE


@pytest.mark.feature("D4")
@pytest.mark.parametrize("ended", [False, True])
async def test_a_window_that_each_add_prolongs_ends_after_a_quiet_time(harness: Harness, ended: bool) -> None:
    plain = unique("throttle", 1_000)
    assert plain.unique is not None
    wanted = StoredOptions(unique=msgspec.structs.replace(plain.unique, extend=True), max_stalls=0)
    assert (await add(harness, "a", wanted)).outcome is AddOutcome.QUEUED
    if ended:
        await harness.settle(await harness.take(), Outcome.COMPLETE)
    for _ in range(3):
        harness.pass_ms(900)
        assert (await add(harness, "b", wanted)).outcome is AddOutcome.DUPLICATE
        assert (await add(harness, "c", plain)).outcome is AddOutcome.DUPLICATE  # it prolongs nothing
    found = await harness.do(lrq.GetUniqueKey(queue=QUEUE, key="k"))
    assert found is not None and (found.job_id, found.until_ms) == ("a", START_MS + 3_700)
    harness.pass_ms(999)
    await harness.do(rq.Prune())
    assert (await add(harness, "c", plain)).outcome is AddOutcome.DUPLICATE
    harness.pass_ms(1)
    await harness.do(rq.Prune())
    assert (await add(harness, "d", wanted)).outcome is AddOutcome.QUEUED


@pytest.mark.feature("D4", "D7")
async def test_a_throttle_outlives_the_record_of_its_job(harness: Harness) -> None:
    options = unique("throttle", 1_000)
    job = await harness.finish("a", options=options)
    await harness.do(rq.RemoveJobs(refs=[job.ref]))
    answer = await add(harness, "b", options)
    assert (answer.outcome, answer.state, answer.record) == (AddOutcome.DUPLICATE, None, None)
    assert (await harness.last_event()).type is EventType.DEDUPLICATED
    harness.pass_ms(1_000)
    assert (await harness.do(rq.Prune())).keys == 1
    assert (await add(harness, "b", options)).outcome is AddOutcome.QUEUED


# --- debounce ---------------------------------------------------------------------------------------


@pytest.mark.feature("D5")
async def test_a_debounced_job_runs_once_after_the_last_add_with_its_data(harness: Harness) -> None:
    options = unique("debounce", 1_000)
    first = await add(harness, "a", options, payload=b"[1]")
    assert (first.state, first.due_ms) == (JobState.SCHEDULED, START_MS + 1_000)
    harness.pass_ms(600)
    answer = await add(harness, "b", options, payload=b"[2]", task="other", priority=3)
    assert (answer.outcome, answer.state, answer.due_ms) == (
        AddOutcome.REPLACED,
        JobState.SCHEDULED,
        START_MS + 1_600,
    )
    assert answer.record == await harness.get("a")
    assert await harness.find("b") is None
    harness.pass_ms(999)
    assert await harness.claim() == []
    harness.pass_ms(1)
    job = await harness.take()
    assert (job.id, job.payload, job.task, job.priority) == ("a", b"[2]", "other", 3)


@pytest.mark.feature("D5")
async def test_a_debounced_job_that_became_ready_goes_back_to_wait(harness: Harness) -> None:
    options = unique("debounce", 1_000)
    await add(harness, "a", options)
    harness.pass_ms(1_500)
    await harness.do(rq.Promote())
    answer = await add(harness, "b", options)
    assert (answer.outcome, answer.due_ms) == (AddOutcome.REPLACED, START_MS + 2_500)
    assert await harness.claim() == []


@pytest.mark.feature("D5")
async def test_a_debounce_begins_a_new_window_once_its_job_has_started(harness: Harness) -> None:
    options = unique("debounce", 1_000)
    await add(harness, "a", options)
    harness.pass_ms(1_000)
    job = await harness.take()
    answer = await add(harness, "b", options)
    assert (answer.outcome, answer.due_ms) == (AddOutcome.QUEUED, START_MS + 2_000)
    await harness.settle(job, Outcome.COMPLETE)
    assert await holder(harness) == "b"
    assert (await add(harness, "c", options)).outcome is AddOutcome.REPLACED


@pytest.mark.feature("D5")
async def test_repeating_an_add_that_replaced_changes_nothing(harness: Harness) -> None:
    options = unique("debounce", 1_000)
    await add(harness, "a", options)
    harness.pass_ms(100)
    first = await add(harness, "b", options, payload=b"[2]", request_id="r2")
    mark = await harness.mark()
    harness.pass_ms(100)
    again = await add(harness, "b", options, payload=b"[2]", request_id="r2")
    assert again == first
    assert await harness.events(after=mark) == []


@pytest.mark.feature("D5", "K1")
async def test_a_replaced_job_says_so(harness: Harness) -> None:
    options = unique("debounce", 1_000)
    await add(harness, "a", options)
    mark = await harness.mark()
    await add(harness, "b", options)
    events = [(event.type, event.job_id) for event in await harness.events(after=mark)]
    assert events == [(EventType.CHANGED, "a"), (EventType.SCHEDULED, "a")]


# --- keep_last --------------------------------------------------------------------------------------


@pytest.mark.feature("D8")
async def test_keep_last_keeps_one_more_job_behind_the_one_that_runs(harness: Harness) -> None:
    options = unique("keep_last")
    await add(harness, "a", options, payload=b"[1]")
    job = await harness.take()
    answer = await add(harness, "b", options, payload=b"[2]")
    assert (answer.outcome, answer.state) == (AddOutcome.QUEUED, JobState.BLOCKED)
    assert await holder(harness) == "b"
    again = await add(harness, "c", options, payload=b"[3]")
    assert again.outcome is AddOutcome.REPLACED
    assert again.record is not None
    assert again.record.id == "b"
    assert await harness.claim() == []
    await harness.settle(job, Outcome.FAIL)
    last = await harness.take()
    assert (last.id, last.payload) == ("b", b"[3]")
    await harness.settle(last, Outcome.COMPLETE)
    assert await holder(harness) is None
    assert (await add(harness, "d", options)).state is JobState.WAITING


@needs("flows")
@pytest.mark.feature("D8")
@pytest.mark.parametrize("how", ["cancel", "remove", "clear", "expire", "fail"])
async def test_a_running_job_holds_its_key_again_when_the_job_kept_behind_it_ends_first(
    harness: Harness, how: str
) -> None:
    options, ref = unique("keep_last"), JobRef(QUEUE, "b")
    await add(harness, "a", options)
    running = await harness.take()
    await harness.add("x")
    await add(harness, "b", options, expires_in_ms=50, depends_on=[Dependency(QUEUE, "x")])
    match how:
        case "cancel":
            await harness.do(rq.CancelJobs(refs=[ref]))
        case "remove":
            await harness.do(rq.RemoveJobs(refs=[ref]))
        case "clear":
            await harness.do(rq.Purge(queue=QUEUE, states=[JobState.WAITING, JobState.BLOCKED]))
        case "expire":
            harness.pass_ms(50)
            await harness.do(rq.Recover())
        case _:
            await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "x")]))
    assert await holder(harness) == "a"
    assert (await add(harness, "c", options)).state is JobState.BLOCKED
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "c"), running.ref]))
    assert await holder(harness) == "a"
    await harness.settle(running, Outcome.COMPLETE)
    assert await holder(harness) is None


@needs("flows")
@pytest.mark.feature("D8")
async def test_a_running_job_keeps_its_key_when_the_job_kept_behind_it_fails_as_it_is_added(
    harness: Harness,
) -> None:
    options = unique("keep_last")
    await harness.add("x")
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "x")]))
    await add(harness, "a", options)
    await harness.take()
    answer = await add(harness, "b", options, depends_on=[Dependency(QUEUE, "x")])
    assert answer.state is JobState.FAILED
    assert await holder(harness) == "a"


@pytest.mark.feature("D8")
async def test_repeating_an_add_that_is_kept_behind_answers_as_the_first_time(harness: Harness) -> None:
    options = unique("keep_last")
    await add(harness, "a", options)
    await harness.take()
    first = await add(harness, "b", options, request_id="r2")
    mark = await harness.mark()
    assert await add(harness, "b", options, request_id="r2") == first
    assert await harness.events(after=mark) == []


@pytest.mark.feature("D3", "I2")
async def test_a_flow_with_a_key_that_is_held(harness: Harness) -> None:
    """A job whose key is held is not created; a flow that would wait for it is refused as a whole."""
    await add(harness, "a", unique())
    alone = await add(harness, "b", unique(), depends_on=[Dependency(QUEUE, "a")])
    assert alone.outcome is AddOutcome.DUPLICATE
    child = harness.new("c", options=unique())
    parent = harness.new("p", depends_on=[Dependency(QUEUE, "c")])
    with pytest.raises(DependencyError):
        await harness.do(rq.Add(jobs=[child, parent]))
    assert await harness.find("p") is None


@pytest.mark.feature("D5", "D8")
@pytest.mark.parametrize("mode", ["debounce", "keep_last"])
async def test_a_key_that_outlives_its_job_keeps_no_later_job_that_waits_or_follows(
    harness: Harness, mode: str
) -> None:
    await add(harness, "a", unique("throttle", ttl_ms=60_000))
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    assert await holder(harness) == "a"
    answer = await add(harness, "b", unique(mode, ttl_ms=1_000))
    assert answer.outcome is AddOutcome.QUEUED
    assert await holder(harness) == "b"


@pytest.mark.feature("D3", "I2")
async def test_the_jobs_of_a_flow_take_their_keys_and_no_two_of_them_the_same(harness: Harness) -> None:
    first, second = harness.new("a", options=unique()), harness.new("b", options=unique())
    parent = harness.new("p", depends_on=[Dependency(QUEUE, "a")])
    answers = await harness.do(rq.Add(jobs=[parent, first, second]))
    outcomes = [answer.outcome for answer in answers]
    assert outcomes == [AddOutcome.QUEUED, AddOutcome.QUEUED, AddOutcome.DUPLICATE]
    assert await harness.find("b") is None
    assert await holder(harness) == "a"
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    assert await holder(harness) is None
    assert await harness.order() == ["p"]


@pytest.mark.feature("I10")
async def test_a_parent_does_not_wait_for_a_job_that_only_its_key_outlives(harness: Harness) -> None:
    options = unique("throttle", ttl_ms=60_000)
    await add(harness, "a", options)
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "a")]))
    await harness.add("p")
    answer = await add(harness, "b", options, parent=Dependency(QUEUE, "p"))
    assert (answer.outcome, answer.record) == (AddOutcome.DUPLICATE, None)
    assert await harness.order() == ["p"]


@pytest.mark.feature("D8")
async def test_keep_last_replaces_the_data_of_a_job_that_has_not_started(harness: Harness) -> None:
    options = unique("keep_last")
    await add(harness, "a", options, payload=b"[1]", delay_ms=400)
    answer = await add(harness, "b", options, payload=b"[2]", delay_ms=500)
    assert (answer.outcome, answer.due_ms) == (AddOutcome.REPLACED, START_MS + 500)
    harness.pass_ms(500)
    job = await harness.take()
    assert (job.id, job.payload) == ("a", b"[2]")


# --- inspect and free -------------------------------------------------------------------------------


@pytest.mark.feature("D9")
async def test_keys_can_be_looked_at_and_listed(harness: Harness) -> None:
    await add(harness, "a", unique(key="k1"))
    await add(harness, "b", unique("throttle", 500, key="k2"))
    await add(harness, "c", unique(key="k3"))
    second = UniqueHolder("k2", "b", START_MS + 500)
    assert await harness.do(lrq.GetUniqueKey(queue=QUEUE, key="k2")) == second
    assert await harness.do(lrq.GetUniqueKey(queue=QUEUE, key="none")) is None
    assert await harness.do(lrq.GetUniqueKey(queue="nowhere", key="k2")) is None
    page = await harness.do(lrq.ListUniqueKeys(queue=QUEUE, limit=2))
    assert page.keys == [UniqueHolder("k1", "a"), second]
    rest = await harness.do(lrq.ListUniqueKeys(queue=QUEUE, limit=2, cursor=page.cursor))
    assert rest == lrq.KeyPage([UniqueHolder("k3", "c")])
    harness.pass_ms(500)
    assert [each.key for each in (await harness.do(lrq.ListUniqueKeys(queue=QUEUE))).keys] == ["k1", "k3"]
    assert await harness.do(lrq.ListUniqueKeys(queue="nowhere")) == lrq.KeyPage([])


@pytest.mark.feature("D9")
async def test_a_key_can_be_freed_by_hand(harness: Harness) -> None:
    await add(harness, "a", unique())
    assert await harness.do(lrq.FreeUniqueKey(queue=QUEUE, key="k")) is True
    assert await harness.do(lrq.FreeUniqueKey(queue=QUEUE, key="k")) is False
    assert (await add(harness, "b", unique())).outcome is AddOutcome.QUEUED
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    assert await holder(harness) == "b"


@pytest.mark.feature("D7")
async def test_an_obliterated_queue_forgets_its_keys(harness: Harness) -> None:
    await harness.finish("a", options=unique("throttle", 60_000))
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState), forget=True))
    assert await holder(harness) is None


@pytest.mark.feature("D3")
async def test_a_key_is_all_of_its_text_also_after_a_nul(harness: Harness) -> None:
    options, other = unique(key="k\0a"), unique(key="k\0b")
    assert (await add(harness, "a", options)).outcome is AddOutcome.QUEUED
    assert (await add(harness, "b", options)).outcome is AddOutcome.DUPLICATE
    assert (await add(harness, "c", other)).outcome is AddOutcome.QUEUED
    assert await holder(harness, "k\0a") == "a"
    await harness.settle(await harness.take(), Outcome.COMPLETE)
    assert await holder(harness, "k\0a") is None
    assert (await add(harness, "d", options)).outcome is AddOutcome.QUEUED


@pytest.mark.feature("D3")
async def test_a_holder_that_gets_a_new_place_comes_before_later_jobs_of_the_same_add(
    harness: Harness,
) -> None:
    await add(harness, "a", unique("debounce", ttl_ms=10), priority=5)
    harness.pass_ms(10)
    await harness.do(rq.Promote())
    jobs = [harness.new("b", options=unique("keep_last")), harness.new("c"), harness.new("d", priority=-1)]
    answers = await harness.do(rq.Add(jobs=jobs))
    assert [answer.outcome for answer in answers[:2]] == [AddOutcome.REPLACED, AddOutcome.QUEUED]
    assert await harness.order() == ["a", "c", "d"]
