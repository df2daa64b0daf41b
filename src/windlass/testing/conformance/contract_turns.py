"""Fair turns between groups: no group can delay the others beyond an equal share of its queue."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from typing import NamedTuple

import pytest

from windlass.backend import limits as lrq
from windlass.backend import requests as rq
from windlass.core.job import JobRecord
from windlass.core.limits import GroupLimits, Rate
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.testing.conformance.harness import QUEUE, START_MS, Harness, settlement

NEEDS = "groups"

#: The size of the big test: jobs and groups. The full one (100,000 jobs of 1,000 groups) is for a store
#: that is quick enough: set WINDLASS_FAIR_JOBS=100000.
JOBS = int(os.environ.get("WINDLASS_FAIR_JOBS", "2000"))
GROUPS = max(JOBS // 100, 10)


async def add(harness: Harness, group: str | None, *ids: str, priority: int = 0) -> None:
    options = StoredOptions(group=group, max_stalls=9)
    await harness.add_many(*ids, options=options, priority=priority)


@pytest.mark.feature("H13")
async def test_groups_take_turns(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(4)))
    await add(harness, "one", "one0", "one1")
    await add(harness, "two", "two0")
    assert await harness.order() == ["big0", "one0", "two0", "big1", "one1", "big2", "big3"]


@pytest.mark.feature("H13")
async def test_a_group_that_comes_late_begins_at_the_turn_that_is_served(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(10)))
    await harness.claim(5)
    await add(harness, "late", "late0", "late1")
    assert await harness.order() == ["big5", "late0", "big6", "late1", "big7", "big8", "big9"]


@pytest.mark.feature("H13")
async def test_a_group_that_was_idle_has_saved_up_nothing(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(6)))
    for n in range(3):
        await add(harness, "small", f"small{n}")
        assert [job.id for job in await harness.claim(2)] == [f"big{n}", f"small{n}"]


@pytest.mark.feature("H13")
async def test_jobs_without_a_group_are_one_group(harness: Harness) -> None:
    await add(harness, "g", "g0", "g1", "g2")
    await add(harness, None, "plain0", "plain1")
    assert await harness.order() == ["g0", "plain0", "g1", "plain1", "g2"]


@pytest.mark.feature("H13", "A9")
async def test_priority_comes_before_turns_and_has_turns_of_its_own(harness: Harness) -> None:
    await add(harness, "big", *(f"low{n}" for n in range(3)))
    await add(harness, "big", *(f"high{n}" for n in range(3)), priority=1)
    await add(harness, "small", "other-high", priority=1)
    await add(harness, "small", "other-low")
    assert await harness.order() == [
        "high0",
        "other-high",
        "high1",
        "high2",
        "low0",
        "other-low",
        "low1",
        "low2",
    ]


@pytest.mark.feature("H13", "J12")
async def test_released_and_recovered_jobs_keep_their_turn(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(3)))
    await add(harness, "small", "small0")
    first = await harness.take()
    await harness.settle(first, Outcome.RELEASE)
    assert (await harness.take()).id == "big0"
    harness.pass_ms(60_000)
    await harness.do(rq.Recover())
    assert await harness.order() == ["big0", "small0", "big1", "big2"]


@pytest.mark.feature("H13")
async def test_a_retried_job_takes_the_next_turn_of_its_group(harness: Harness) -> None:
    await add(harness, "big", "big0", "big1")
    await add(harness, "small", "small0", "small1", "small2")
    job = await harness.take()
    await harness.settle(job, Outcome.RETRY)
    assert await harness.order() == ["small0", "big1", "small1", "small2", "big0"]


@pytest.mark.feature("H13")
async def test_cancelled_jobs_leave_no_empty_turns(harness: Harness) -> None:
    await add(harness, "big", *(f"big{n}" for n in range(5)))
    await add(harness, "small", "small0")
    refs = [(await harness.get(f"big{n}")).ref for n in range(5)]
    await harness.do(rq.CancelJobs(refs=refs))
    await add(harness, "big", "again")
    assert await harness.order() == ["small0", "again"]


# --- many groups, one of them huge ------------------------------------------------------------------


class Run(NamedTuple):
    """What happened: start times by group in order, and the start and end of every attempt by group."""

    starts: dict[str, list[int]]
    spans: dict[str, list[tuple[int, int]]]


async def _run(harness: Harness, sizes: dict[str, int], limits: GroupLimits | None) -> Run:
    """Add ``sizes`` jobs per group, the biggest groups first; run them with slots for a fifth of the groups.

    Every job takes 100 ms. Time goes on in steps of 20 ms, or to where the store says that there is something
    to do.
    """
    began = harness.now_ms
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="*", limits=limits))
    news = [
        harness.new(f"{began}-{group}-{n}", options=StoredOptions(group=group))
        for group in sorted(sizes, key=lambda group: -sizes[group])
        for n in range(sizes[group])
    ]
    for at in range(0, len(news), 1_000):
        await harness.do(rq.Add(jobs=news[at : at + 1_000]))
    slots = GROUPS // 5
    running: list[JobRecord] = []
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    left = len(news)
    while left:
        done = [job for job in running if (job.started_ms or 0) + 100 <= harness.now_ms]
        running = [job for job in running if (job.started_ms or 0) + 100 > harness.now_ms]
        for job in done:
            spans[job.options.group or ""].append(((job.started_ms or 0) - began, harness.now_ms - began))
        free = slots - len(running)
        request = rq.Settle(
            items=[settlement(job, Outcome.COMPLETE) for job in done],
            claim=harness.claim_request(rq.ClaimQueue(QUEUE, free, free), limit=free),
        )
        claimed = (await harness.do(request)).claimed
        assert claimed is not None
        running += claimed.jobs
        left -= len(done)
        if len(claimed.jobs) < free and not running:
            harness.pass_ms(claimed.next_due_in_ms or 20)
        else:
            harness.pass_ms(20)
    starts = {group: sorted(start for start, _ in each) for group, each in spans.items()}
    return Run(starts, spans)


def _check_limits(run: Run, concurrency: int, rate: int, per_ms: int) -> None:
    """Look at every moment and every window of every group."""
    for group, starts in run.starts.items():
        for one, later in zip(starts, itertools.islice(starts, rate, None), strict=False):
            assert later - one >= per_ms, f"{group}: more than {rate} starts in {per_ms} ms at {one}"
        changes = sorted(
            (at, step) for span in run.spans[group] for at, step in zip(span, (1, -1), strict=True)
        )
        busy = 0
        for at, step in changes:
            busy += step
            assert busy <= concurrency, f"{group}: {busy} at once at {at}"


@pytest.mark.feature("H6", "H7", "H13")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("limited", [False, True])
async def test_one_huge_group_delays_the_others_no_more_than_equal_shares_would(
    harness: Harness, limited: bool
) -> None:
    """Nine tenths of all jobs are of one group. Every job of any other starts no later than in a run in which
    all groups have the same share of all jobs."""
    limits = GroupLimits(concurrency=2, rate=Rate(5, 1_000)) if limited else None
    small = max(JOBS // 10 // (GROUPS - 1), 1)
    others = [f"g{n:04}" for n in range(GROUPS - 1)]
    huge = JOBS * 9 // 10 if not limited else min(JOBS * 9 // 10, 900)
    skewed = await _run(harness, {"huge": huge, **dict.fromkeys(others, small)}, limits)
    harness.pass_ms(1_000)  # the starts of the first run no longer count
    equal = await _run(harness, {"huge": JOBS // GROUPS, **dict.fromkeys(others, JOBS // GROUPS)}, limits)
    assert len(skewed.starts["huge"]) == huge
    for group in others:
        for one, same in zip(skewed.starts[group], equal.starts[group], strict=False):
            assert one <= same, f"{group} had to wait {one} ms, with equal shares {same} ms"
    if limited:
        _check_limits(skewed, 2, 5, 1_000)
        _check_limits(equal, 2, 5, 1_000)
    assert harness.now_ms > START_MS
