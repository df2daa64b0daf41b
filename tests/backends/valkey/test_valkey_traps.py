"""Traps of the streams design (b-000-*) that need a worker, many clients or a look behind the scenes.

The others stand beside what they are about: in ``test_store.py``, ``test_library.py``, ``test_failover.py``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.backends.valkey.servers import (
    DEPLOYMENTS,
    cluster_servers,
    redis_server,
    url_of,
    valkey_server,
)
from tests.backends.valkey.support import add, claim, complete, new, opened
from tests.unit.app.support import Tally, work_off, working
from windlass import Job, JobState, Queue, Windlass
from windlass.backend import flow_requests as fl
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.backend import stream_requests as sm
from windlass.backend.store import Store
from windlass.backends.valkey import ValkeyBackend, loader
from windlass.backends.valkey.client import ValkeyClient
from windlass.backends.valkey.functions import Functions
from windlass.core.edges import Dependency, OnFailure
from windlass.core.ids import new_id
from windlass.core.job import WORKER_KEPT_MS, JobRecord, JobRef, NewJob, WorkerInfo
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement
from windlass.core.rollups import KEPT_MS, MARKS_KEPT, MetricsRow
from windlass.core.schedule_rules import Schedule, ScheduleRecord
from windlass.testing.clock import ManualClock
from windlass.worker.duty import all_steps
from windlass.worker.scheduler import Scheduler

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")

START_MS = 1_750_000_000_000
DAY_MS = 86_400_000
#: The number of a library with smaller bounds than the real one.
_SMALLER = 99


@pytest.fixture(params=DEPLOYMENTS)
def deployment(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(deployment: str) -> str:
    return url_of(deployment)


@pytest.fixture
async def app(url: str) -> AsyncIterator[Windlass]:
    async with Windlass(f"{url}?namespace={new_id()}&timeout=30") as opened_app:
        yield opened_app


@pytest.fixture
def queue(app: Windlass) -> Queue:
    return app.queue("default")


async def _ok(job: Job[Any]) -> str:
    return "ok"


async def test_a_worker_holds_no_lease_for_which_it_has_no_free_slot(app: Windlass, queue: Queue) -> None:
    go, running = asyncio.Event(), Tally()

    async def handler(job: Job[Any]) -> None:
        with running:
            assert (await queue.get_job_counts())[JobState.ACTIVE] <= 3
            if not go.is_set():
                await go.wait()

    jobs = await queue.add_bulk([{"name": "n"} for _ in range(20)])
    async with working(app, "default", handler, concurrency=3):
        await asyncio.wait_for(_until_running(running, 3), 40)
        counts = await queue.get_job_counts()
        assert (counts[JobState.ACTIVE], counts[JobState.WAITING]) == (3, 17)
        go.set()
        for job in jobs:
            assert await job.wait_until_finished(timeout=40) is JobState.COMPLETED
    assert running.most == 3


async def _until_running(tally: Tally, number: int) -> None:
    while tally.most < number:  # noqa: ASYNC110 - the tally has no event
        await asyncio.sleep(0.01)


async def test_workers_come_and_go_without_leaving_consumers() -> None:
    server = valkey_server()
    async with opened(server.url, namespace := new_id()) as store:
        await add(store, *(new() for _ in range(30)), now_ms=START_MS)
        for number in range(30):
            worker = WorkerInfo(id=f"w{number}", queues=("q",))
            await store.execute(rq.Beat(worker=worker, now_ms=START_MS))
            jobs = await claim(store, limit=1, worker=worker.id, now_ms=START_MS)
            await complete(store, *jobs, now_ms=START_MS)
        with server.client() as admin:
            for stream in ("f", "v", "h"):
                key = f"windlass:{{{namespace}:q}}:{stream}"
                assert not admin.exists(key) or admin.xinfo_groups(key) == []
            await store.execute(rq.Prune(now_ms=START_MS + WORKER_KEPT_MS))
            assert not admin.exists(f"windlass:{{{namespace}}}:beats", f"windlass:{{{namespace}}}:workers")


async def test_the_most_urgent_job_is_picked_at_claim_time_whatever_was_promoted_before(
    url: str,
) -> None:
    async with opened(url, timeout=30) as store:
        await add(store, *(new(priority=1, delay_ms=5) for _ in range(900)), now_ms=START_MS)
        promoted = await store.execute(rq.Promote(now_ms=START_MS + 5))
        assert promoted.count == 900
        await add(store, new(job_id="urgent", priority=2), now_ms=START_MS + 6)
        await add(store, new(job_id="later", priority=9, delay_ms=10), now_ms=START_MS + 6)
        first = await claim(store, limit=2, now_ms=START_MS + 7)
        assert first[0].id == "urgent" and first[1].priority == 1
        line = [rq.ClaimQueue("q", 1, 1)]
        request = rq.Claim(worker="w", queues=line, limit=1, claim_id=new_id(), now_ms=START_MS + 8)
        assert (await store.execute(request)).next_due_in_ms == 8  # behind hundreds that wait
        assert [job.id for job in await claim(store, limit=1, now_ms=START_MS + 16)] == ["later"]


async def test_a_reader_of_events_that_keeps_its_place_misses_nothing(url: str) -> None:
    seen: list[int] = []
    async with opened(url, timeout=30) as store:
        for step in range(30):
            await add(store, *(new() for _ in range(step % 4 + 1)), now_ms=START_MS + step)
            jobs = await claim(store, limit=2, now_ms=START_MS + step)
            await complete(store, *jobs, now_ms=START_MS + step)
            if step % 3 == 0:
                request = rq.ReadEvents(queue="q", after=seen[-1] if seen else 0, limit=7)
                while events := (await store.execute(request)).events:
                    seen += [event.id for event in events]
                    request = rq.ReadEvents(queue="q", after=seen[-1], limit=7)
        assert seen == list(range(1, len(seen) + 1))
        for _ in range(11):
            await add(store, *(new(priority=1) for _ in range(1_000)), now_ms=START_MS + 99)
        page = await store.execute(rq.ReadEvents(queue="q", after=seen[-1]))
        assert page.oldest_id > seen[-1] + 1, "what the cap took is told, not skipped in silence"
        assert page.events[0].id == page.oldest_id


@pytest.mark.feature("D5")
async def test_a_result_outlives_the_wish_to_keep_no_records(app: Windlass, queue: Queue) -> None:
    """The results of children are in ``test_flows_valkey.py``."""
    job = await queue.add("n", keep_completed=0, result_ttl=600)
    await work_off(app, "default", _ok)
    while (await app.store.execute(rq.Prune())).more:
        pass
    assert await job.result(timeout=20) == "ok"
    assert await queue.get_result(job.id) == "ok"


async def test_a_worker_that_waits_already_takes_nothing_from_a_paused_queue(
    app: Windlass, queue: Queue
) -> None:
    async with working(app, ["default", "other"], _ok) as worker:
        await worker.wait_until_ready()
        await queue.pause()
        job = await queue.add("n")
        for _ in range(3):  # the worker wakes, claims and works elsewhere
            assert await (await app.queue("other").add("n")).result(timeout=40) == "ok"
        assert await job.get_state() is JobState.WAITING
        await queue.resume()
        assert await job.result(timeout=40) == "ok"


@pytest.mark.feature("B8", "B12")
async def test_every_worker_runs_the_scheduler_and_each_slot_makes_one_job_without_drift(
    url: str,
) -> None:
    clock, namespace = ManualClock(START_MS / 1_000), new_id()
    async with contextlib.AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(opened(url, namespace, timeout=30)) for _ in range(4)]
        await stores[0].execute(sq.PutSchedule(schedule=_ticking("tick"), now_ms=START_MS))
        schedulers = [Scheduler(Store(store, clock)) for store in stores]
        for late_s in (10.4, 9.9, 10.2):  # nobody looks at the very instant of a slot
            await clock.advance(late_s)
            added = await asyncio.gather(*(all_steps(scheduler) for scheduler in schedulers))
            assert sum(added) == 1
        page = await stores[0].execute(rq.ListJobs(queue="q", newest_first=False))
        assert [job.id for job in page.jobs] == [f"tick.{START_MS + n * 10_000}" for n in (1, 2, 3)]
        (stored,) = (await stores[1].execute(sq.ListSchedules(queue="q"))).schedules
        assert (stored.fired, stored.next_ms) == (3, START_MS + 40_000)


# --- b-000-13: a day later ------------------------------------------------------------------------------


@pytest.mark.feature("A13")
async def test_a_day_after_the_last_job_nothing_of_any_job_is_left(deployment: str) -> None:
    some = Keep(DAY_MS // 2, None)
    options = StoredOptions(keep_completed=some, keep_failed=some, keep_id_ms=DAY_MS, tags=("red",))
    now_ms = START_MS
    async with opened(url_of(deployment), namespace := new_id(), timeout=30) as store:
        for turn in range(6):
            fields = {"priority": turn - 2, "delay_ms": turn % 2 * 5, "options": options}
            deps = [Dependency(f"q{n % 3}", f"{turn}.{n}", OnFailure.IGNORE) for n in range(12)]
            first = new("q0", f"{turn}.all", options=options, depends_on=deps)
            rest = [new(f"q{n % 3}", f"{turn}.{n}", **fields) for n in range(12)]
            await add(store, first, *rest, now_ms=now_ms)
            now_ms += 10
            jobs = await claim(store, "q0", "q1", "q2", limit=10, now_ms=now_ms)
            await _everything(store, jobs, now_ms)
        end_ms = now_ms + 60_000
        while jobs := await claim(store, "q0", "q1", "q2", now_ms=end_ms):
            await complete(store, *jobs, now_ms=end_ms)
        seen = set(_kinds(deployment, namespace))
        assert not seen & {"b", "u", "x", "y", "L", "O"}, "nobody waits, nothing is untold"
        await _prune(store, end_ms + DAY_MS // 2)
        seen |= _kinds(deployment, namespace).keys()
        await _prune(store, end_ms + DAY_MS)
        left = _kinds(deployment, namespace)
        wanted = {"j", "h", "v", "e", "k", "D", "N", "S", "p", "q", "beats", "workers", "commands", "leaders"}
        assert wanted <= seen, "the test does too little"
        # What stays has a bound and belongs to queues: their names, lifetime counters and highest numbers.
        assert left.keys() == {"", "queues"}
        assert left[""] == 3 and left["queues"] == 1
        rows = await store.execute(rq.ReadCounters())
        assert sum(row.total for row in rows if row.outcome == "enqueued") == 78


@pytest.mark.feature("Q3", "B9")
async def test_roll_ups_marks_and_schedules_leave_nothing_when_their_time_is_over(
    deployment: str,
) -> None:
    minute_ms = START_MS - START_MS % 60_000
    async with opened(url_of(deployment), namespace := new_id(), timeout=30) as store:
        for number in range(3):
            record = _ticking(f"s{number}")
            await store.execute(sq.PutSchedule(schedule=record, now_ms=START_MS))
        rows = [MetricsRow(start_ms=minute_ms - n * 60_000, task=f"t{n % 7}") for n in range(1_500)]
        for at in range(0, 1_500, 500):
            request = mq.AddMetrics(queue="q", after=at, upto=at + 500, rows=rows[at : at + 500])
            assert await store.execute(request)
        assert {"minutes", "hours", "schedules"} <= _kinds(deployment, namespace).keys()
        for number in range(3):
            await store.execute(sq.RemoveSchedule(queue="q", name=f"s{number}"))
        late_ms = minute_ms + KEPT_MS["minute"] + 60_000
        pruned = await store.execute(rq.Prune(now_ms=late_ms))
        assert (pruned.metrics, pruned.more) == (1_000, True), "no step does more than a thousand things"
        pruned = await store.execute(rq.Prune(now_ms=late_ms))
        assert (pruned.metrics, pruned.more) == (500, False)
        assert _kinds(deployment, namespace).keys() == {"", "queues", "scheduled", "hours"}
        await _prune(store, minute_ms + KEPT_MS["hour"] + 3_600_000)
        assert _kinds(deployment, namespace).keys() == {"", "queues", "scheduled"}


def _ticking(name: str, queue: str = "q") -> ScheduleRecord:
    record = Schedule(every=10).record(queue, name, NewJob(queue=queue, id="", task="t", payload=b"{}"))
    record.next_ms = START_MS + 10_000
    return record


@pytest.mark.feature("Q3")
async def test_roll_ups_of_one_queue_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    source = loader.library_source(_SMALLER).replace("METRICS_KEPT = 500000", "METRICS_KEPT = 5")
    assert source != loader.library_source(_SMALLER)
    monkeypatch.setattr(loader, "library_source", lambda version: source)
    async with opened(valkey_server().url) as store:
        session = store._here().session
        await session.client.close()
        session.client = ValkeyClient(session.client.settings, version=_SMALLER)
        session.functions = Functions(session.client)
        minute_ms = START_MS - START_MS % 60_000
        rows = [MetricsRow(start_ms=minute_ms + n * 60_000, task="t") for n in range(9)]
        assert await store.execute(mq.AddMetrics(queue="q", after=0, upto=9, rows=rows))
        assert (await store.execute(rq.Prune(now_ms=START_MS))).metrics == 4
        assert (await store.execute(mq.ReadMetrics(queue="q"))).rows == rows[4:]


async def test_only_the_newest_marks_are_kept(url: str) -> None:
    async with opened(url, timeout=30) as store:
        marks = [mq.AddMark(id=f"m{n}", label="x", now_ms=START_MS + n) for n in range(MARKS_KEPT + 3)]
        await asyncio.gather(*(store.execute(mark) for mark in marks))
        kept = await store.execute(mq.ListMarks())
        assert [mark.id for mark in kept] == [f"m{n}" for n in range(3, MARKS_KEPT + 3)]


async def test_few_jobs_of_a_state_are_listed_at_once_however_many_others_there_are(url: str) -> None:
    async with opened(url, timeout=30) as store:
        await store.execute(
            rq.Add(
                jobs=[new(job_id=f"late{n}", delay_ms=9_000 - n) for n in range(5)]
                + [new(job_id=f"line{n}", priority=n - 2) for n in range(5)],
                now_ms=START_MS,
            )
        )
        await store.execute(
            rq.Add(jobs=[new("q", f"more{n}", delay_ms=99_000) for n in range(999)], now_ms=START_MS)
        )
        refs = [JobRef("q", f"more{n}") for n in range(999)]
        await store.execute(rq.CancelJobs(refs=refs, now_ms=START_MS))
        for states, name in (([JobState.SCHEDULED], "late"), ([JobState.WAITING], "line")):
            for newest_first in (True, False):
                found: list[str] = []
                cursor: str | None = None
                for limit in (3, 9):
                    request = rq.ListJobs(
                        queue="q", states=states, newest_first=newest_first, cursor=cursor, limit=limit
                    )
                    page = await store.execute(request)
                    found += [job.id for job in page.jobs]
                    cursor = page.cursor
                want = [f"{name}{n}" for n in range(5)]
                assert found == (want[::-1] if newest_first else want)
                assert cursor is None


@pytest.mark.feature("B9")
async def test_schedules_of_very_many_queues_are_listed_once_each_in_order(url: str) -> None:
    async with opened(url, timeout=30) as store:
        wanted = [(f"q{n % 120:03}", f"s{n // 120}") for n in range(300)]
        for queue, name in wanted:
            await store.execute(sq.PutSchedule(schedule=_ticking(name, queue), now_ms=START_MS))
        for limit in (7, 1_000):
            found: list[tuple[str, str]] = []
            cursor: str | None = None
            while True:
                page = await store.execute(sq.ListSchedules(cursor=cursor, limit=limit))
                assert len(page.schedules) <= limit
                found += [(record.queue, record.name) for record in page.schedules]
                cursor = page.cursor
                if cursor is None:
                    break
            assert found == sorted(wanted)
        due = await store.execute(sq.DueSchedules(limit=20, now_ms=START_MS + 10_000))
        assert [(record.queue, record.name) for record in due.schedules] == sorted(wanted)[:20]
        assert due.next_in_ms == 0


async def _prune(store: ValkeyBackend, now_ms: int) -> None:
    while (await store.execute(rq.Prune(now_ms=now_ms))).more:
        pass


async def _everything(store: ValkeyBackend, jobs: list[JobRecord], now_ms: int) -> None:
    """Every end that a job can have, and every note that can be made about it."""
    for job in jobs:
        ref = JobRef(job.queue, job.id)
        await store.execute(rq.Report(ref=ref, token=job.token, progress=b"1", logs=["x"], now_ms=now_ms))
        output = sm.AppendStream(ref=ref, token=job.token or "", first=1, chunks=[b"1"], now_ms=now_ms)
        await store.execute(output)
    ends = list(Outcome)
    items = [
        Settlement(
            queue=job.queue,
            id=job.id,
            token=job.token or "",
            outcome=ends[n % len(ends)],
            result=b"1",
            signal="go",
        )
        for n, job in enumerate(jobs[:8])
    ]
    await store.execute(rq.Settle(items=items, now_ms=now_ms))
    for item in items:
        if item.outcome is Outcome.SUSPEND:
            signal = fl.Signal(ref=JobRef(item.queue, item.id), name="go", data=b"1", now_ms=now_ms)
            await store.execute(signal)
    await store.execute(rq.Recover(now_ms=now_ms + 40_000))
    await store.execute(rq.Beat(worker=WorkerInfo(id="w"), now_ms=now_ms))
    await store.execute(rq.CommandWorker(worker="w", action="quiet", id="c", now_ms=now_ms))
    await store.execute(rq.Elect(role="r", holder="h", ttl_ms=5, now_ms=now_ms))


def _kinds(deployment: str, namespace: str) -> dict[str, int]:
    """How many keys of each kind (what follows the hash tag) the namespace has, on all servers."""
    single = {"valkey": valkey_server, "redis": redis_server}
    servers = [single[deployment]()] if deployment in single else cluster_servers().servers
    keys: set[str] = set()
    for server in servers:
        with server.client() as admin:
            if admin.role()[0] == b"master":
                keys |= {key.decode() for key in admin.keys(f"*{namespace}*")}
    kinds: dict[str, int] = {}
    for key in keys:
        kind = key.partition("}")[2].strip(":").partition(":")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds
