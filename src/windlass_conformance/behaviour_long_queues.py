"""A queue with more jobs than a store sorts in one step: lists, searches and cleaning stay correct."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.backend import requests as rq
from windlass.core.edges import Dependency
from windlass.core.job import ErrorInfo
from windlass.core.options import StoredOptions
from windlass.core.order import Sort
from windlass.core.outcome import Outcome
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, START_MS, Harness

#: Each of the first jobs has a different priority, the first one the highest.
PRIORITIES = 40
STEP = 1_000
LATER_MS = 3_600_000


def half(harness: Harness) -> int:
    """The number of waiting jobs, which is also that of jobs that are due later."""
    return harness.long_queue // 2


async def fill(harness: Harness) -> None:
    """Add jobs ``w0``, ``w1``, ... that wait and ``d0``, ``d1``, ... that become due, in this order."""
    highest = PRIORITIES if harness.backend.capabilities.exact_priority else 0
    for start in range(0, half(harness), STEP):
        numbers = range(start, min(start + STEP, half(harness)))
        waiting = [harness.new(f"w{n}", priority=max(highest - n, 0)) for n in numbers]
        later = [harness.new(f"d{n}", delay_ms=LATER_MS + n) for n in numbers]
        await harness.do(rq.Add(jobs=waiting + later))
        harness.pass_ms(1)


async def listed(harness: Harness, **asked: Any) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    cursor = None
    while True:
        page = await harness.do(rq.ListJobs(**{"queue": QUEUE, "limit": 4_000, **asked}, cursor=cursor))
        found += [job.id for job in page.jobs]
        cursor = page.cursor
        if cursor is None:
            return found


@pytest.mark.feature("A28", "A30", "A32")
async def test_a_very_long_queue_is_listed_searched_and_purged_like_a_short_one(harness: Harness) -> None:
    await fill(harness)
    await list_all(harness)
    await find_one(harness)
    await find_failures(harness)
    (info,) = await harness.do(rq.ListQueues())
    assert info.oldest_ready_ms == START_MS
    for state, first in ((JobState.WAITING, "w2"), (JobState.SCHEDULED, "d0")):
        purged = await harness.do(rq.Purge(queue=QUEUE, states=[state], limit=10))
        assert len(purged.ids) == 10 and purged.ids[0] == first
    if harness.backend.capabilities.flows:
        await find_flows(harness)


async def list_all(harness: Harness) -> None:
    up = await listed(harness, newest_first=False)
    assert len(up) == len(set(up)) == 2 * half(harness)
    assert [name for name in up if name[0] == "w"] == [f"w{n}" for n in range(half(harness))]
    page = await harness.do(rq.ListJobs(queue=QUEUE, limit=STEP))
    assert [job.id for job in page.jobs] == up[: -STEP - 1 : -1]


async def find_one(harness: Harness) -> None:
    """Find a job by its task, among all jobs and among jobs that are due later."""
    await harness.add("needle", task="find.me", delay_ms=2 * LATER_MS)
    for newest_first in (True, False):
        assert await listed(harness, task="find.*", newest_first=newest_first) == ["needle"]
        due = await listed(harness, task="find.*", newest_first=newest_first, sort=Sort.DUE)
        assert due == ["needle"]
    page = await harness.do(rq.ListJobs(queue=QUEUE, limit=STEP, sort=Sort.DUE, newest_first=False))
    assert [job.id for job in page.jobs] == [f"d{n}" for n in range(STEP)]


async def find_failures(harness: Harness) -> None:
    """Find jobs by their last error."""
    failed = [await harness.take() for _ in range(2)]
    error = ErrorInfo(error_class="E", fingerprint="f", message="Card 77 is empty")
    for job in failed:
        await harness.settle(job, Outcome.FAIL, error=error)
    assert await listed(harness, error_class="E", newest_first=False) == ["w0", "w1"]
    assert await listed(harness, fingerprint="f", limit=1) == ["w1", "w0"]
    assert await listed(harness, fingerprint="other") == []


async def find_flows(harness: Harness) -> None:
    """Find the roots of flows."""
    for number in range(2):
        child = await harness.take()
        options = StoredOptions(root=f"{QUEUE}/top{number}")
        await harness.add(f"top{number}", options=options, depends_on=[Dependency(QUEUE, child.id)])
    assert await listed(harness, tops=True, newest_first=False) == ["top0", "top1"]
    assert await listed(harness, tops=True, limit=1) == ["top1", "top0"]
