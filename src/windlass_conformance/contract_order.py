"""Ordered groups: jobs run in the order in which they were added, also after failures and delays."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import Dependency
from windlass.core.job import JobRef
from windlass.core.limit_rules import GroupLimits
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Changed, Outcome
from windlass.core.states import JobState
from windlass.errors import ConfigError, DependencyError, OrderedGroupError
from windlass_conformance.harness import LEASE_MS, QUEUE, Harness

NEEDS = "groups"

P, W = JobState.PARKED, JobState.WAITING


async def limit(harness: Harness, group: str = "*", **limits: Any) -> None:
    """Set the limits of a group, or of every group; without any, remove them."""
    given = GroupLimits(**limits) if limits else None
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group=group, limits=given))


async def add(
    harness: Harness, *ids: str, group: str = "g", lifo: bool = False, **fields: Any
) -> list[rq.Added]:
    """Add jobs to a group."""
    options = StoredOptions(group=group, max_attempts=9, lifo=lifo)
    jobs = [harness.new(job_id, options=options, **fields) for job_id in ids]
    return await harness.do(rq.Add(jobs=jobs))


async def run_all(harness: Harness) -> list[str]:
    """Run all jobs that can start, one after the other; return their ids in this order."""
    order: list[str] = []
    while jobs := await harness.claim(10):
        assert len(jobs) == 1, "an ordered group runs one job at a time"
        order.append(jobs[0].id)
        await harness.settle(jobs[0], Outcome.COMPLETE)
    return order


async def claimed(harness: Harness) -> list[str]:
    return [job.id for job in await harness.claim(10)]


def ref(job_id: str) -> JobRef:
    return JobRef(QUEUE, job_id)


# --- priority and lifo -----------------------------------------------------------------------------


@pytest.mark.feature("H5")
@pytest.mark.parametrize("rank", [{"priority": 5}, {"priority": -1}, {"lifo": True}])
async def test_an_ordered_group_refuses_a_priority_and_lifo(harness: Harness, rank: dict[str, Any]) -> None:
    await limit(harness, ordered=True)
    await add(harness, "a", "b")
    events = len(await harness.events())
    (answer,) = await add(harness, "ranked", **rank)
    assert (answer.outcome, answer.state, answer.record) == (AddOutcome.OUT_OF_ORDER, None, None)
    assert await harness.find("ranked") is None
    assert len(await harness.events()) == events
    assert await run_all(harness) == ["a", "b"]


@pytest.mark.feature("H5")
async def test_in_a_batch_only_the_jobs_that_do_not_go_with_the_order_are_refused(harness: Harness) -> None:
    await limit(harness, "g", ordered=True)
    plain, ranked = StoredOptions(group="g"), StoredOptions(group="g", lifo=True)
    answers = await harness.do(
        rq.Add(
            jobs=[
                harness.new("a", options=plain),
                harness.new("b", options=ranked),
                harness.new("c", options=StoredOptions(group="h"), priority=5),
                harness.new("d", priority=5),
                harness.new("e", options=plain),
            ]
        )
    )
    assert [answer.outcome for answer in answers] == [
        AddOutcome.QUEUED,
        AddOutcome.OUT_OF_ORDER,
        AddOutcome.QUEUED,
        AddOutcome.QUEUED,
        AddOutcome.QUEUED,
    ]


@pytest.mark.feature("H5")
async def test_a_job_that_is_known_answers_before_the_order_is_looked_at(harness: Harness) -> None:
    await limit(harness, ordered=True)
    await add(harness, "a")
    (answer,) = await add(harness, "a", priority=5)
    assert answer.outcome is AddOutcome.DUPLICATE


@pytest.mark.feature("H5")
@pytest.mark.parametrize("state", ["waiting", "parked", "scheduled"])
async def test_the_priority_of_a_job_of_an_ordered_group_cannot_be_changed(
    harness: Harness, state: str
) -> None:
    await limit(harness, ordered=True)
    await add(harness, "waiting", "parked")
    await add(harness, "scheduled", delay_ms=60_000)
    before = await harness.get(state)
    changed = await harness.do(rq.ChangeJob(ref=ref(state), priority=3, payload=b"[1]"))
    assert changed == rq.ChangeResult(Changed.ORDERED, JobState(state))
    assert await harness.get(state) == before
    same = await harness.do(rq.ChangeJob(ref=ref(state), priority=0, payload=b"[1]"))
    assert same.status is Changed.OK
    assert (await harness.get(state)).payload == b"[1]"


@pytest.mark.feature("H5")
async def test_an_order_that_is_lifted_allows_priorities_again(harness: Harness) -> None:
    await limit(harness, ordered=True)
    await add(harness, "a", "b")
    await limit(harness)
    assert (await add(harness, "c", priority=5))[0].outcome is AddOutcome.QUEUED
    assert (await harness.do(rq.ChangeJob(ref=ref("b"), priority=9))).status is Changed.OK
    assert await claimed(harness) == ["b", "c", "a"]


@pytest.mark.feature("H5")
async def test_a_flow_is_not_added_when_an_ordered_group_keeps_out_what_it_waits_for(
    harness: Harness,
) -> None:
    await limit(harness, ordered=True)
    child = harness.new("child", options=StoredOptions(group="g"), priority=5)
    parent = harness.new("parent", depends_on=[Dependency(QUEUE, "child")])
    with pytest.raises(DependencyError, match="ordered"):
        await harness.do(rq.Add(jobs=[child, parent]))
    assert [await harness.find(job_id) for job_id in ("child", "parent")] == [None, None]


@pytest.mark.feature("H5")
async def test_a_later_add_that_would_rank_the_job_of_a_held_key_is_refused(harness: Harness) -> None:
    await limit(harness, ordered=True)
    options = StoredOptions(group="g", unique=StoredUnique(key="k", mode=UniqueMode.DEBOUNCE, ttl_ms=50))
    await harness.add("a", options=options)
    before = await harness.get("a")
    answer = await harness.add("b", options=options, priority=5)
    assert (answer.outcome, answer.record) == (AddOutcome.OUT_OF_ORDER, None)
    assert await harness.get("a") == before


# --- switching it on ---------------------------------------------------------------------------------


@pytest.mark.feature("H5")
@pytest.mark.parametrize("switched", ["g", "*"])
@pytest.mark.parametrize("rank", [{"priority": 5}, {"priority": -1}, {"lifo": True}])
@pytest.mark.parametrize("fields", [{}, {"delay_ms": 50}])
async def test_a_group_with_ranked_jobs_is_not_made_ordered(
    harness: Harness, switched: str, rank: dict[str, Any], fields: dict[str, Any]
) -> None:
    await limit(harness, concurrency=1)
    await add(harness, "a", "b")
    await add(harness, "ranked", **rank, **fields)
    with pytest.raises(OrderedGroupError, match="'g'") as caught:
        await limit(harness, switched, ordered=True)
    assert isinstance(caught.value, ConfigError)
    assert (caught.value.queue, caught.value.group) == (QUEUE, "g")
    found = await harness.do(lrq.GetLimits(queue=QUEUE, groups=("g",)))
    assert (found.every_group, found.groups["g"].limits) == (GroupLimits(concurrency=1), None)
    await harness.do(rq.RemoveJobs(refs=[ref("ranked")]))
    await limit(harness, switched, ordered=True)
    assert await run_all(harness) == ["a", "b"]


@pytest.mark.feature("H5")
async def test_a_running_job_with_a_priority_is_in_the_way_of_order_until_it_has_ended(
    harness: Harness,
) -> None:
    await add(harness, "ranked", priority=5)
    job = await harness.take()
    with pytest.raises(OrderedGroupError):
        await limit(harness, ordered=True)
    await harness.settle(job, Outcome.COMPLETE)
    await limit(harness, ordered=True)


@pytest.mark.feature("H5")
async def test_only_groups_whose_limits_change_are_looked_at(harness: Harness) -> None:
    await limit(harness, "own", concurrency=5)
    await add(harness, "a", group="own", priority=5)
    await limit(harness, ordered=True)
    with pytest.raises(OrderedGroupError, match="'own'"):
        await limit(harness, "own")  # those of every group would hold
    await limit(harness, "own", concurrency=2)
    assert await claimed(harness) == ["a"]


@pytest.mark.feature("H5")
async def test_other_limits_of_an_ordered_group_can_be_changed_at_any_time(harness: Harness) -> None:
    await limit(harness, ordered=True)
    await add(harness, "a", "b")
    await limit(harness, ordered=True, max_size=2)
    assert (await add(harness, "c"))[0].outcome is AddOutcome.REFUSED
    assert await run_all(harness) == ["a", "b"]


@pytest.mark.feature("H5")
async def test_jobs_that_were_let_in_before_a_group_became_ordered_run_one_at_a_time(
    harness: Harness,
) -> None:
    await add(harness, "a", "b", "c")
    await limit(harness, ordered=True)
    assert await run_all(harness) == ["a", "b", "c"]


# --- who holds up whom ---------------------------------------------------------------------------------


@pytest.mark.feature("H5")
async def test_a_delayed_job_holds_up_those_added_after_it(harness: Harness) -> None:
    await limit(harness, ordered=True)
    await add(harness, "a")
    await add(harness, "late", delay_ms=500)
    await add(harness, "b", "c")
    assert await run_all(harness) == ["a"]
    assert [await harness.state(job_id) for job_id in ("b", "c")] == [P, P]
    answer = await harness.do(harness.claim_request(limit=10))
    assert (answer.jobs, answer.next_due_in_ms) == ([], 500)
    harness.pass_ms(500)
    assert await run_all(harness) == ["late", "b", "c"]


@pytest.mark.feature("H5")
async def test_a_delayed_job_holds_up_nothing_where_it_may_be_skipped(harness: Harness) -> None:
    await limit(harness, ordered=True, skip_delayed=True)
    await add(harness, "late", delay_ms=500)
    await add(harness, "a", "b", "c")
    first = await harness.take()
    await harness.settle(first, Outcome.COMPLETE)
    harness.pass_ms(500)  # it is due: from now on it goes first
    assert [first.id, *(await run_all(harness))] == ["a", "late", "b", "c"]


@pytest.mark.feature("H5")
async def test_a_retrying_job_holds_up_the_others_even_where_delayed_ones_are_skipped(
    harness: Harness,
) -> None:
    await limit(harness, ordered=True, skip_delayed=True)
    await add(harness, "a", "b")
    await harness.settle(await harness.take(), Outcome.RETRY, delay_ms=500)
    assert await claimed(harness) == []
    harness.pass_ms(500)
    assert await run_all(harness) == ["a", "b"]


@pytest.mark.feature("H5", "C18")
async def test_a_stalled_job_that_rests_holds_up_the_others_even_where_delayed_ones_are_skipped(
    harness: Harness,
) -> None:
    await limit(harness, ordered=True, skip_delayed=True)
    options = StoredOptions(group="g", stall_delay_ms=500)
    await harness.add_many("a", "b", options=options)
    await harness.take()
    harness.pass_ms(LEASE_MS)
    await harness.do(rq.Recover())
    assert await claimed(harness) == []
    harness.pass_ms(500)
    assert await run_all(harness) == ["a", "b"]


@pytest.mark.feature("H5")
async def test_letting_delayed_jobs_be_skipped_frees_those_that_wait_behind(harness: Harness) -> None:
    await limit(harness, ordered=True)
    await add(harness, "late", delay_ms=60_000)
    await add(harness, "a")
    assert await claimed(harness) == []
    await limit(harness, ordered=True, skip_delayed=True)
    assert await run_all(harness) == ["a"]
    await limit(harness, ordered=True)
    await add(harness, "b")
    assert await harness.state("b") is P
    await harness.do(rq.CancelJobs(refs=[ref("late")]))
    assert await run_all(harness) == ["b"]


@pytest.mark.feature("H5")
async def test_a_job_that_is_given_a_delay_by_hand_holds_up_those_added_after_it(harness: Harness) -> None:
    await limit(harness, ordered=True)
    await add(harness, "a", "b", "c")
    await harness.do(rq.ChangeJob(ref=ref("b"), delay_ms=60_000))
    assert await run_all(harness) == ["a"]
    await harness.do(rq.ChangeJob(ref=ref("b"), delay_ms=0))
    assert await run_all(harness) == ["b", "c"]


@pytest.mark.feature("H5")
async def test_a_job_that_is_retried_by_hand_goes_before_those_added_after_it(harness: Harness) -> None:
    await limit(harness, ordered=True)
    await add(harness, "a", "b", "c")
    await harness.settle(await harness.take(), Outcome.FAIL)
    assert await harness.state("b") is W
    await harness.do(rq.RetryJobs(refs=[ref("a")]))
    assert await run_all(harness) == ["a", "b", "c"]


@pytest.mark.feature("H5")
async def test_a_ranked_job_that_is_retried_by_hand_stands_where_it_was_added(harness: Harness) -> None:
    await add(harness, "a", "b")
    await add(harness, "ranked", priority=5)
    job = await harness.take()
    assert job.id == "ranked"
    await harness.settle(job, Outcome.FAIL)
    await limit(harness, ordered=True)
    await add(harness, "c")
    await harness.do(rq.RetryJobs(refs=[ref("ranked")]))
    assert (await harness.get("ranked")).priority == 0
    assert await run_all(harness) == ["a", "b", "ranked", "c"]


@pytest.mark.feature("H5")
@pytest.mark.parametrize("outcome", [Outcome.RETRY, Outcome.SNOOZE, Outcome.RELEASE])
@pytest.mark.parametrize("delay_ms", [0, 500])
async def test_a_job_that_runs_again_keeps_its_place_before_one_that_was_delayed(
    harness: Harness, outcome: Outcome, delay_ms: int
) -> None:
    await limit(harness, ordered=True)
    await add(harness, "a")
    await add(harness, "b", delay_ms=100)
    await add(harness, "c")
    await harness.settle(await harness.take(), outcome, delay_ms=delay_ms)
    harness.pass_ms(100)
    if delay_ms:
        assert await claimed(harness) == []
        harness.pass_ms(delay_ms - 100)
    assert await run_all(harness) == ["a", "b", "c"]


@pytest.mark.feature("H5")
async def test_a_blocked_job_holds_up_nothing_and_keeps_its_place(harness: Harness) -> None:
    """The blocked job may wait for a job after it: then nothing would ever run."""
    await limit(harness, ordered=True)
    options = StoredOptions(group="g")
    parent = harness.new("parent", options=options, depends_on=[Dependency(QUEUE, "child")])
    await harness.do(rq.Add(jobs=[parent, harness.new("child", options=options)]))
    await add(harness, "last")
    assert await run_all(harness) == ["child", "parent", "last"]
