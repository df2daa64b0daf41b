"""Jobs that wait for other jobs: edges, results of children, and flows that take more than one step."""

from __future__ import annotations

import pytest

from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.core.edges import EdgeStatus, OnFailure
from windlass.core.job import EventType, JobRecord, JobRef
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Changed, Outcome
from windlass.core.states import JobState
from windlass_conformance.flow_support import OTHER, B, F, W, X, add, add_parent, edges, finish, on, relay_all
from windlass_conformance.harness import QUEUE, START_MS, Harness, settlement

NEEDS = "flows"


# --- the whole way ---------------------------------------------------------------------------------


@pytest.mark.feature("I1", "I2", "I5")
async def test_a_parent_is_blocked_until_its_last_child_is_done(harness: Harness) -> None:
    await add_parent(harness, "a", "b")
    assert await harness.state("p") is B
    assert await harness.claim() == []
    assert await finish(harness) == "a"
    assert await harness.state("p") is B
    assert await finish(harness) == "b"
    assert await harness.state("p") is W
    assert (await harness.take()).id == "p"


@pytest.mark.feature("I1", "K1")
async def test_a_blocked_job_tells_its_story(harness: Harness) -> None:
    answers = await add(harness, harness.new("p", depends_on=[on("a")]), harness.new("a"))
    assert [(one.outcome, one.state) for one in answers] == [(AddOutcome.QUEUED, B), (AddOutcome.QUEUED, W)]
    harness.pass_ms(50)
    await finish(harness, queue=QUEUE)
    told = [event.type for event in await harness.events() if event.job_id == "p"]
    assert told == [EventType.BLOCKED, EventType.PROMOTED]
    assert (await harness.get("p")).ready_ms == START_MS + 50


@pytest.mark.feature("I3")
async def test_the_value_of_a_child_is_kept_in_the_edge(harness: Harness) -> None:
    gone = StoredOptions(keep_completed=Keep(0, 0), result_ttl_ms=0)
    await add(harness, harness.new("p", depends_on=[on("a")]), harness.new("a", options=gone))
    await finish(harness, queue=QUEUE, result=b'"value"')
    harness.pass_ms(120_000)
    await harness.do(rq.Prune())
    assert await harness.find("a") is None
    (edge,) = await edges(harness)
    assert (edge.status, edge.value, edge.codec) == (EdgeStatus.DONE, b'"value"', "json")
    (without,) = await harness.do(fl.GetDependencies(refs=[JobRef(QUEUE, "p")], values=False))
    assert without.depends_on[0].value is None


@pytest.mark.feature("I5", "I7")
async def test_a_job_may_wait_for_one_that_is_already_there(harness: Harness) -> None:
    running = await harness.start("a")
    await harness.add("p", depends_on=[on("a")])
    assert await harness.state("p") is B
    await harness.settle(running, Outcome.COMPLETE)
    assert await harness.state("p") is W


@pytest.mark.feature("I5", "I7")
async def test_a_child_that_is_done_already_holds_nobody_up(harness: Harness) -> None:
    child = await harness.start("a")
    await harness.settle(child, Outcome.COMPLETE, result=b"7")
    added = await harness.add("p", depends_on=[on("a")])
    assert added.state is W
    assert [(edge.status, edge.value) for edge in await edges(harness)] == [(EdgeStatus.DONE, b"7")]
    assert (await harness.take()).id == "p"


@pytest.mark.feature("I9")
async def test_a_child_that_failed_already_counts_as_it_ended(harness: Harness) -> None:
    await harness.finish("a", Outcome.FAIL)
    for on_failure, state in ((OnFailure.FAIL, F), (OnFailure.IGNORE, W), (OnFailure.CONTINUE, W)):
        added = await harness.add(f"p-{on_failure}", depends_on=[on("a", on_failure=on_failure)])
        assert added.state is state
    assert (await harness.get("p-fail")).reason == "dependency_failed"


