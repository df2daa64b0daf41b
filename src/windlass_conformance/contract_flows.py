"""Jobs that wait for other jobs: edges, what a failed child does, cycles, the outbox."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import Dependency, Edge, EdgeStatus, OnFailure
from windlass.core.job import AttemptOutcome, ErrorInfo, EventType, JobRecord, JobRef, NewJob
from windlass.core.limit_rules import Bucket, GroupLimits
from windlass.core.option_values import Keep, StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Changed, Outcome, Settled
from windlass.core.states import JobState
from windlass.errors import ConfigError, CycleError, DependencyError
from windlass_conformance.harness import QUEUE, START_MS, Harness, settlement

NEEDS = "flows"

OTHER = "other"
B, W, A, C, F, X = (
    JobState.BLOCKED,
    JobState.WAITING,
    JobState.ACTIVE,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.CANCELLED,
)


def on(job_id: str, queue: str = QUEUE, on_failure: OnFailure = OnFailure.FAIL) -> Dependency:
    return Dependency(queue, job_id, on_failure)


async def add(harness: Harness, *jobs: NewJob) -> list[rq.Added]:
    return await harness.do(rq.Add(jobs=list(jobs)))


async def add_parent(harness: Harness, *children: str, on_failure: OnFailure = OnFailure.FAIL) -> None:
    """A job ``p`` of the default queue that waits for new jobs of another queue."""
    deps = [on(child, OTHER, on_failure) for child in children]
    await add(harness, harness.new("p", depends_on=deps), *(harness.new(child, OTHER) for child in children))


async def finish(
    harness: Harness, outcome: Outcome = Outcome.COMPLETE, queue: str = OTHER, **end: Any
) -> str:
    """Run the next job of a queue to its end; returns its id."""
    job = await harness.take(queue)
    assert await harness.settle(job, outcome, **end) is Settled.OK
    return job.id


async def edges(harness: Harness, job_id: str = "p", queue: str = QUEUE) -> list[Edge]:
    (found,) = await harness.do(fl.GetDependencies(refs=[JobRef(queue, job_id)]))
    return found.depends_on


async def statuses(harness: Harness, job_id: str = "p", queue: str = QUEUE) -> dict[str, EdgeStatus]:
    return {edge.child.id: edge.status for edge in await edges(harness, job_id, queue)}


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


@pytest.mark.feature("I2")
async def test_the_settlement_that_unblocks_a_parent_may_claim_it(harness: Harness) -> None:
    await add(harness, harness.new("p", depends_on=[on("a")]), harness.new("a"))
    child = await harness.take()
    request = rq.Settle(items=[settlement(child, Outcome.COMPLETE)], claim=harness.claim_request())
    result = await harness.do(request)
    assert result.claimed is not None
    assert [job.id for job in result.claimed.jobs] == ["p"]


# --- what a failed child does ----------------------------------------------------------------------

_BAD_ENDS = [Outcome.FAIL, Outcome.CANCEL]


@pytest.mark.feature("I9")
@pytest.mark.parametrize("outcome", _BAD_ENDS)
async def test_fail_ends_the_parent_and_all_above_it(harness: Harness, outcome: Outcome) -> None:
    await add_parent(harness, "a", "b")
    await harness.add("top", depends_on=[on("p")])
    await finish(harness, outcome, error=ErrorInfo(error_class="E", message="boom"), reason="why")
    job = await harness.get("p")
    assert (job.state, job.reason, job.attempts) == (F, "dependency_failed", 0)
    assert job.errors[-1].error_class == "DependencyFailed"
    assert "a of queue other" in job.errors[-1].message
    assert (await harness.get("top")).reason == "dependency_failed"
    rows = [row for row in await harness.history() if row.job_id == "p"]
    assert [(row.outcome, row.attempt) for row in rows] == [(AttemptOutcome.FAILED, 0)]
    assert await harness.state("b", OTHER) is W
    found = {edge.child.id: (edge.status, edge.reason) for edge in await edges(harness)}
    reason = "why" if outcome is Outcome.FAIL else "cancelled"
    assert found == {"a": (EdgeStatus.FAILED, reason), "b": (EdgeStatus.OPEN, "")}


@pytest.mark.feature("I9")
@pytest.mark.parametrize("outcome", _BAD_ENDS)
async def test_ignore_counts_as_done_without_a_value(harness: Harness, outcome: Outcome) -> None:
    await add_parent(harness, "a", "b", on_failure=OnFailure.IGNORE)
    await finish(harness, outcome, error=ErrorInfo(error_class="E", message="boom"))
    assert await harness.state("p") is B
    await finish(harness, result=b"2")
    assert await harness.state("p") is W
    found = [(edge.status, edge.value) for edge in await edges(harness)]
    assert found == [(EdgeStatus.IGNORED, None), (EdgeStatus.DONE, b"2")]


@pytest.mark.feature("I9")
@pytest.mark.parametrize("outcome", _BAD_ENDS)
async def test_continue_starts_the_parent_at_once(harness: Harness, outcome: Outcome) -> None:
    await add_parent(harness, "a", "b", on_failure=OnFailure.CONTINUE)
    await finish(harness, outcome)
    assert await harness.state("p") is W
    await finish(harness, result=b"2")
    parent = await harness.take()
    assert await harness.settle(parent, Outcome.COMPLETE) is Settled.OK
    assert await statuses(harness) == {"a": EdgeStatus.FAILED, "b": EdgeStatus.DONE}


@pytest.mark.feature("I9")
async def test_a_retry_of_the_child_is_no_failure(harness: Harness) -> None:
    await add_parent(harness, "a")
    await finish(harness, Outcome.RETRY, delay_ms=0)
    assert await harness.state("p") is B
    await finish(harness)
    assert await harness.state("p") is W


@pytest.mark.feature("I9", "F1")
async def test_a_child_cancelled_while_waiting_has_failed(harness: Harness) -> None:
    await add_parent(harness, "a")
    await harness.do(rq.CancelJobs(refs=[JobRef(OTHER, "a")]))
    assert (await harness.get("p")).reason == "dependency_failed"


@pytest.mark.feature("I9", "A24")
async def test_a_removed_or_purged_child_has_failed(harness: Harness) -> None:
    await add_parent(harness, "a", on_failure=OnFailure.IGNORE)
    await harness.do(rq.RemoveJobs(refs=[JobRef(OTHER, "a")]))
    assert await harness.state("p") is W
    assert [(edge.status, edge.reason) for edge in await edges(harness)] == [(EdgeStatus.IGNORED, "removed")]
    await add(harness, harness.new("q", depends_on=[on("b", OTHER)]), harness.new("b", OTHER))
    await harness.do(rq.Purge(queue=OTHER, states=[JobState.WAITING]))
    assert (await harness.get("q")).reason == "dependency_failed"


@pytest.mark.feature("I9", "A35")
async def test_an_expired_child_has_failed(harness: Harness) -> None:
    await add(harness, harness.new("p", depends_on=[on("a")]), harness.new("a", expires_in_ms=10))
    harness.pass_ms(20)
    assert await harness.claim() == []
    assert (await harness.get("p")).reason == "dependency_failed"
    assert (await edges(harness))[0].reason == "expired"


@pytest.mark.feature("I9")
async def test_a_child_that_stalls_too_often_has_failed(harness: Harness) -> None:
    child = harness.new("a", options=StoredOptions(max_stalls=0))
    await add(harness, harness.new("p", depends_on=[on("a")]), child)
    await harness.take()
    harness.pass_ms(60_000)
    await harness.do(rq.Recover())
    assert (await harness.get("p")).reason == "dependency_failed"


@pytest.mark.feature("I9")
async def test_a_child_that_is_retried_by_hand_does_not_undo_what_it_did(harness: Harness) -> None:
    await add_parent(harness, "a")
    await finish(harness, Outcome.FAIL)
    await harness.do(rq.RetryJobs(refs=[JobRef(OTHER, "a")]))
    await finish(harness)
    assert await harness.state("p") is F
    assert await statuses(harness) == {"a": EdgeStatus.FAILED}


@pytest.mark.feature("I9", "A25")
async def test_a_parent_that_is_retried_by_hand_waits_for_what_is_open(harness: Harness) -> None:
    await add_parent(harness, "a", "b")
    await finish(harness, Outcome.FAIL)
    (result,) = await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert (result.status, result.state) == (Changed.OK, B)
    await finish(harness)
    assert await harness.state("p") is W
    assert await statuses(harness) == {"a": EdgeStatus.IGNORED, "b": EdgeStatus.DONE}


@pytest.mark.feature("I9", "A25")
async def test_a_parent_that_is_retried_by_hand_runs_when_nothing_is_open(harness: Harness) -> None:
    await add_parent(harness, "a")
    await finish(harness, Outcome.FAIL)
    (result,) = await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert result.state is W
    assert (await harness.take()).id == "p"


@pytest.mark.feature("I9", "I3", "A25")
@pytest.mark.parametrize("on_failure", list(OnFailure))
async def test_a_parent_that_is_retried_by_hand_sees_the_value_of_a_child_that_completed_since(
    harness: Harness, on_failure: OnFailure
) -> None:
    child = harness.new("a", OTHER)
    await add(harness, harness.new("p", depends_on=[on("a", OTHER, on_failure)]), child)
    await finish(harness, Outcome.FAIL)
    if on_failure is not OnFailure.FAIL:
        await harness.settle(await harness.take(), Outcome.FAIL)
    assert await harness.state("p") is F
    await harness.do(rq.RetryJobs(refs=[JobRef(OTHER, "a")]))
    await finish(harness, result=b'"late"')
    (result,) = await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert (result.status, result.state) == (Changed.OK, W)
    (edge,) = await edges(harness)
    assert (edge.status, edge.value, edge.reason, edge.error) == (EdgeStatus.DONE, b'"late"', "", "")


@pytest.mark.feature("I9", "A25")
async def test_a_parent_that_is_retried_by_hand_waits_for_a_child_that_runs_again(harness: Harness) -> None:
    await add_parent(harness, "a", "b")
    await finish(harness, Outcome.FAIL)
    await finish(harness)
    assert await statuses(harness) == {"a": EdgeStatus.FAILED, "b": EdgeStatus.DONE}
    await harness.do(rq.RetryJobs(refs=[JobRef(OTHER, "a")]))
    (result,) = await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert (result.status, result.state) == (Changed.OK, B)
    assert await statuses(harness) == {"a": EdgeStatus.OPEN, "b": EdgeStatus.DONE}
    assert await harness.claim() == []
    await finish(harness, result=b"7")
    assert await harness.state("p") is W
    assert [edge.value for edge in await edges(harness)] == [b"7", None]


@pytest.mark.feature("I9", "A25")
@pytest.mark.parametrize("refs", [["p", "a"], ["a", "p"]])
@pytest.mark.parametrize("ended", [Outcome.FAIL, Outcome.COMPLETE])
async def test_a_parent_that_is_retried_together_with_its_child_waits_for_it_in_either_order(
    harness: Harness, refs: list[str], ended: Outcome
) -> None:
    await add_parent(harness, "a")
    await finish(harness, Outcome.FAIL)
    if ended is Outcome.COMPLETE:  # since the parent has failed because of it
        await harness.do(rq.RetryJobs(refs=[JobRef(OTHER, "a")]))
        await finish(harness, result=b"6")
    assert await harness.state("p") is F
    queues = {"p": QUEUE, "a": OTHER}
    answers = await harness.do(rq.RetryJobs(refs=[JobRef(queues[one], one) for one in refs]))
    assert [(answer.status, answer.state) for answer in answers] == [
        (Changed.OK, B if one == "p" else W) for one in refs
    ]
    assert await statuses(harness) == {"a": EdgeStatus.OPEN}
    assert await harness.claim() == []
    await finish(harness, result=b"7")
    assert await harness.state("p") is W
    assert [edge.value for edge in await edges(harness)] == [b"7"]


@pytest.mark.feature("I9", "A25")
async def test_a_child_that_fails_again_fails_the_parent_that_was_retried(harness: Harness) -> None:
    await add_parent(harness, "a")
    await finish(harness, Outcome.FAIL)
    await harness.do(rq.RetryJobs(refs=[JobRef(OTHER, "a")]))
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert await harness.state("p") is B
    await finish(harness, Outcome.FAIL)
    job = await harness.get("p")
    assert (job.state, job.reason) == (F, "dependency_failed")
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert await harness.state("p") is W
    assert await statuses(harness) == {"a": EdgeStatus.IGNORED}


@pytest.mark.feature("I9", "A25")
async def test_a_child_whose_record_is_gone_is_forgiven(harness: Harness) -> None:
    await add_parent(harness, "a")
    await finish(harness, Outcome.FAIL)
    await harness.do(rq.RemoveJobs(refs=[JobRef(OTHER, "a")]))
    (result,) = await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert result.state is W
    assert await statuses(harness) == {"a": EdgeStatus.IGNORED}


@pytest.mark.feature("I2", "A25")
async def test_a_child_that_is_to_run_again_can_be_hurried_and_a_blocked_parent_cannot(
    harness: Harness,
) -> None:
    await add_parent(harness, "a")
    await finish(harness, Outcome.RETRY, delay_ms=60_000)
    results = await harness.do(rq.RetryJobs(refs=[JobRef(OTHER, "a"), JobRef(QUEUE, "p")]))
    assert [(one.status, one.state) for one in results] == [(Changed.OK, W), (Changed.ILLEGAL, B)]
    assert await finish(harness) == "a"
    assert await harness.state("p") is W


@pytest.mark.feature("I9", "A25")
async def test_a_retry_that_is_refused_leaves_the_edges_of_the_parent_alone(harness: Harness) -> None:
    await add_parent(harness, "a", "b", on_failure=OnFailure.IGNORE)
    await finish(harness, Outcome.FAIL)
    await harness.do(rq.RetryJobs(refs=[JobRef(OTHER, "a")]))
    (result,) = await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert (result.status, result.state) == (Changed.ILLEGAL, B)
    assert await statuses(harness) == {"a": EdgeStatus.IGNORED, "b": EdgeStatus.OPEN}


@pytest.mark.feature("I9", "I2")
async def test_the_claim_of_a_settlement_tells_those_who_wait_for_what_it_ends(harness: Harness) -> None:
    await add(
        harness,
        harness.new("p", OTHER, depends_on=[on("a")]),
        harness.new("q", OTHER, depends_on=[on("late")]),
        harness.new("a"),
        harness.new("late", expires_in_ms=10),
    )
    child = await harness.take()
    harness.pass_ms(20)
    request = rq.Settle(items=[settlement(child, Outcome.COMPLETE)], claim=harness.claim_request())
    result = await harness.do(request)
    assert result.claimed is not None
    assert result.claimed.jobs == []
    assert (await harness.state("p", OTHER), await harness.state("q", OTHER)) == (W, F)


# --- what is refused -------------------------------------------------------------------------------


async def assert_empty(harness: Harness, *queues: str) -> None:
    for queue in queues or (QUEUE,):
        assert await harness.counts(queue) == {}
        assert await harness.events(queue) == []


@pytest.mark.feature("I8")
async def test_a_cycle_is_refused_and_nothing_is_added(harness: Harness) -> None:
    jobs = [
        harness.new("a", depends_on=[on("b")]),
        harness.new("b", depends_on=[on("c", OTHER)]),
        harness.new("c", OTHER, depends_on=[on("a")]),
        harness.new("d"),
    ]
    with pytest.raises(CycleError) as caught:
        await add(harness, *jobs)
    assert {"mail:a", "mail:b", "other:c"} == set(caught.value.path)
    await assert_empty(harness, QUEUE, OTHER)


@pytest.mark.feature("I8")
async def test_a_job_cannot_wait_for_itself(harness: Harness) -> None:
    with pytest.raises(CycleError):
        await harness.add("a", depends_on=[on("a")])
    with pytest.raises(CycleError):
        await harness.add("a", parent=on("a"))
    await assert_empty(harness)


@pytest.mark.feature("I8", "I10")
async def test_a_cycle_through_stored_edges_is_refused(harness: Harness) -> None:
    await add(harness, harness.new("low"), harness.new("mid", depends_on=[on("low")]))
    with pytest.raises(CycleError):
        await harness.add("new", depends_on=[on("mid")], parent=on("low"))
    assert await harness.find("new") is None
    await harness.add("new", depends_on=[on("low")], parent=on("mid"))
    assert await statuses(harness, "mid") == {"low": EdgeStatus.OPEN, "new": EdgeStatus.OPEN}


@pytest.mark.feature("I8")
async def test_an_unknown_dependency_is_refused_and_nothing_is_added(harness: Harness) -> None:
    with pytest.raises(DependencyError, match="ghost"):
        await add(harness, harness.new("a"), harness.new("p", depends_on=[on("a"), on("ghost", OTHER)]))
    with pytest.raises(DependencyError, match="ghost"):
        await add(harness, harness.new("a"), harness.new("b", parent=on("ghost")))
    await assert_empty(harness)


@pytest.mark.feature("I10")
async def test_a_parent_that_has_finished_is_refused(harness: Harness) -> None:
    await harness.finish("p")
    with pytest.raises(DependencyError, match="completed"):
        await harness.add("a", parent=on("p"))
    assert await harness.find("a") is None


@pytest.mark.feature("I1")
async def test_a_flow_has_a_bound(harness: Harness) -> None:
    jobs = [harness.new(f"j{n}") for n in range(10_001)]
    jobs[0].depends_on = [on("j1")]
    with pytest.raises(ConfigError, match="10000"):
        await harness.do(rq.Add(jobs=jobs))
    await assert_empty(harness)


# --- adding again ----------------------------------------------------------------------------------


@pytest.mark.feature("I1", "Z14")
async def test_a_flow_that_is_added_again_after_a_lost_reply_is_one_flow(harness: Harness) -> None:
    jobs = [
        harness.new("p", depends_on=[on("a", OTHER)], request_id="r1"),
        harness.new("a", OTHER, request_id="r2"),
    ]
    first = await add(harness, *jobs)
    assert await add(harness, *jobs) == first
    await finish(harness)
    again = await add(harness, *jobs)
    assert [(one.outcome, one.state) for one in again] == [(AddOutcome.QUEUED, W), (AddOutcome.QUEUED, C)]
    assert [edge.status for edge in await edges(harness)] == [EdgeStatus.DONE]


@pytest.mark.feature("I10", "Z14")
async def test_a_child_that_is_added_again_after_its_parent_ended_answers_the_same(harness: Harness) -> None:
    parent = await harness.start("p")
    child = harness.new("a", OTHER, parent=on("p"), request_id="r")
    (first,) = await add(harness, child)
    await harness.settle(parent, Outcome.COMPLETE)
    assert await add(harness, child) == [first]


@pytest.mark.feature("I1", "A2")
async def test_a_duplicate_gets_no_new_dependencies(harness: Harness) -> None:
    await harness.add("p")
    answers = await add(harness, harness.new("p", depends_on=[on("a")]), harness.new("a"))
    assert [one.outcome for one in answers] == [AddOutcome.DUPLICATE, AddOutcome.QUEUED]
    assert await harness.state("p") is W
    assert await edges(harness) == []


@pytest.mark.feature("I1", "A2")
async def test_an_id_that_is_used_again_starts_without_edges(harness: Harness) -> None:
    await add_parent(harness, "a")
    await finish(harness, Outcome.FAIL)
    await harness.add("p")
    assert await harness.state("p") is W
    assert await edges(harness) == []


@pytest.mark.feature("I9")
async def test_a_job_under_a_used_id_is_not_the_job_that_was_waited_for(harness: Harness) -> None:
    await add_parent(harness, "a", on_failure=OnFailure.IGNORE)
    await finish(harness, Outcome.FAIL)
    await harness.add("a", OTHER)
    await finish(harness, result=b"9")
    assert [(edge.status, edge.value) for edge in await edges(harness)] == [(EdgeStatus.IGNORED, None)]


@pytest.mark.feature("I1", "I10", "A2")
async def test_a_flow_under_the_ids_of_one_that_has_ended_waits_anew(harness: Harness) -> None:
    for _ in range(2):
        answers = await add(harness, harness.new("a", OTHER, parent=on("p")), harness.new("p"))
        assert [one.outcome for one in answers] == [AddOutcome.QUEUED, AddOutcome.QUEUED]
        assert await statuses(harness) == {"a": EdgeStatus.OPEN}
        await finish(harness, Outcome.FAIL)
        assert await harness.state("p") is F


@pytest.mark.feature("I1")
async def test_an_edge_that_is_named_more_than_once_is_what_it_was_at_first(harness: Harness) -> None:
    await add(
        harness,
        harness.new("a", OTHER, parent=on("p")),
        harness.new("p", depends_on=[on("a", OTHER)]),
        harness.new("q", depends_on=[on("a", OTHER), on("a", OTHER, OnFailure.IGNORE)]),
    )
    for parent in ("p", "q"):
        assert [edge.on_failure for edge in await edges(harness, parent)] == [OnFailure.FAIL]
    await finish(harness, Outcome.FAIL)
    assert await harness.counts() == {F: 2}


@pytest.mark.feature("I1", "A2")
async def test_an_id_that_is_kept_without_its_record_is_no_job_to_wait_for(harness: Harness) -> None:
    await harness.add("kept", options=StoredOptions(keep_id_ms=60_000))
    await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, "kept")]))
    with pytest.raises(DependencyError, match="kept"):
        await add(harness, harness.new("p", depends_on=[on("kept")]), harness.new("kept"))
    flow = [harness.new("p", depends_on=[on("a", OTHER)]), harness.new("a", OTHER), harness.new("kept")]
    answers = await add(harness, *flow)
    assert [(one.outcome, one.state) for one in answers] == [
        (AddOutcome.QUEUED, B),
        (AddOutcome.QUEUED, W),
        (AddOutcome.DUPLICATE, None),
    ]


# --- children of a running parent ------------------------------------------------------------------


@pytest.mark.feature("I10")
async def test_a_running_parent_waits_for_the_children_it_made(harness: Harness) -> None:
    parent = await harness.start("p")
    await harness.add("a", OTHER, parent=on("p"))
    assert await harness.state("p") is A
    harness.pass_ms(5)
    assert await harness.settle(parent, Outcome.WAIT, duration_ms=5) is Settled.OK
    blocked = await harness.get("p")
    assert (blocked.state, blocked.attempts, blocked.token) == (B, 0, None)
    assert await harness.settle(parent, Outcome.WAIT) is Settled.ALREADY
    rows = [row for row in await harness.history() if row.job_id == "p"]
    assert [(row.outcome, row.attempt, row.duration_ms) for row in rows] == [(AttemptOutcome.SNOOZED, 1, 5)]
    await finish(harness, result=b"1")
    again = await harness.take()
    assert (again.id, again.attempts, again.deliveries) == ("p", 0, 2)
    assert [(edge.status, edge.value) for edge in await edges(harness)] == [(EdgeStatus.DONE, b"1")]


@pytest.mark.feature("I10")
async def test_a_parent_that_waits_for_nothing_open_runs_again_at_once(harness: Harness) -> None:
    parent = await harness.start("p")
    await harness.settle(parent, Outcome.WAIT)
    assert await harness.state("p") is W
    again = await harness.take()
    await harness.add("a", OTHER, parent=on("p"))
    await finish(harness)
    await harness.settle(again, Outcome.WAIT)
    assert await harness.state("p") is W


@pytest.mark.feature("I10")
async def test_a_parent_that_waits_again_for_nothing_open_has_failed_an_attempt(harness: Harness) -> None:
    await harness.settle(await harness.start("p"), Outcome.WAIT, delay_ms=100)
    assert await harness.state("p") is W
    await harness.settle(await harness.take(), Outcome.WAIT, delay_ms=100, duration_ms=3)
    job = await harness.get("p")
    assert (job.state, job.attempts, job.due_ms) == (JobState.RETRYING, 1, harness.now_ms + 100)
    assert [(one.error_class, one.attempt) for one in job.errors] == [("NoOpenChildren", 1)]
    assert job.errors[0].message == "waits for children, but has none that are open"
    harness.pass_ms(100)
    await harness.settle(await harness.take(), Outcome.WAIT, reason="attempts")
    job = await harness.get("p")
    assert (job.state, job.attempts, job.reason) == (F, 2, "attempts")
    rows = [(row.outcome, row.attempt) for row in await harness.history()]
    assert rows == [
        (AttemptOutcome.SNOOZED, 1),
        (AttemptOutcome.RETRYING, 1),
        (AttemptOutcome.FAILED, 2),
    ]


@pytest.mark.feature("I10")
async def test_a_parent_whose_children_always_end_before_it_waits_loses_no_attempt(harness: Harness) -> None:
    parent = await harness.start("p")
    for step in range(3):
        await harness.add(f"a{step}", OTHER, parent=on("p"))
        await finish(harness)
        await harness.settle(parent, Outcome.WAIT, reason="attempts")
        parent = await harness.take()
        assert (parent.id, parent.attempts) == ("p", 0)
    await harness.settle(parent, Outcome.COMPLETE)
    done = await harness.get("p")
    assert (done.state, done.reason) == (C, "")


@pytest.mark.feature("I10", "F2")
async def test_a_parent_that_waits_again_for_nothing_open_can_be_cancelled(harness: Harness) -> None:
    await harness.settle(await harness.start("p"), Outcome.WAIT)
    parent = await harness.take()
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "p")], reason="enough"))
    await harness.settle(parent, Outcome.WAIT, reason="attempts")
    cancelled = await harness.get("p")
    assert (cancelled.state, cancelled.reason) == (X, "enough")


@pytest.mark.feature("I9", "I10")
async def test_a_child_that_failed_while_its_parent_ran_counts_when_the_parent_waits(
    harness: Harness,
) -> None:
    for on_failure, state in ((OnFailure.FAIL, F), (OnFailure.IGNORE, W), (OnFailure.CONTINUE, W)):
        name = f"p-{on_failure}"
        parent = await harness.start(name)
        await harness.add(f"a-{on_failure}", OTHER, parent=on(name, on_failure=on_failure))
        await finish(harness, Outcome.FAIL)
        assert await harness.state(name) is A
        await harness.settle(parent, Outcome.WAIT)
        assert await harness.state(name) is state
        await harness.do(rq.RemoveJobs(refs=[JobRef(QUEUE, name)]))


@pytest.mark.feature("I10")
async def test_a_parent_may_end_before_its_children(harness: Harness) -> None:
    parent = await harness.start("p")
    await harness.add("a", OTHER, parent=on("p"))
    await harness.settle(parent, Outcome.COMPLETE)
    await finish(harness, Outcome.FAIL)
    assert await harness.state("p") is C
    assert await statuses(harness) == {"a": EdgeStatus.FAILED}


@pytest.mark.feature("I10", "A15")
async def test_a_child_blocks_a_parent_that_has_not_started(harness: Harness) -> None:
    await harness.add("p")
    await harness.add("later", delay_ms=60_000)
    await harness.add("a", OTHER, parent=on("p"))
    await harness.add("b", OTHER, parent=on("later"))
    assert await harness.counts() == {B: 2}
    assert await harness.claim() == []
    await finish(harness)
    await finish(harness)
    assert (await harness.state("p"), await harness.state("later")) == (W, JobState.SCHEDULED)


@pytest.mark.feature("I10", "A15")
async def test_a_parent_of_the_same_add_waits_for_its_child(harness: Harness) -> None:
    await add(harness, harness.new("a", OTHER, parent=on("p")), harness.new("p"))
    assert await harness.state("p") is B
    await finish(harness)
    assert (await harness.take()).id == "p"


@pytest.mark.feature("I10", "A2")
async def test_a_parent_waits_for_a_child_that_was_there_before(harness: Harness) -> None:
    await harness.add("a", OTHER)
    parent = await harness.start("p")
    for _ in range(2):
        assert (await harness.add("a", OTHER, parent=on("p"))).outcome is AddOutcome.DUPLICATE
    await harness.settle(parent, Outcome.WAIT)
    assert await harness.state("p") is B
    await finish(harness)
    assert await harness.state("p") is W
    assert len(await edges(harness)) == 1


@pytest.mark.feature("I9", "I10", "A2")
async def test_a_child_that_has_ended_counts_at_once_for_a_parent_that_names_it(harness: Harness) -> None:
    kept = StoredOptions(keep_id_ms=60_000)
    for name, outcome in (("done", Outcome.COMPLETE), ("bad", Outcome.FAIL)):
        await harness.add(name, OTHER, options=kept)
        assert await finish(harness, outcome) == name
    await harness.add_many("p", "q")
    for child, parent in (("done", "p"), ("bad", "q")):
        answer = await harness.add(child, OTHER, options=kept, parent=on(parent))
        assert answer.outcome is AddOutcome.DUPLICATE
    assert await statuses(harness) == {"done": EdgeStatus.DONE}
    assert await statuses(harness, "q") == {"bad": EdgeStatus.FAILED}
    failed = await harness.get("q")
    assert (failed.state, failed.reason) == (F, "dependency_failed")
    assert await harness.order() == ["p"]


@pytest.mark.feature("I10", "F2")
async def test_a_cancelled_parent_does_not_wait(harness: Harness) -> None:
    parent = await harness.start("p")
    await harness.add("a", OTHER, parent=on("p"))
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "p")], reason="enough"))
    await harness.settle(parent, Outcome.WAIT)
    assert await harness.state("p") is X


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


# --- one id twice ----------------------------------------------------------------------------------


async def keep_out(harness: Harness, keeper: str) -> tuple[StoredOptions, AddOutcome]:
    """Options of which a queue takes one job at a time, and what a second one is answered."""
    if keeper == "key":
        unique = StoredUnique(key="k", mode=UniqueMode.UNTIL_DONE)
        return StoredOptions(unique=unique), AddOutcome.DUPLICATE
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="full", limits=GroupLimits(max_size=1)))
    return StoredOptions(group="full"), AddOutcome.REFUSED


@pytest.mark.feature("I1")
@pytest.mark.parametrize("place", [QUEUE, OTHER])
@pytest.mark.parametrize("keeper", ["key", "group"])
async def test_the_first_mention_that_is_not_kept_out_makes_the_job_with_its_edges(
    harness: Harness, keeper: str, place: str
) -> None:
    """A flow names an id twice; a unique key that is held, or a full group, keeps the first mention out."""
    kept_out, first = await keep_out(harness, keeper)
    await harness.add("holder", options=kept_out)
    answers = await add(
        harness,
        harness.new("p", options=kept_out),
        harness.new("p", depends_on=[on("a", place)], parent=on("q")),
        harness.new("p", depends_on=[on("b", place)]),
        harness.new("a", place),
        harness.new("b", place),
        harness.new("q"),
    )
    assert [one.outcome for one in answers[:3]] == [first, AddOutcome.QUEUED, AddOutcome.DUPLICATE]
    assert (answers[1].state, await harness.state("p")) == (B, B)
    assert await statuses(harness, "p") == {"a": EdgeStatus.OPEN}
    assert await statuses(harness, "q") == {"p": EdgeStatus.OPEN}
    assert await finish(harness, queue=QUEUE) == "holder"
    assert await finish(harness, queue=place) == "a"
    assert await harness.state("p") is W


@pytest.mark.feature("I1")
@pytest.mark.parametrize("keeper", ["key", "group"])
async def test_of_two_jobs_of_a_flow_the_first_is_taken_in_whatever_the_second_waits_for(
    harness: Harness, keeper: str
) -> None:
    kept_out, answer = await keep_out(harness, keeper)
    answers = await add(
        harness,
        harness.new("first", options=kept_out),
        harness.new("second", options=kept_out, depends_on=[on("a", OTHER)]),
        harness.new("a", OTHER),
    )
    assert [one.outcome for one in answers] == [AddOutcome.QUEUED, answer, AddOutcome.QUEUED]
    assert (await harness.state("first"), await harness.find("second")) == (W, None)


@pytest.mark.feature("I1")
@pytest.mark.parametrize("place", [QUEUE, OTHER])
async def test_a_flow_makes_an_id_once_also_when_that_job_ends_at_once(harness: Harness, place: str) -> None:
    """A job that its group can never admit fails at once; its second mention ran without its edges."""
    limits = GroupLimits(bucket=Bucket(1, 7))
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="small", limits=limits))
    answers = await add(
        harness,
        harness.new("p", options=StoredOptions(group="small", cost=2)),
        harness.new("a", place),
        harness.new("p", depends_on=[on("a", place)]),
    )
    assert [one.outcome for one in answers] == [AddOutcome.QUEUED, AddOutcome.QUEUED, AddOutcome.DUPLICATE]
    assert (await harness.state("p"), await edges(harness, "p")) == (F, [])
    assert (await harness.get("p")).reason == "cost_exceeds_capacity"


@pytest.mark.feature("I9", "I12")
async def test_jobs_that_wait_keep_their_order_when_they_are_retried_and_wait_again(harness: Harness) -> None:
    await harness.add("a", OTHER)
    for name, queue in (("w", QUEUE), ("x", OTHER), ("y", QUEUE), ("z", OTHER)):
        await add(harness, harness.new(name, queue, depends_on=[on("a", OTHER)]))
    await finish(harness, Outcome.FAIL)
    for name, queue in (("a", OTHER), ("y", QUEUE), ("z", OTHER), ("w", QUEUE)):
        await harness.do(rq.RetryJobs(refs=[JobRef(queue, name)]))
    (found,) = await harness.do(fl.GetDependencies(refs=[JobRef(OTHER, "a")]))
    assert [(edge.dependent.id, edge.status is EdgeStatus.OPEN) for edge in found.dependents] == [
        ("w", True),
        ("x", False),
        ("y", True),
        ("z", True),
    ]
    await finish(harness)
    await relay_all(harness)
    assert [job.id for job in await harness.claim(9)] == ["w", "y"], "notified in that order"
    assert [job.id for job in await harness.claim(9, OTHER)] == ["z"]


@pytest.mark.feature("I1")
async def test_a_flow_may_wait_for_an_id_whose_second_mention_is_made(harness: Harness) -> None:
    held = StoredOptions(unique=StoredUnique(key="k", mode=UniqueMode.UNTIL_DONE))
    await harness.add("holder", OTHER, options=held)
    await add(
        harness,
        harness.new("a", OTHER, options=held),
        harness.new("a", OTHER),
        harness.new("p", depends_on=[on("a", OTHER)]),
    )
    assert await harness.state("p") is B
    assert [await finish(harness) for _ in range(2)] == ["holder", "a"]
    assert await harness.state("p") is W


@pytest.mark.feature("A24")
@pytest.mark.parametrize("child_first", [True, False])
async def test_a_parent_can_be_removed_in_one_step_with_its_child(
    harness: Harness, child_first: bool
) -> None:
    await add_parent(harness, "a")
    refs = [JobRef(OTHER, "a"), JobRef(QUEUE, "p")]
    results = await harness.do(rq.RemoveJobs(refs=refs if child_first else refs[::-1]))
    assert [one.status for one in results] == [Changed.OK, Changed.OK]
    assert (await harness.counts(), await harness.counts(OTHER)) == ({}, {})
    await harness.add("p")
    assert await edges(harness) == []
    assert await harness.order() == ["p"]


# --- more than one step ----------------------------------------------------------------------------


async def relay_all(harness: Harness, limit: int = 1_000) -> int:
    total = 0
    while True:
        relayed = await harness.do(fl.Relay(limit=limit))
        total += relayed.count
        if not relayed.more:
            return total


async def add_many_dependents(harness: Harness, child: str) -> str:
    """Jobs that wait for one of another queue, more than one step notifies; the last of them."""
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


@pytest.mark.feature("I8", "A2")
async def test_what_a_job_waited_for_is_no_circle_for_the_job_that_takes_its_id(harness: Harness) -> None:
    """A dependent is not notified of the end yet, so the old job still counts in a circle."""
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
