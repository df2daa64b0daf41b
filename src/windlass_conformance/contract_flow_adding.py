"""Adding jobs that wait for others: what is refused, adding again, and ids that come twice."""

from __future__ import annotations

import pytest

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.edges import EdgeStatus, OnFailure
from windlass.core.job import JobRef
from windlass.core.limit_rules import Bucket, GroupLimits
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Changed, Outcome
from windlass.errors import ConfigError, CycleError, DependencyError
from windlass_conformance.flow_support import (
    OTHER,
    B,
    C,
    F,
    W,
    add,
    add_parent,
    edges,
    finish,
    on,
    relay_all,
    statuses,
)
from windlass_conformance.harness import QUEUE, Harness

NEEDS = "flows"


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


# --- one id twice ----------------------------------------------------------------------------------


async def keep_out(harness: Harness, keeper: str) -> tuple[StoredOptions, AddOutcome]:
    """Options that allow one job at a time in a queue, and the outcome for a second job."""
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
    """A flow names an id twice. A held unique key or a full group keeps the first mention out."""
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
    """A job that its group can never admit fails at once; its second mention must not create it again."""
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
