"""A check of fair turns and of group limits with many groups, one of them huge."""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass_conformance.harness import QUEUE, Harness, settlement

if TYPE_CHECKING:
    from windlass.core.job import JobRecord
    from windlass.core.limit_rules import GroupLimits

#: How long every job runs.
RUN_MS = 100


class Run(NamedTuple):
    """Start times in order, and start and end of every attempt, by group."""

    starts: dict[str, list[int]]
    spans: dict[str, list[tuple[int, int]]]


async def check_fairness(harness: Harness, jobs: int, groups: int, limits: GroupLimits | None) -> None:
    """Nine tenths of all jobs are of one group. Every job of any other starts no later than in a run in which
    all groups have the same share of all jobs; and no group ever exceeds its limits."""
    share = jobs // groups
    others = [f"g{n:04}" for n in range(groups - 1)]
    small = max(jobs // 10 // len(others), 1)
    huge = jobs - small * len(others)
    skewed = await _run(harness, {"huge": huge, **dict.fromkeys(others, small)}, limits)
    harness.pass_ms(60_000)  # the starts of the first run no longer count
    equal = await _run(harness, {"huge": share, **dict.fromkeys(others, share)}, limits)
    assert (len(skewed.starts["huge"]), len(equal.starts["huge"])) == (huge, share)
    for group in others:
        for one, same in zip(skewed.starts[group], equal.starts[group], strict=False):
            assert one <= same, f"{group} had to wait {one} ms, with equal shares {same} ms"
    if limits is not None:
        check_limits(skewed, limits)
        check_limits(equal, limits)


async def _run(harness: Harness, sizes: dict[str, int], limits: GroupLimits | None) -> Run:
    """Add ``sizes`` jobs per group, the biggest first, and run them with slots for a fifth of the groups.

    Time continues to where a job ends, or to where the store says that there is something to do.
    """
    began, spans = harness.now_ms, defaultdict(list)
    await _add(harness, sizes, limits)
    slots, left = max(len(sizes) // 5, 1), sum(sizes.values())
    running: list[JobRecord] = []
    while left:
        done = [job for job in running if _end(job) <= harness.now_ms]
        running = [job for job in running if _end(job) > harness.now_ms]
        for job in done:
            spans[job.options.group or ""].append((_end(job) - RUN_MS - began, harness.now_ms - began))
        free = slots - len(running)
        request = rq.Settle(
            items=[settlement(job, Outcome.COMPLETE) for job in done],
            claim=harness.claim_request(rq.ClaimQueue(QUEUE, free, free), limit=free),
        )
        claimed = (await harness.do(request)).claimed
        assert claimed is not None
        running += claimed.jobs
        left -= len(done)
        waits = [_end(job) - harness.now_ms for job in running]
        if len(claimed.jobs) < free and claimed.next_due_in_ms is not None:
            waits.append(claimed.next_due_in_ms)
        assert waits or not left, "jobs are left, and nothing will ever happen"
        harness.pass_ms(min(waits, default=0))
    return Run({group: sorted(start for start, _ in each) for group, each in spans.items()}, spans)


async def _add(harness: Harness, sizes: dict[str, int], limits: GroupLimits | None) -> None:
    await harness.do(lrq.SetGroupLimits(queue=QUEUE, group="*", limits=limits))
    news = [
        harness.new(f"{harness.now_ms}-{group}-{n}", options=StoredOptions(group=group))
        for group in sorted(sizes, key=lambda group: -sizes[group])
        for n in range(sizes[group])
    ]
    for at in range(0, len(news), 1_000):
        await harness.do(rq.Add(jobs=news[at : at + 1_000]))


def _end(job: JobRecord) -> int:
    return (job.started_ms or 0) + RUN_MS


def check_limits(run: Run, limits: GroupLimits) -> None:
    """Check concurrency and rate of every group at every time."""
    assert limits.rate is not None
    assert limits.concurrency is not None
    for group, starts in run.starts.items():
        for one, later in zip(starts, itertools.islice(starts, limits.rate.max, None), strict=False):
            assert later - one >= limits.rate.per_ms, f"{group}: too many starts in the window at {one}"
        changes = sorted((at, by) for span in run.spans[group] for at, by in zip(span, (1, -1), strict=True))
        busy = 0
        for at, by in changes:
            busy += by
            assert busy <= limits.concurrency, f"{group}: {busy} at once at {at}"
