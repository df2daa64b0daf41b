"""How many jobs of a group run at once, and how the others are parked and admitted."""

from __future__ import annotations

import pytest

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.job import EventType
from windlass.core.limit_rules import GroupLimits, GroupSettings
from windlass.core.outcome import Changed, Outcome
from windlass.core.states import JobState
from windlass_conformance.group_support import A, P, W, add, claimed, limit, settle, states
from windlass_conformance.harness import LEASE_MS, QUEUE, Harness, settlement

NEEDS = "groups"


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
