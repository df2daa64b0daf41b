"""Shared by the contract tests of flows: states, and functions for the steps of a flow."""

from __future__ import annotations

from typing import Any

from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.core.edges import Dependency, Edge, EdgeStatus, OnFailure
from windlass.core.job import JobRef, NewJob
from windlass.core.outcome import Outcome, Settled
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, Harness

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
    """Add a job ``p`` to the default queue that waits for new jobs of another queue."""
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


async def relay_all(harness: Harness, limit: int = 1_000) -> int:
    total = 0
    while True:
        relayed = await harness.do(fl.Relay(limit=limit))
        total += relayed.count
        if not relayed.more:
            return total
