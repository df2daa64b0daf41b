"""Everything that a store keeps is there after it is opened again, also after it has compacted its files.

To compact its files, a store writes everything that it keeps once more. Data that it leaves out is lost.
"""

from __future__ import annotations

from typing import Any

import pytest

from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend import stream_requests as sm
from windlass.core.edges import Dependency
from windlass.core.job import JobRef, NewJob, WorkerInfo
from windlass.core.limit_rules import GroupLimits, Rate
from windlass.core.option_values import StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome
from windlass.core.rollups import MetricsRow
from windlass.core.schedule_rules import Rule, ScheduleRecord
from windlass.core.states import JobState
from windlass_conformance.harness import QUEUE, START_MS, Harness

#: More than the file store writes after a snapshot before it compacts its log.
MEGABYTES = 17
#: Requests that change nothing: more than the steps in which a store compacts its files.
ROUNDS = 150

LARGE, OUTPUT, GROUPED, KEYED, FLOW = "large", "output", "grouped", "keyed", "flow"
Looks = list[rq.Request[Any]]


async def write_much(harness: Harness) -> None:
    payload = b'"' + b"x" * (1 << 20) + b'"'
    jobs = [harness.new(f"large{n}", LARGE, payload=payload) for n in range(MEGABYTES)]
    await harness.do(rq.Add(jobs=jobs))
    for _ in range(ROUNDS):
        await harness.do(rq.RemoveJobs(refs=[JobRef(LARGE, "none")]))


async def large_jobs(harness: Harness) -> dict[str, int]:
    """The bytes of what ``write_much`` added, by job, in the order of their claims."""
    return {job.id: len(job.payload) for job in await harness.claim(MEGABYTES, LARGE)}


async def fill(harness: Harness) -> Looks:
    """Store something of every kind that all stores keep; return requests that read it."""
    await harness.finish("done", options=StoredOptions(max_attempts=3, tags=("t",)))
    await harness.finish("failed", Outcome.FAIL)
    running = await harness.start("running")
    for line in ("one", "two"):
        await harness.do(rq.Report(ref=running.ref, token=running.token, progress=b"1", logs=[line]))
    if not harness.backend.capabilities.fenced:  # what a client runs is given back when it closes
        await harness.settle(running, Outcome.COMPLETE)
    await harness.add("later", delay_ms=60_000)
    await harness.do(rq.Beat(worker=WorkerInfo(id="w1", started_ms=START_MS)))
    await harness.do(rq.Archive(name="lake", cursors={QUEUE: 1}))
    refs = [JobRef(QUEUE, job_id) for job_id in ("done", "failed", "running", "later")]
    return [
        rq.GetJobs(refs=refs),
        rq.GetLogs(ref=running.ref),
        rq.CountJobs(queue=QUEUE),
        rq.ReadEvents(queue=QUEUE),
        rq.ReadHistory(queue=QUEUE),
        rq.ReadCounters(queue=QUEUE),
        rq.ListWorkers(),
        rq.ListArchivers(),
    ]


async def fill_streams(harness: Harness) -> Looks:
    job = await harness.start("a", OUTPUT)
    await harness.do(sm.AppendStream(ref=job.ref, token=job.token or "", first=1, chunks=[b"1", b"2"]))
    return [sm.ReadStream(ref=job.ref)]


async def fill_keys(harness: Harness) -> Looks:
    unique = StoredUnique(key="k", mode=UniqueMode.UNTIL_DONE)
    await harness.add("a", KEYED, options=StoredOptions(unique=unique))
    return [lrq.ListUniqueKeys(queue=KEYED), rq.GetJobs(refs=[JobRef(KEYED, "a")])]


async def fill_groups(harness: Harness) -> Looks:
    """A job that started, one that is parked, and the limits that park it."""
    limits = GroupLimits(rate=Rate(1, 60_000))
    await harness.do(lrq.SetGroupLimits(queue=GROUPED, group="g", limits=limits))
    await harness.do(lrq.SetQueueLimits(queue=GROUPED, fields=["rate"], rate=Rate(5, 60_000)))
    await harness.add_many("a", "b", queue=GROUPED, options=StoredOptions(group="g"))
    assert [job.id for job in await harness.claim(2, GROUPED)] == ["a"]
    return [lrq.GetLimits(queue=GROUPED), lrq.ListGroups(queue=GROUPED), rq.CountJobs(queue=GROUPED)]


async def fill_flows(harness: Harness) -> Looks:
    """Two jobs that wait for the same one."""
    depends_on = [Dependency(FLOW, "child")]
    parents = [harness.new(name, FLOW, depends_on=depends_on) for name in ("second", "first")]
    await harness.do(rq.Add(jobs=[*parents, harness.new("child", FLOW)]))
    return [fl.GetDependencies(refs=[JobRef(FLOW, name) for name in ("child", "first", "second")])]


async def fill_schedules(harness: Harness) -> Looks:
    template = NewJob(queue=QUEUE, id="", task="beat", payload=b"[]")
    rule, next_ms = Rule(every_ms=60_000), START_MS + 60_000
    record = ScheduleRecord(queue=QUEUE, name="tick", template=template, rule=rule, next_ms=next_ms)
    await harness.do(sq.PutSchedule(schedule=record))
    return [sq.ListSchedules(queue=QUEUE)]


async def fill_metrics(harness: Harness) -> Looks:
    row = MetricsRow(start_ms=START_MS - START_MS % 60_000, task="send", outcomes={"completed": 1})
    assert await harness.do(mq.AddMetrics(queue=QUEUE, after=0, upto=1, rows=[row]))
    await harness.do(mq.AddMark(id="m", label="deployed"))
    return [
        *(mq.ReadMetrics(queue=QUEUE, step="minute"), mq.ReadMetrics(queue=QUEUE, step="hour")),
        *(mq.MetricsProgress(queue=QUEUE), mq.ListMarks()),
    ]


#: By the capability that they need.
PARTS = {
    "streams": fill_streams,
    "unique": fill_keys,
    "groups": fill_groups,
    "flows": fill_flows,
    "schedules": fill_schedules,
    "metrics": fill_metrics,
}


@pytest.mark.feature("L1")
async def test_all_that_is_kept_is_there_after_much_was_written_and_the_store_is_reopened(
    harness: Harness,
) -> None:
    capabilities = harness.backend.capabilities
    looks = await fill(harness)
    for capability, part in PARTS.items():
        if getattr(capabilities, capability):
            looks += await part(harness)
    before = [await harness.do(look) for look in looks]
    await write_much(harness)
    await harness.reopen()
    assert [await harness.do(look) for look in looks] == before
    assert await large_jobs(harness) == {f"large{n}": (1 << 20) + 2 for n in range(MEGABYTES)}
    if capabilities.flows:
        await harness.settle(await harness.take(FLOW), Outcome.COMPLETE)
        assert await harness.counts(FLOW) == {JobState.WAITING: 2, JobState.COMPLETED: 1}
        assert await harness.order(FLOW) == ["second", "first"]
