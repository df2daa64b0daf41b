"""Groups of jobs: order, pause, hold, size, and listings."""

from __future__ import annotations

import pytest

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import Dependency
from windlass.core.job import EventType
from windlass.core.limit_rules import Bucket, GroupInfo, GroupLimits, GroupSettings, Rate
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome
from windlass.core.states import JobState
from windlass.errors import OrderedGroupError
from windlass_conformance.group_support import P, W, add, claimed, limit, settle, states
from windlass_conformance.harness import QUEUE, START_MS, Harness, settlement

NEEDS = "groups"


async def group_info(harness: Harness, name: str = "g") -> GroupInfo:
    page = await harness.do(lrq.ListGroups(queue=QUEUE))
    return next(info for info in page.groups if info.name == name)


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
    """Jobs after a cancelled, removed or expired job can start."""
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


@pytest.mark.feature("H8")
async def test_a_group_tells_when_its_bucket_has_tokens_for_the_next_after_those_that_wait(
    harness: Harness,
) -> None:
    await limit(harness, bucket=Bucket(5, 2))
    await add(harness, "a", "b", cost=2)
    await add(harness, "c", cost=3)
    assert (await group_info(harness)).next_ms is None  # a full bucket does not hold the tokens of all three
    assert (await claimed(harness, 1))[0] == ["a"]
    assert (await group_info(harness)).next_ms == START_MS + 1_000  # 3 are left, "b" and "c" take 5
    harness.pass_ms(400)
    assert (await claimed(harness, 1))[0] == ["b"]
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


# --- very many groups -------------------------------------------------------------------------------


async def _add_to_groups(harness: Harness, count: int, each: int = 1) -> None:
    """Add ``each`` jobs to every one of ``count`` groups, and two jobs to a group after them."""
    names = [f"a{n:04}" for n in range(count)]
    jobs = [(name, f"{name}.{n}") for name in names for n in range(each)] + [("b", "b.0"), ("b", "b.1")]
    for start in range(0, len(jobs), 500):
        part = jobs[start : start + 500]
        new = [harness.new(job_id, options=StoredOptions(group=name)) for name, job_id in part]
        await harness.do(rq.Add(jobs=new))


@pytest.mark.feature("H6")
@pytest.mark.parametrize("step", ["claim", "promote"])
async def test_a_new_limit_of_every_group_reaches_groups_beyond_the_first_thousand(
    harness: Harness, step: str
) -> None:
    """One request applies it to a thousand groups, the next claim or promote to others."""
    await limit(harness, concurrency=1)
    await _add_to_groups(harness, 1_000, each=2)
    await limit(harness, concurrency=2)
    assert await states(harness, "a0000.1", "a0999.1", "b.1") == [W, W, P]
    await harness.reopen()
    if step == "claim":
        await claimed(harness, 1)
    else:
        await harness.do(rq.Promote())
    assert await harness.state("b.1") is W


@pytest.mark.feature("H6")
async def test_a_worker_asks_again_at_once_while_a_new_limit_reaches_more_groups(harness: Harness) -> None:
    await limit(harness, concurrency=1)
    await _add_to_groups(harness, 2_000)
    for _ in range(2):
        assert len((await claimed(harness, 1_000))[0]) == 1_000
    assert await claimed(harness) == (["b.0"], None)
    await limit(harness, concurrency=2)
    assert await claimed(harness) == ([], 0)
    assert await claimed(harness) == (["b.1"], None)


@pytest.mark.feature("H5", "H6")
async def test_one_group_with_a_priority_among_very_many_keeps_all_from_being_ordered(
    harness: Harness,
) -> None:
    await _add_to_groups(harness, 1_000)
    await harness.add("high", priority=5, options=StoredOptions(group="b"))
    with pytest.raises(OrderedGroupError, match="'b'"):
        await limit(harness, ordered=True)
    await limit(harness, "b", concurrency=1)
    await limit(harness, ordered=True)


# --- keys of parked jobs ----------------------------------------------------------------------------


@pytest.mark.feature("H6", "D3")
@pytest.mark.parametrize("step", ["settle", "add", "claim", "promote", "resume", "limit"])
async def test_a_parked_job_that_its_line_ends_frees_its_key_whatever_moved_the_line(
    harness: Harness, step: str
) -> None:
    """The parked job expires, or costs more than new limits allow; steps that check its group fail it."""
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
