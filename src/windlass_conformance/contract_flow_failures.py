"""What the failure of a child does to its dependents, and what a manual retry does."""

from __future__ import annotations

from collections import Counter

import pytest

from windlass.backend import requests as rq
from windlass.core.edges import EdgeStatus, OnFailure
from windlass.core.job import AttemptOutcome, ErrorInfo, JobRef
from windlass.core.options import StoredOptions
from windlass.core.outcome import Changed, Outcome, Settled
from windlass.core.states import JobState
from windlass_conformance.flow_support import OTHER, B, C, F, W, add, add_parent, edges, finish, on, statuses
from windlass_conformance.harness import QUEUE, Harness, settlement

NEEDS = "flows"


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
@pytest.mark.parametrize("refs", [["p", "a"], ["a", "p"]])
async def test_a_parent_that_is_retried_together_with_the_job_that_replaced_its_child_waits_for_that(
    harness: Harness, refs: list[str]
) -> None:
    await harness.add("a")
    await harness.add("p", depends_on=[on("a")])
    for _ in range(2):
        await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")]))
        await harness.add("a")
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")]))
    answers = await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, one) for one in refs]))
    assert [(answer.status, answer.state) for answer in answers] == [
        (Changed.OK, B if one == "p" else W) for one in refs
    ]
    assert await finish(harness, result=b"7", queue=QUEUE) == "a"
    assert [edge.value for edge in await edges(harness)] == [b"7"]


@pytest.mark.feature("I9", "A25")
@pytest.mark.parametrize("others", [[], [("x", OTHER)], [("x", QUEUE), ("y", OTHER)]])
@pytest.mark.parametrize("backwards", [False, True])
async def test_jobs_that_would_wait_for_each_other_in_a_circle_all_run_when_they_are_retried(
    harness: Harness, others: list[tuple[str, str]], backwards: bool
) -> None:
    """A child's id is used again for a job that waits for the parent, so each waits for the next."""
    await add_parent(harness, "a")
    await harness.do(rq.CancelJobs(refs=[JobRef(OTHER, "a")]))
    last = on("p")
    for name, queue in [*others, ("a", OTHER)]:
        await harness.add(name, queue, depends_on=[last])
        last = on(name, queue)
    refs = [JobRef(QUEUE, "p"), *(JobRef(queue, name) for name, queue in others), JobRef(OTHER, "a")]
    assert {await harness.state(ref.id, ref.queue) for ref in refs} == {F}
    answers = await harness.do(rq.RetryJobs(refs=refs[::-1] if backwards else refs))
    assert Counter(answer.state for answer in answers) == {W: 1, B: len(refs) - 1}
    for _ in refs:
        (job,) = await harness.claim(1, QUEUE) or await harness.claim(1, OTHER)
        assert await harness.settle(job, Outcome.COMPLETE) is Settled.OK
    assert {await harness.state(ref.id, ref.queue) for ref in refs} == {C}


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


@pytest.mark.feature("I9")
@pytest.mark.parametrize(
    ("on_failure", "status"),
    [(OnFailure.IGNORE, EdgeStatus.IGNORED), (OnFailure.CONTINUE, EdgeStatus.FAILED)],
)
async def test_a_retried_parent_runs_again_although_a_child_that_it_survived_has_still_failed(
    harness: Harness, on_failure: OnFailure, status: EdgeStatus
) -> None:
    await add_parent(harness, "a", on_failure=on_failure)
    await finish(harness, Outcome.FAIL)
    await finish(harness, Outcome.FAIL, QUEUE)
    (result,) = await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert (result.status, result.state) == (Changed.OK, W)
    assert await statuses(harness) == {"a": status}


@pytest.mark.feature("I9")
async def test_a_retried_parent_is_not_tied_to_a_child_that_it_ignores(harness: Harness) -> None:
    async def cancelled_child() -> None:
        await harness.add("a")
        await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")]))

    await cancelled_child()
    await harness.add("p", depends_on=[on("a")])
    await cancelled_child()
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert await statuses(harness) == {"a": EdgeStatus.IGNORED}
    assert (await harness.get("a")).linked is False


@pytest.mark.feature("I9")
async def test_a_retried_parent_is_tied_to_a_child_that_has_completed_since(harness: Harness) -> None:
    await harness.add("a")
    await harness.do(rq.CancelJobs(refs=[JobRef(QUEUE, "a")]))
    await harness.add("p", depends_on=[on("a")])
    await harness.add("a")
    await finish(harness, queue=QUEUE)
    await harness.do(rq.RetryJobs(refs=[JobRef(QUEUE, "p")]))
    assert await statuses(harness) == {"a": EdgeStatus.DONE}
    assert (await harness.get("a")).linked is True
