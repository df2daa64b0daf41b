"""Children that a running parent adds, and how it waits for them."""

from __future__ import annotations

import pytest

from windlass.backend import requests as rq
from windlass.core.edges import EdgeStatus, OnFailure
from windlass.core.job import AttemptOutcome, JobRef
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome, Settled
from windlass.core.states import JobState
from windlass_conformance.flow_support import OTHER, A, B, C, F, W, X, add, edges, finish, on, statuses
from windlass_conformance.harness import QUEUE, Harness

NEEDS = "flows"


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