@pytest.mark.feature("I2")
async def test_a_parent_that_is_unblocked_joins_the_back_of_its_line(harness: Harness) -> None:
    await add(harness, harness.new("p", depends_on=[on("a", OTHER)]), harness.new("a", OTHER))
    await harness.add("q")
    await finish(harness)
    assert await harness.order() == ["q", "p"]


@pytest.mark.feature("I2", "A8")
async def test_a_parent_keeps_its_due_time(harness: Harness) -> None:
    await add(
        harness,
        harness.new("p", depends_on=[on("a")], delay_ms=1_000),
        harness.new("late", depends_on=[on("a")], delay_ms=10),
        harness.new("a"),
    )
    harness.pass_ms(100)
    assert (await harness.do(rq.Promote())).count == 0
    await finish(harness, queue=QUEUE)
    assert (await harness.state("p"), await harness.state("late")) == (JobState.SCHEDULED, W)
    job = await harness.get("p")
    assert (job.due_ms, job.ready_ms) == (START_MS + 1_000, START_MS + 1_000)
    assert (await harness.get("late")).ready_ms == START_MS + 100
    harness.pass_ms(900)
    assert sorted(await harness.order()) == ["late", "p"]


@pytest.mark.feature("I8")
async def test_a_diamond_runs_from_its_tip_to_its_end(harness: Harness) -> None:
    await add(
        harness,
        harness.new("end", depends_on=[on("left"), on("right")]),
        harness.new("left", depends_on=[on("tip")]),
        harness.new("right", depends_on=[on("tip")]),
        harness.new("tip"),
    )
    assert await harness.counts() == {B: 3, W: 1}
    assert await finish(harness, queue=QUEUE) == "tip"
    assert [await finish(harness, queue=QUEUE) for _ in range(3)] == ["left", "right", "end"]


@pytest.mark.feature("I8")
async def test_edges_are_seen_from_both_ends(harness: Harness) -> None:
    await add_parent(harness, "a", "b", on_failure=OnFailure.IGNORE)
    parent, child, none = await harness.do(
        fl.GetDependencies(refs=[JobRef(QUEUE, "p"), JobRef(OTHER, "a"), JobRef(QUEUE, "no-such-job")])
    )
    assert [edge.child.id for edge in parent.depends_on] == ["a", "b"]
    assert {edge.on_failure for edge in parent.depends_on} == {OnFailure.IGNORE}
    assert [edge.dependent for edge in child.dependents] == [JobRef(QUEUE, "p")]
    assert (none.depends_on, none.dependents) == ([], [])
    refs = [JobRef(QUEUE, "p"), JobRef(OTHER, "a")]
    parent, child = await harness.do(fl.GetDependencies(refs=refs, limit=0))
    assert [edge.child.id for edge in parent.depends_on] == ["a", "b"]
    assert (child.dependents, child.more) == ([], False)


@pytest.mark.feature("I8")
async def test_no_more_dependents_are_listed_than_asked_for(harness: Harness) -> None:
    await harness.add("a")
    for name in ("p", "q", "r"):
        await harness.add(name, depends_on=[on("a")])
    for limit, names, more in ((2, ["p", "q"], True), (3, ["p", "q", "r"], False)):
        (found,) = await harness.do(fl.GetDependencies(refs=[JobRef(QUEUE, "a")], limit=limit))
        assert ([edge.dependent.id for edge in found.dependents], found.more) == (names, more)


@pytest.mark.feature("I2")
async def test_the_settlement_that_unblocks_a_parent_may_claim_it(harness: Harness) -> None:
    await add(harness, harness.new("p", depends_on=[on("a")]), harness.new("a"))
    child = await harness.take()
    request = rq.Settle(items=[settlement(child, Outcome.COMPLETE)], claim=harness.claim_request())
    result = await harness.do(request)
    assert result.claimed is not None
    assert [job.id for job in result.claimed.jobs] == ["p"]


