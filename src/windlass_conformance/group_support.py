"""Shared by the contract tests of groups."""

from __future__ import annotations

from typing import Any

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.job import JobRecord
from windlass.core.limit_rules import GroupLimits
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, Harness

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
    """Claim all jobs that may start; return their ids, and when to claim again."""
    answer = await harness.do(harness.claim_request(limit=count))
    return [job.id for job in answer.jobs], answer.next_due_in_ms


async def states(harness: Harness, *ids: str) -> list[JobState]:
    return [await harness.state(job_id) for job_id in ids]


async def settle(
    harness: Harness, job: JobRecord, outcome: Outcome = Outcome.COMPLETE, **fields: Any
) -> None:
    await harness.settle(job, outcome, **fields)
