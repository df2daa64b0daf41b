"""Groups: who is parked, who is let in, and what their limits promise. See ``core.limit_rules``."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import Dependency
from windlass.core.job import EventType, JobRecord
from windlass.core.limit_rules import Bucket, GroupInfo, GroupLimits, GroupSettings, Rate
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Changed, Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import LEASE_MS, QUEUE, START_MS, Harness, settlement

NEEDS = "groups"

P, W, A = JobState.PARKED, JobState.WAITING, JobState.ACTIVE


async def limit(harness: Harness, group: str = "*", **limits: Any) -> None:
    """Set the limits of a group, or of every group."""
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group=group, limits=GroupLimits(**limits)))


async def add(harness: Harness, *ids: str, group: str = "g", cost: int = 1, **fields: Any) -> list[rq.Added]:
    """Add jobs to a group."""
    options = StoredOptions(group=group, cost=cost, max_attempts=9, max_stalls=9)
    jobs = [harness.new(job_id, options=options, **fields) for job_id in ids]
    return await harness.do(rq.Add(jobs=jobs))


async def claimed(harness: Harness, count: int = 100) -> tuple[list[str], int | None]:
    """Claim as many as there are: ids, and when to ask again."""
    answer = await harness.do(harness.claim_request(limit=count))
    return [job.id for job in answer.jobs], answer.next_due_in_ms


async def states(harness: Harness, *ids: str) -> list[JobState]:
    return [await harness.state(job_id) for job_id in ids]


async def settle(
    harness: Harness, job: JobRecord, outcome: Outcome = Outcome.COMPLETE, **fields: Any
) -> None:
    await harness.settle(job, outcome, **fields)


async def group_info(harness: Harness, name: str = "g") -> GroupInfo:
    page = await harness.do(lrq.ListGroups(queue=QUEUE))
    return next(info for info in page.groups if info.name == name)


# --- concurrency ----------------------------------------------------------------------------------


@pytest.mark.feature("H6")
async def test_a_group_without_limits_is_in_nobodys_way(harness: Harness) -> None:
    await add(harness, "a", "b", "c")
    assert await claimed(harness) == (["a", "b", "c"], None)


@pytest.mark.feature("H6")
async def test_jobs_over_a_groups_concurrency_are_parked(harness: Harness) -> None:
    await limit(harness, concurrency=2)
    answers = await add(harness, "a", "b", "c")
    assert [added.state for added in answers] == [W, W, P]
    assert await states(harness, "a", "b", "c") == [W, W, P]
    assert await claimed(harness) == (["a", "b"], None)


@pytest.mark.feature("H6")
async def test_one_parked_job_is_let_in_for_each_slot_freed(harness: Harness) -> None:
    await limit(harness, concurrency=2)
    await add(harness, "a", "b", "c", "d", "e")
    one, two = await harness.claim(10)
    await settle(harness, one)
    assert await states(harness, "c", "d", "e") == [W, P, P]
    await settle(harness, two, Outcome.FAIL)
    assert await states(harness, "c", "d", "e") == [W, W, P]


@pytest.mark.feature("H6")
async def test_a_settlement_lets_in_for_the_claim_that_comes_with_it(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a", "b", "c")
    end = settlement(await harness.take(), Outcome.COMPLETE)
    result = await harness.do(rq.Settle(items=[end], claim=harness.claim_request(limit=5)))
    assert result.claimed is not None
    assert [job.id for job in result.claimed.jobs] == ["b"]


@pytest.mark.feature("H6")
async def test_groups_do_not_share_their_slots(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a1", "a2", group="a")
    await add(harness, "b1", "b2", group="b")
    await harness.add("plain")
    assert set((await claimed(harness))[0]) == {"a1", "b1", "plain"}


@pytest.mark.feature("H6")
async def test_a_groups_own_limits_overrule_those_of_every_group(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await limit(harness, "big", concurrency=3)
    await add(harness, "b1", "b2", "b3", "b4", group="big")
    await add(harness, "s1", "s2", group="small")
    assert await states(harness, "b1", "b2", "b3", "b4", "s1", "s2") == [W, W, W, P, W, P]
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="big"))
    found = await harness.do(lrq.GetLimits(queue=QUEUE, groups=("big", "none")))
    assert found.every_group == GroupLimits(concurrency=1)
    assert found.groups == {"big": GroupSettings(), "none": GroupSettings()}


@pytest.mark.feature("H6", "K1")
async def test_parking_and_letting_in_have_one_event_each(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a", "b")
    job = await harness.take()
    mark = await harness.mark()
    before = [(event.type, event.job_id) for event in await harness.events()]
    assert before == [
        (EventType.ENQUEUED, "a"),
        (EventType.ENQUEUED, "b"),
        (EventType.PARKED, "b"),
        (EventType.STARTED, "a"),
    ]
    await settle(harness, job)
    after = [(event.type, event.job_id) for event in await harness.events(after=mark)]
    assert after == [(EventType.COMPLETED, "a"), (EventType.PROMOTED, "b")]


@pytest.mark.feature("H6", "A9")
async def test_a_groups_line_goes_by_priority_then_by_place(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "first")
    await add(harness, "low", priority=-1)
    await add(harness, "b", "c")
    await add(harness, "high", priority=1)
    order = []
    while jobs := await harness.claim(1):
        order.append(jobs[0].id)
        await settle(harness, jobs[0])
    assert order == ["first", "high", "b", "c", "low"]


@pytest.mark.feature("H6")
async def test_whatever_ends_a_job_makes_room(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "cancelled", "removed", "expired", expires_in_ms=50)
    await add(harness, "purged", "last")
    await harness.do(rq.CancelJobs(refs=[(await harness.get("cancelled")).ref]))
    assert await states(harness, "removed", "expired") == [W, P]
    await harness.do(rq.RemoveJobs(refs=[(await harness.get("removed")).ref]))
    assert await states(harness, "expired", "purged") == [W, P]
    harness.pass_ms(60)
    job = await harness.take()  # meets the expired one on its way
    assert job.id == "purged"
    assert await harness.state("expired") is JobState.FAILED
    await harness.do(rq.RemoveJobs(refs=[job.ref], force=True))
    assert await harness.state("last") is W


@pytest.mark.feature("H6")
async def test_a_parked_job_can_expire_be_cancelled_removed_and_moved(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a", "b", "c", "d", "e")
    ref = {job_id: (await harness.get(job_id)).ref for job_id in "bcde"}
    await harness.do(rq.CancelJobs(refs=[ref["b"]]))
    await harness.do(rq.RemoveJobs(refs=[ref["c"]]))
    changed = await harness.do(rq.ChangeJob(ref=ref["d"], delay_ms=1_000))
    assert (changed.status, changed.state) == (Changed.OK, JobState.SCHEDULED)
    await harness.do(rq.ChangeJob(ref=ref["e"], payload=b"[1]"))
    assert (await harness.get("e")).payload == b"[1]"
    await settle(harness, await harness.take())
    assert (await harness.take()).id == "e"
    harness.pass_ms(1_000)
    await claimed(harness)
    assert await harness.state("d") is P


@pytest.mark.feature("H6")
async def test_an_expired_job_at_the_head_of_a_groups_line_ends_there(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a")
    await add(harness, "late", expires_in_ms=10)
    await add(harness, "b")
    job = await harness.take()
    harness.pass_ms(10)
    await settle(harness, job)
    assert await states(harness, "late", "b") == [JobState.FAILED, W]


@pytest.mark.feature("H9", "J12")
async def test_released_and_recovered_jobs_keep_their_admission(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a", "b")
    await settle(harness, await harness.take(), Outcome.RELEASE)
    assert await states(harness, "a", "b") == [W, P]
    assert (await harness.take()).id == "a"
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())
    assert await states(harness, "a", "b") == [W, P]
    assert (await harness.take()).id == "a"
    await harness.do(rq.Reconcile(worker="w1", held=[]))
    assert await states(harness, "a", "b") == [W, P]
    assert (await harness.take()).id == "a"


@pytest.mark.feature("H6")
async def test_a_retry_frees_the_slot_until_it_is_due_and_then_stands_in_line(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a", "b", "c")
    await settle(harness, await harness.take(), Outcome.RETRY, delay_ms=100)
    assert await states(harness, "a", "b", "c") == [JobState.RETRYING, W, P]
    harness.pass_ms(100)
    assert (await claimed(harness))[0] == ["b"]
    assert await states(harness, "a", "b", "c") == [P, A, P]


@pytest.mark.feature("H6")
async def test_a_retry_at_once_goes_behind_those_who_are_parked(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a", "b")
    await settle(harness, await harness.take(), Outcome.RETRY)
    assert await states(harness, "a", "b") == [P, W]


@pytest.mark.feature("H6")
async def test_a_finished_job_that_is_retried_by_hand_stands_in_line(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a", "b")
    job = await harness.take()
    await settle(harness, job, Outcome.FAIL)
    result = (await harness.do(rq.RetryJobs(refs=[job.ref])))[0]
    assert (result.status, result.state) == (Changed.OK, P)


@pytest.mark.feature("H6")
async def test_a_higher_limit_lets_more_in_at_once_and_no_limit_lets_all_in(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a", "b", "c", "d", "e")
    await limit(harness, concurrency=3)
    assert await states(harness, "a", "b", "c", "d", "e") == [W, W, W, P, P]
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="*"))
    assert await states(harness, "d", "e") == [W, W]


@pytest.mark.feature("H6")
async def test_a_limit_that_comes_late_parks_what_a_claim_meets(harness: Harness) -> None:
    await add(harness, "a", "b", "c")
    await limit(harness, concurrency=1)
    assert await states(harness, "a", "b", "c") == [W, W, W]
    assert (await claimed(harness))[0] == ["a"]
    assert await states(harness, "a", "b", "c") == [A, P, P]


@pytest.mark.feature("H6")
async def test_a_step_lets_in_a_bounded_number_and_claims_do_the_rest(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    for start in range(0, 2_500, 500):
        await add(harness, *(f"j{n}" for n in range(start, start + 500)))
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="*"))
    assert (await harness.counts())[P] == 1_499
    ids, next_in = await claimed(harness, 1)
    assert (ids, next_in) == (["j0"], 0)
    assert (await harness.counts())[P] == 499
    assert (await claimed(harness, 1))[1] is None
    assert P not in await harness.counts()


@pytest.mark.feature("H6")
async def test_history_names_the_group(harness: Harness) -> None:
    await add(harness, "a")
    await settle(harness, await harness.take())
    await harness.finish("plain")
    assert [row.group for row in await harness.history()] == ["g", None]


# --- rate -----------------------------------------------------------------------------------------


@pytest.mark.feature("H7")
async def test_a_group_starts_no_more_in_any_window_than_its_rate(harness: Harness) -> None:
    await limit(harness, rate=Rate(2, 1_000))
    await add(harness, "a", "b", "c", "d", "e")
    assert await states(harness, "a", "b", "c") == [W, W, P]
    assert (await claimed(harness, 1))[0] == ["a"]
    harness.pass_ms(300)
    assert await claimed(harness) == (["b"], 700)
    harness.pass_ms(699)
    assert await claimed(harness) == ([], 1)
    harness.pass_ms(1)
    assert await claimed(harness) == (["c"], 300)
    harness.pass_ms(300)
    assert await claimed(harness) == (["d"], 700)


@pytest.mark.feature("H7")
async def test_only_as_many_are_let_in_as_the_window_has_room_for(harness: Harness) -> None:
    await limit(harness, rate=Rate(2, 1_000))
    await add(harness, *(f"j{n}" for n in range(6)))
    await claimed(harness)
    harness.pass_ms(5_000)
    promoted = await harness.do(rq.Promote())
    assert promoted == rq.Promoted(2, None)
    assert await harness.counts() == {A: 2, W: 2, P: 2}


@pytest.mark.feature("H7")
async def test_the_window_counts_starts_not_jobs(harness: Harness) -> None:
    await limit(harness, rate=Rate(2, 1_000))
    await add(harness, "a", "b")
    await settle(harness, await harness.take(), Outcome.RELEASE)
    await settle(harness, await harness.take(), Outcome.RELEASE)
    assert await claimed(harness) == ([], 1_000)
    assert await states(harness, "a", "b") == [P, P]
    harness.pass_ms(1_000)
    assert (await claimed(harness))[0] == ["a", "b"]


@pytest.mark.feature("H7", "H12")
async def test_a_rate_per_task_is_a_group_named_after_the_task(harness: Harness) -> None:
    await limit(harness, "report", rate=Rate(1, 60_000))
    await add(harness, "r1", "r2", group="report", task="report")
    await add(harness, "s1", "s2", group="send", task="send")
    ids, next_in = await claimed(harness)
    assert (sorted(ids), next_in) == (["r1", "s1", "s2"], 60_000)


# --- token bucket -----------------------------------------------------------------------------------


@pytest.mark.feature("H8")
async def test_a_bucket_gives_capacity_at_once_and_then_what_flows_in(harness: Harness) -> None:
    await limit(harness, bucket=Bucket(5, 2))
    await add(harness, "a", "b", cost=2)
    await add(harness, "c", "d", cost=3)
    assert await states(harness, "a", "b", "c") == [W, W, P]
    assert await claimed(harness) == (["a", "b"], 1_000)  # 1 of 5 is left, 2 more are missing
    harness.pass_ms(999)
    assert await claimed(harness) == ([], 1)
    harness.pass_ms(1)
    assert await claimed(harness) == (["c"], 1_500)


@pytest.mark.feature("H8")
async def test_a_bucket_never_holds_more_than_its_capacity(harness: Harness) -> None:
    await limit(harness, bucket=Bucket(3, 10))
    await add(harness, *(f"j{n}" for n in range(9)))
    assert len((await claimed(harness))[0]) == 3
    harness.pass_ms(100_000)
    assert len((await claimed(harness))[0]) == 3


@pytest.mark.feature("H8")
async def test_fractions_of_tokens_are_not_lost(harness: Harness) -> None:
    await limit(harness, bucket=Bucket(1, 0.3))
    await add(harness, *(f"j{n}" for n in range(4)))
    times: list[int] = []
    while len(times) < 4:
        ids, next_in = await claimed(harness)
        times += [harness.now_ms - START_MS for _ in ids]
        harness.pass_ms(next_in or 0)
    assert times == [0, 3_334, 6_668, 10_002]


@pytest.mark.feature("H8")
async def test_a_job_that_costs_more_than_the_bucket_holds_fails(harness: Harness) -> None:
    await limit(harness, bucket=Bucket(3, 1))
    (answer,) = await add(harness, "dear", cost=4)
    assert (answer.outcome, answer.state) == (AddOutcome.QUEUED, JobState.FAILED)
    job = await harness.get("dear")
    assert (job.state, job.reason) == (JobState.FAILED, "cost_exceeds_capacity")
    (row,) = await harness.history()
    assert (row.attempt, row.outcome, row.error_class) == (0, "failed", "CostExceedsCapacity")
    assert (await harness.last_event()).type is EventType.FAILED


@pytest.mark.feature("H8")
async def test_a_smaller_bucket_ends_what_can_never_start(harness: Harness) -> None:
    await limit(harness, bucket=Bucket(5, 1))
    await add(harness, "waits", "parked", cost=4)
    await add(harness, "small")
    await limit(harness, bucket=Bucket(3, 1))
    assert await states(harness, "waits", "parked", "small") == [W, JobState.FAILED, P]
    assert (await claimed(harness))[0] == ["small"]
    assert (await harness.get("waits")).reason == "cost_exceeds_capacity"


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.feature("H5")
async def test_an_ordered_group_runs_one_at_a_time_in_order(harness: Harness) -> None:
    await limit(harness, ordered=True)
    await add(harness, *(f"j{n}" for n in range(5)))
    order = []
    while jobs := await harness.claim(10):
        assert len(jobs) == 1
        order.append(jobs[0].id)
        await settle(harness, jobs[0])
    assert order == [f"j{n}" for n in range(5)]


@pytest.mark.feature("H5")
@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.SNOOZE, Outcome.RELEASE])
@pytest.mark.parametrize("delay_ms", [0, 500])
async def test_nothing_overtakes_a_job_of_an_ordered_group_that_runs_again(
    harness: Harness, outcome: Outcome, delay_ms: int
) -> None:
    await limit(harness, ordered=True)
    await add(harness, "a", "b")
    await settle(harness, await harness.take(), outcome, delay_ms=delay_ms)
    assert await harness.state("b") is P
    if delay_ms:
        assert await claimed(harness) == ([], delay_ms)
    harness.pass_ms(delay_ms)
    assert (await claimed(harness))[0] == ["a"]


@pytest.mark.feature("H5")
async def test_no_gap_blocks_an_ordered_group(harness: Harness) -> None:
    """Cancelled, removed and expired jobs make way, running or not."""
    await limit(harness, ordered=True)
    await add(harness, "a", "b", "c")
    await add(harness, "d", expires_in_ms=10)
    await add(harness, "e", "f")
    job = await harness.take()
    await settle(harness, job, Outcome.RETRY, delay_ms=1_000_000)
    await harness.do(rq.CancelJobs(refs=[job.ref]))
    assert await harness.state("b") is W
    await harness.do(rq.RemoveJobs(refs=[(await harness.get("b")).ref, (await harness.get("c")).ref]))
    harness.pass_ms(10)
    assert (await claimed(harness))[0] == ["e"]
    assert await states(harness, "d", "f") == [JobState.FAILED, P]


# --- pause, hold, size ------------------------------------------------------------------------------


@pytest.mark.feature("H14")
async def test_a_paused_group_starts_nothing_and_others_go_on(harness: Harness) -> None:
    await add(harness, "a", "b")
    await add(harness, "x", group="other")
    assert await harness.do(lrq.PauseGroup(queue=QUEUE, group="g", paused=True)) is True
    assert await harness.do(lrq.PauseGroup(queue=QUEUE, group="g", paused=True)) is False
    assert await claimed(harness) == (["x"], None)
    await add(harness, "c")
    assert await states(harness, "a", "b", "c") == [P, P, P]
    assert (await group_info(harness)).paused
    assert await harness.do(lrq.PauseGroup(queue=QUEUE, group="g", paused=False)) is True
    assert (await claimed(harness))[0] == ["a", "b", "c"]


@pytest.mark.feature("H14", "K1")
async def test_a_queue_whose_only_group_was_paused_from_the_start_is_not_drained(harness: Harness) -> None:
    await harness.do(lrq.PauseGroup(queue=QUEUE, group="g", paused=True))
    await harness.add("plain")
    await add(harness, "parked")
    mark = await harness.mark()
    assert await claimed(harness) == (["plain"], None)
    assert EventType.DRAINED not in [event.type for event in await harness.events(after=mark)]


@pytest.mark.feature("H14")
async def test_a_group_on_hold_starts_nothing_before_its_time(harness: Harness) -> None:
    await add(harness, "a", "b")
    assert await harness.do(lrq.Hold(queue=QUEUE, group="g", ms=500)) == START_MS + 500
    assert await harness.do(lrq.Hold(queue=QUEUE, group="g", ms=1)) == START_MS + 500
    assert await claimed(harness) == ([], 500)
    settings = (await harness.do(lrq.GetLimits(queue=QUEUE, groups=("g",)))).groups["g"]
    assert settings == GroupSettings(hold_until_ms=START_MS + 500)
    harness.pass_ms(500)
    settings = (await harness.do(lrq.GetLimits(queue=QUEUE, groups=("g",)))).groups["g"]
    assert settings == GroupSettings()  # it has passed
    assert (await claimed(harness, 1))[0] == ["a"]
    await harness.do(lrq.Hold(queue=QUEUE, group="g", ms=500))
    assert await claimed(harness) == ([], 500)
    assert await harness.do(lrq.Hold(queue=QUEUE, group="g", ms=0)) == 0
    assert (await claimed(harness))[0] == ["b"]


@pytest.mark.feature("H14", "H9")
async def test_a_settlement_can_hold_the_group_and_give_its_job_back_in_front(harness: Harness) -> None:
    await limit(harness, concurrency=2)
    await add(harness, "a", "b", "c")
    job = await harness.take()
    await settle(harness, job, Outcome.RELEASE, hold_ms=2_000, reason="rate_limited")
    assert await claimed(harness) == ([], 2_000)
    harness.pass_ms(2_000)
    assert (await claimed(harness))[0] == ["a", "b"]


@pytest.mark.feature("H14")
async def test_a_full_group_refuses_more_and_nothing_changes(harness: Harness) -> None:
    await limit(harness, max_size=2)
    answers = await add(harness, "a", "b", "c")
    assert [answer.outcome for answer in answers] == [
        AddOutcome.QUEUED,
        AddOutcome.QUEUED,
        AddOutcome.REFUSED,
    ]
    assert (answers[2].state, answers[2].record) == (None, None)
    assert await harness.find("c") is None
    assert len(await harness.events()) == 2
    await add(harness, "x", group="other")
    jobs = await harness.claim(2)
    assert (await add(harness, "c"))[0].outcome is AddOutcome.REFUSED
    for job in jobs:
        await settle(harness, job)
    assert (await add(harness, "c"))[0].outcome is AddOutcome.QUEUED


# --- looking --------------------------------------------------------------------------------------


@pytest.mark.feature("H6", "H14")
async def test_groups_are_listed_with_their_counts(harness: Harness) -> None:
    await limit(harness, concurrency=2)
    await limit(harness, "idle", concurrency=9)
    await add(harness, "a", "b", "c", "d")
    await add(harness, "later", delay_ms=60_000)
    await add(harness, "x", group="other")
    await harness.take()
    page = await harness.do(lrq.ListGroups(queue=QUEUE))
    assert page == lrq.GroupPage(
        [
            GroupInfo(name="g", size=5, waiting=1, parked=2, active=1),
            GroupInfo(name="idle"),
            GroupInfo(name="other", size=1, waiting=1),
        ]
    )
    first = await harness.do(lrq.ListGroups(queue=QUEUE, limit=2))
    assert [info.name for info in first.groups] == ["g", "idle"]
    rest = await harness.do(lrq.ListGroups(queue=QUEUE, limit=2, cursor=first.cursor))
    assert ([info.name for info in rest.groups], rest.cursor) == (["other"], None)


@pytest.mark.feature("H7")
async def test_a_group_tells_when_time_lets_the_next_in(harness: Harness) -> None:
    await limit(harness, rate=Rate(1, 1_000))
    await add(harness, "a", "b")
    assert (await group_info(harness)).next_ms is None  # "a" must start first
    await claimed(harness)
    assert (await group_info(harness)).next_ms == START_MS + 1_000


async def test_a_group_that_is_done_is_no_longer_listed(harness: Harness) -> None:
    await add(harness, "a")
    await settle(harness, await harness.take())
    assert (await harness.do(lrq.ListGroups(queue=QUEUE))).groups == []


@pytest.mark.feature("H7", "H14")
async def test_a_settlement_that_holds_its_group_starts_none_of_it(harness: Harness) -> None:
    await limit(harness, rate=Rate(1, 1_000))
    await add(harness, "other", "other-next", group="f")
    await add(harness, "a", "b")
    _, job = await harness.claim(2)
    harness.pass_ms(1_000)
    end = settlement(job, Outcome.COMPLETE, hold_ms=5_000)
    result = await harness.do(rq.Settle(items=[end], claim=harness.claim_request(limit=10)))
    assert result.claimed is not None
    assert [one.id for one in result.claimed.jobs] == ["other-next"]
    assert result.claimed.next_due_in_ms == 5_000
    harness.pass_ms(5_000)
    assert (await claimed(harness))[0] == ["b"]


async def test_an_ordered_group_tells_when_time_lets_the_next_in(harness: Harness) -> None:
    await limit(harness, ordered=True, rate=Rate(1, 1_000))
    await add(harness, "a", "b", "c")
    await settle(harness, await harness.take(), Outcome.RETRY, delay_ms=5_000)
    assert (await group_info(harness)).next_ms is None  # "a" must run again first
    harness.pass_ms(5_000)
    await settle(harness, await harness.take())
    assert (await group_info(harness)).next_ms == START_MS + 6_000


@pytest.mark.feature("H6", "A35")
async def test_a_claim_passes_expired_jobs_and_starts_one_of_the_next_group(harness: Harness) -> None:
    await add(harness, "a", group="one", expires_in_ms=10)
    await add(harness, "b", group="two")
    harness.pass_ms(20)
    assert await claimed(harness, 1) == (["b"], None)
    assert await harness.state("a") is JobState.FAILED


@pytest.mark.feature("H14")
async def test_a_full_group_keeps_a_job_out_of_a_flow_that_does_not_wait_for_it(harness: Harness) -> None:
    await limit(harness, max_size=1)
    await add(harness, "a")
    full = harness.new("b", options=StoredOptions(group="g"))
    jobs = [harness.new("p", depends_on=[Dependency(QUEUE, "c")]), harness.new("c"), full]
    answers = await harness.do(rq.Add(jobs=jobs))
    outcomes = [answer.outcome for answer in answers]
    assert outcomes == [AddOutcome.QUEUED, AddOutcome.QUEUED, AddOutcome.REFUSED]
    assert await harness.find("b") is None
    assert await states(harness, "p", "c") == [JobState.BLOCKED, W]


@pytest.mark.feature("H7", "H8")
@pytest.mark.parametrize("limits", [GroupLimits(rate=Rate(1, 1_000)), GroupLimits(bucket=Bucket(1, 1))])
async def test_a_group_that_pruning_forgot_is_as_good_as_new(harness: Harness, limits: GroupLimits) -> None:
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="*", limits=limits))
    for name in ("a", "b"):
        await add(harness, name, f"{name}-next")
        assert (await claimed(harness))[0] == [name]
        await harness.do(rq.Purge(queue=QUEUE, states=list(JobState), force=True))
        harness.pass_ms(1_000)
        await harness.do(rq.Prune())
        await harness.reopen()
    assert (await harness.do(lrq.ListGroups(queue=QUEUE))).groups == []


@pytest.mark.feature("H7", "H8")
async def test_pruning_forgets_no_start_that_still_counts(harness: Harness) -> None:
    await limit(harness, rate=Rate(1, 1_000))
    await add(harness, "a")
    await settle(harness, await harness.take())
    harness.pass_ms(500)
    await harness.do(rq.Prune())
    await add(harness, "b")
    assert await claimed(harness) == ([], 500)
    harness.pass_ms(500)
    await harness.do(rq.Prune())
    assert (await claimed(harness))[0] == ["b"]


@pytest.mark.feature("H7", "H8")
@pytest.mark.parametrize("limits", [GroupLimits(rate=Rate(2, 1_000)), GroupLimits(bucket=Bucket(2, 1))])
async def test_starts_of_a_group_count_after_reopening(harness: Harness, limits: GroupLimits) -> None:
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="g", limits=limits))
    await add(harness, "a", "b", "c", "d")
    for name in ("a", "b"):
        assert [job.id for job in await harness.claim()] == [name]
        harness.pass_ms(500)
        await harness.reopen()
    assert (await claimed(harness))[0] == ["c"]  # a start, or a token, of 1,000 ms ago


async def test_an_obliterated_queue_forgets_its_groups(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await limit(harness, "g", concurrency=2)
    await add(harness, "a")
    await harness.do(rq.Purge(queue=QUEUE, states=list(JobState), forget=True))
    found = await harness.do(lrq.GetLimits(queue=QUEUE, groups=("g",)))
    assert (found.every_group, found.groups) == (GroupLimits(), {"g": GroupSettings()})
    assert (await harness.do(lrq.ListGroups(queue=QUEUE))).groups == []


# --- keys of parked jobs ----------------------------------------------------------------------------


@pytest.mark.feature("H6", "D3")
@pytest.mark.parametrize("step", ["settle", "add", "claim", "promote", "resume", "limit"])
async def test_a_parked_job_that_its_line_ends_frees_its_key_whatever_moved_the_line(
    harness: Harness, step: str
) -> None:
    """It expired, or costs more than the new limits allow: another job of its group finds that out."""
    running = await harness.start("a", options=StoredOptions(group="g"))
    await harness.do(lrq.PauseGroup(queue=QUEUE, group="g", paused=True))
    unique = StoredUnique(key="k", mode=UniqueMode.UNTIL_DONE)
    await harness.add("b", options=StoredOptions(group="g", cost=5, unique=unique), expires_in_ms=100)
    assert await states(harness, "b") == [P]
    if step == "limit":
        await limit(harness, bucket=Bucket(1, 1))
    else:
        await harness.do(lrq.Hold(queue=QUEUE, group="g", ms=50))
        if step != "resume":
            await harness.do(lrq.PauseGroup(queue=QUEUE, group="g", paused=False))
        harness.pass_ms(200)
        match step:
            case "settle":
                await settle(harness, running)
            case "add":
                await add(harness, "c")
            case "claim":
                assert await claimed(harness) == ([], None)
            case "promote":
                await harness.do(rq.Promote())
            case "resume":
                await harness.do(lrq.PauseGroup(queue=QUEUE, group="g", paused=False))
    assert await states(harness, "b") == [JobState.FAILED]
    assert await harness.do(lrq.GetUniqueKey(queue=QUEUE, key="k")) is None
    answer = await harness.add("d", options=StoredOptions(unique=unique))
    assert answer.outcome is AddOutcome.QUEUED