# --- people ----------------------------------------------------------------------------------------


@pytest.mark.feature("I2", "F1", "A24")
async def test_a_blocked_job_can_be_cancelled_changed_and_removed(harness: Harness) -> None:
    await add(harness, *(harness.new(name, depends_on=[on("a")]) for name in "xyz"), harness.new("a"))
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "x")]))
    result = await harness.do(rq.ChangeJob(ref=JobRef(QUEUE, "y"), priority=5, delay_ms=500, payload=b"[1]"))
    assert (result.status, result.state) == (Changed.OK, B)
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "z")]))
    await finish(harness, queue=QUEUE)
    assert await harness.state("x") is X
    changed = await harness.get("y")
    assert (changed.state, changed.due_ms, changed.priority, changed.payload) == (
        JobState.SCHEDULED,
        START_MS + 500,
        5,
        b"[1]",
    )
    assert await harness.find("z") is None
    (child,) = await harness.do(fl.GetDependencies(refs=[JobRef(QUEUE, "a")]))
    assert [edge.dependent.id for edge in child.dependents] == ["x", "y"]


@pytest.mark.feature("I2", "A28")
async def test_blocked_jobs_are_listed_and_counted(harness: Harness) -> None:
    await add_parent(harness, "a")
    assert await harness.counts() == {B: 1}
    page = await harness.do(rq.ListJobs(queue=QUEUE, states=[B]))
    assert [job.id for job in page.jobs] == ["p"]
    assert page.jobs[0].linked
    assert [info.counts["blocked"] for info in await harness.do(rq.ListQueues())] == [1, 0]


@pytest.mark.feature("I2", "A32")
async def test_a_removed_parent_takes_its_edges_along(harness: Harness) -> None:
    await add_parent(harness, "a")
    await harness.do(rq.Purge(queue=QUEUE, states=[B]))
    (child,) = await harness.do(fl.GetDependencies(refs=[JobRef(OTHER, "a")]))
    assert child.dependents == []
    await finish(harness)
    assert await harness.find("p") is None


# --- more than one step ----------------------------------------------------------------------------


async def add_many_dependents(harness: Harness, child: str) -> str:
    """Add more dependents of a job in another queue than one step notifies; return the last one."""
    for first in range(0, 1_010, 505):
        ids = range(first, first + 505)
        await add(harness, *(harness.new(f"p{n}", depends_on=[on(child, OTHER)]) for n in ids))
    return "p1009"


@pytest.mark.feature("I5")
async def test_a_child_with_thousands_of_dependents_tells_them_in_steps(harness: Harness) -> None:
    await harness.add("a", OTHER)
    for first in range(0, 2_500, 500):
        await add(
            harness, *(harness.new(f"p{n}", depends_on=[on("a", OTHER)]) for n in range(first, first + 500))
        )
    child = await harness.take(OTHER)
    result = await harness.do(rq.Settle(items=[settlement(child, Outcome.COMPLETE, result=b"1")]))
    assert result.relay
    told = (await harness.counts())[W]
    assert 0 <= told <= 1_000
    assert await relay_all(harness) == 2_500 - told
    assert await harness.counts() == {W: 2_500}
    assert await relay_all(harness) == 0
    first_five = [job.id for job in await harness.claim(5)]
    assert first_five == [f"p{n}" for n in range(5)]


@pytest.mark.feature("I9")
async def test_a_long_chain_falls_link_by_link(harness: Harness) -> None:
    jobs = [harness.new(f"j{n}", depends_on=[on(f"j{n - 1}")]) for n in range(1, 1_200)]
    await harness.do(rq.Add(jobs=[*jobs, harness.new("j0")]))
    await finish(harness, Outcome.FAIL, queue=QUEUE)
    await relay_all(harness, limit=50)
    assert await harness.counts() == {F: 1_200}


@pytest.mark.feature("I9", "I5")
async def test_what_is_yet_to_be_told_is_the_end_that_was(harness: Harness) -> None:
    """A child's id is used again before dependents are notified: they get the end of the first job."""
    await harness.add("a", OTHER)
    for first in range(0, 1_500, 500):
        ids = range(first, first + 500)
        await add(harness, *(harness.new(f"p{n}", depends_on=[on("a", OTHER)]) for n in ids))
    child = await harness.take(OTHER)
    await harness.settle(child, Outcome.FAIL)
    await harness.add("a", OTHER)
    await harness.add("new", depends_on=[on("a", OTHER)])
    await relay_all(harness)
    assert await harness.counts() == {F: 1_500, B: 1}
    await finish(harness)
    assert await harness.state("new") is W


@pytest.mark.feature("I5", "I9", "A25")
async def test_an_end_that_is_yet_to_be_told_does_not_reach_jobs_that_wait_for_the_next_run(
    harness: Harness,
) -> None:
    """A child is retried before all dependents are notified: those that wait since then get its next end."""
    await harness.add("a", OTHER)
    await harness.add("first", depends_on=[on("a", OTHER)])
    last = await add_many_dependents(harness, "a")
    await harness.settle(await harness.take(OTHER), Outcome.FAIL)
    assert (await harness.state("first"), await harness.state(last)) == (F, B)
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "first"), JobRef(OTHER, "a")]))
    await harness.add("late", depends_on=[on("a", OTHER)])
    waiting = ("first", "late", last)
    assert [await harness.state(one) for one in waiting] == [B, B, B]
    await relay_all(harness)
    assert [await harness.state(one) for one in waiting] == [B, B, F]
    await finish(harness)
    await relay_all(harness)
    assert [await harness.state(one) for one in waiting] == [W, W, F]


@pytest.mark.feature("I8", "A2")
async def test_what_a_job_waited_for_is_no_circle_for_the_job_that_takes_its_id(harness: Harness) -> None:
    """A dependent is not notified of the end yet, so the old job still counts when cycles are checked."""
    await add(harness, harness.new("low", OTHER), harness.new("mid", OTHER, depends_on=[on("low", OTHER)]))
    last = await add_many_dependents(harness, "mid")
    await harness.do(rq.CancelJobs(refs=[JobRef(OTHER, "mid")]))
    assert await harness.state(last) is B
    late = harness.new("late", OTHER, depends_on=[on(last)], parent=on("low", OTHER))
    answers = await add(harness, harness.new("mid", OTHER), late)
    assert [one.outcome for one in answers] == [AddOutcome.QUEUED, AddOutcome.QUEUED]


@pytest.mark.feature("I1", "I3")
async def test_a_thousand_children_in_ten_queues_are_one_flow(harness: Harness) -> None:
    queues = [f"q{n}" for n in range(10)]
    children = [harness.new(f"c{n}", queues[n % 10]) for n in range(1_000)]
    parent = harness.new("p", depends_on=[on(child.id, child.queue) for child in children])
    await add(harness, parent, *children)
    seen: list[JobRecord] = []
    for queue in queues:
        seen += (jobs := await harness.claim(100, queue))
        await harness.do(rq.Settle(items=[settlement(job, Outcome.COMPLETE, result=b"1") for job in jobs]))
        assert await harness.state("p") is (B if len(seen) < 1_000 else W)
    assert {edge.value for edge in await edges(harness)} == {b"1"}


@pytest.mark.feature("I5")
async def test_edges_and_ends_that_are_yet_to_be_told_survive_reopening(harness: Harness) -> None:
    await harness.add("a", OTHER)
    last = await add_many_dependents(harness, "a")
    await harness.reopen()
    child = await harness.take(OTHER)
    await harness.settle(child, Outcome.COMPLETE, result=b"1")
    await harness.reopen()
    await relay_all(harness)
    assert await harness.counts() == {W: 1_010}
    assert [edge.value for edge in await edges(harness, last)] == [b"1"]
