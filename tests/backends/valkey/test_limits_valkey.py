"""Limits, groups and unique keys: traps of the streams design (b-000-*), many clients, many groups."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from contextlib import suppress
from typing import Any

import pytest

from tests.backends.valkey.servers import DEPLOYMENTS, make_harness, url_of, valkey_server
from tests.backends.valkey.support import add, claim, complete, new, opened
from tests.backends.valkey.test_valkey_traps import DAY_MS, _kinds, _prune
from tests.unit.app.support import work_off
from windlass import Job, Windlass
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.backends.valkey import ValkeyBackend
from windlass.core.ids import new_id
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.limit_rules import Bucket, GroupLimits, Rate
from windlass.core.option_values import Keep, StoredUnique, UniqueMode
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, CancelResult, Outcome, Settlement
from windlass.core.states import DUE_LATER, FINISHED, JobState
from windlass.errors import OrderedGroupError
from windlass_conformance.fairness import check_fairness
from windlass_conformance.harness import Harness

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")

START_MS = 1_750_000_000_000


@pytest.fixture(params=DEPLOYMENTS)
def deployment(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def url(deployment: str) -> str:
    return url_of(deployment)


def _group(name: str, **options: Any) -> StoredOptions:
    return StoredOptions(group=name, **options)


async def _limit(store: ValkeyBackend, group: str = "*", **limits: Any) -> None:
    given = GroupLimits(**limits) if limits else None
    await store.execute(lrq.SetGroupLimits(queue="q", group=group, limits=given, now_ms=START_MS))


@pytest.mark.feature("H5")
async def test_no_gap_stops_an_ordered_group(url: str) -> None:
    """Whatever becomes of the jobs in between, the others of the key run one by one and in order."""
    chance, now_ms = random.Random(12), START_MS
    async with opened(url, timeout=30) as store:
        await _limit(store, ordered=True)
        jobs = [
            new(job_id=f"j{n:02}", options=_group("key"), expires_in_ms=5 if chance.random() < 0.1 else None)
            for n in range(60)
        ]
        await add(store, *jobs, now_ms=now_ms)
        for job in chance.sample(jobs, 10):
            await store.execute(rq.CancelJobs(refs=[JobRef("q", job.id)], now_ms=now_ms))
        for job in chance.sample(jobs, 10):
            await store.execute(rq.RemoveJobs(refs=[JobRef("q", job.id)], now_ms=now_ms))
        now_ms += 5
        ran: list[str] = []
        while found := await claim(store, now_ms=now_ms):
            (taken,) = found  # one at a time
            outcome = Outcome.RETRY if chance.random() < 0.2 else Outcome.COMPLETE
            delay_ms = 3 if outcome is Outcome.RETRY else 0
            token = taken.token or ""
            end = Settlement(queue="q", id=taken.id, token=token, outcome=outcome, delay_ms=delay_ms)
            await store.execute(rq.Settle(items=[end], now_ms=now_ms))
            if outcome is Outcome.RETRY:
                assert await claim(store, now_ms=now_ms) == [], "nothing overtakes it"
                now_ms += delay_ms
            else:
                ran.append(taken.id)
        left = await store.execute(rq.CountJobs(queue="q"))
        assert ran == sorted(ran) and len(ran) > 20
        assert sum(left[state] for state in (JobState.WAITING, JobState.PARKED, JobState.ACTIVE)) == 0


@pytest.mark.feature("H2", "H6")
@pytest.mark.parametrize("what", ["queue", "group"])
async def test_many_clients_that_claim_at_once_never_overshoot(url: str, what: str) -> None:
    """Room is looked for and taken in one step, and what a settlement frees is given out once."""
    async with contextlib.AsyncExitStack() as stack:
        namespace = new_id()
        stores = [await stack.enter_async_context(opened(url, namespace, timeout=30)) for _ in range(4)]
        if what == "queue":
            await stores[0].execute(lrq.SetQueueLimits(queue="q", fields=["concurrency"], concurrency=3))
        else:
            await stores[0].execute(
                lrq.SetGroupLimits(queue="q", group="g", limits=GroupLimits(concurrency=3))
            )
        options = StoredOptions() if what == "queue" else _group("g")
        await add(stores[0], *(new(job_id=f"j{n}", options=options) for n in range(60)))
        done = 0
        while done < 60:
            claims = (claim(store, limit=5, worker=f"w{n}") for n, store in enumerate(stores * 3))
            jobs = [job for found in await asyncio.gather(*claims) for job in found]
            assert len(jobs) == 3
            assert (await stores[1].execute(rq.CountJobs(queue="q")))[JobState.ACTIVE] == 3
            await asyncio.gather(*(complete(store, job) for store, job in zip(stores, jobs, strict=False)))
            done += len(jobs)


@pytest.mark.feature("D5")
async def test_a_debounced_job_always_runs_with_the_newest_data(url: str) -> None:
    """Scheduled, waiting or parked: the data is replaced in place. Active: one more job brings it."""
    debounced = StoredUnique(key="k", mode=UniqueMode.DEBOUNCE, ttl_ms=100)
    options = StoredOptions(unique=debounced, group="g")
    async with opened(url, timeout=30) as store:
        await add(store, new(job_id="first", payload=b"1", options=options), now_ms=START_MS)
        await store.execute(rq.Promote(now_ms=START_MS + 100))
        (waiting,) = await store.execute(rq.GetJobs(refs=[JobRef("q", "first")]))
        assert waiting is not None and waiting.state is JobState.WAITING
        (answer,) = await add(store, new(payload=b"2", options=options), now_ms=START_MS + 110)
        assert answer.outcome is AddOutcome.REPLACED
        await store.execute(lrq.PauseGroup(queue="q", group="g", paused=True, now_ms=START_MS + 110))
        await store.execute(rq.Promote(now_ms=START_MS + 210))
        (parked,) = await store.execute(rq.GetJobs(refs=[JobRef("q", "first")]))
        assert parked is not None and (parked.state, parked.payload) == (JobState.PARKED, b"2")
        (answer,) = await add(store, new(payload=b"3", options=options), now_ms=START_MS + 220)
        assert answer.outcome is AddOutcome.REPLACED
        await store.execute(lrq.PauseGroup(queue="q", group="g", paused=False, now_ms=START_MS + 220))
        (job,) = await claim(store, now_ms=START_MS + 320)
        assert (job.id, job.payload) == ("first", b"3")
        (answer,) = await add(store, new(job_id="last", payload=b"4", options=options), now_ms=START_MS + 330)
        assert answer.outcome is AddOutcome.QUEUED
        await complete(store, job, now_ms=START_MS + 340)
        (job,) = await claim(store, now_ms=START_MS + 430)
        assert (job.id, job.payload) == ("last", b"4")


@pytest.mark.feature("H7", "H8")
@pytest.mark.parametrize(
    "limits", [{"rate": Rate(5, 20)}, {"bucket": Bucket(5, 250)}], ids=["window", "bucket"]
)
async def test_a_short_window_is_used_up_and_wakes_no_more_than_it_has_room_for(
    url: str, limits: dict[str, Any]
) -> None:
    """Whoever asks again when the store says so gets every unit, and nobody is let in for nothing."""
    now_ms, started = START_MS, 0
    async with opened(url, timeout=30) as store:
        await _limit(store, **limits)
        await add(store, *(new(options=_group("g")) for _ in range(100)), now_ms=now_ms)
        while True:
            counts = await store.execute(rq.CountJobs(queue="q"))
            assert counts[JobState.WAITING] <= 5
            wanted = [rq.ClaimQueue("q", 50, 50)]
            request = rq.Claim(worker="w", queues=wanted, limit=50, claim_id=new_id(), now_ms=now_ms)
            answer = await store.execute(request)
            started += len(answer.jobs)
            if started == 100:
                break
            assert answer.next_due_in_ms
            now_ms += answer.next_due_in_ms
        # Five at once, then as they come: 5 per 20 ms.
        expected = 19 * 20 if "rate" in limits else 95 * 4
        assert now_ms - START_MS == expected


@pytest.mark.feature("H6")
async def test_what_a_group_counts_is_what_its_sets_hold() -> None:
    """The numbers of a group are a cache: whatever happened, they are those of its jobs."""
    chance, now_ms = random.Random(14), START_MS
    async with opened(valkey_server().url, namespace := new_id(), timeout=30) as store:
        for turn in range(60):
            limits: dict[str, Any] = chance.choice(
                [{}, {"concurrency": 2}, {"ordered": True}, {"rate": Rate(3, 20)}]
            )
            with suppress(OrderedGroupError):
                await _limit(store, chance.choice(["*", "g0"]), **limits)
            await add(store, *(_any_job(chance, f"{turn}.{n}") for n in range(5)), now_ms=now_ms)
            now_ms += chance.randrange(10)
            jobs = await claim(store, limit=3, lease_ms=15, now_ms=now_ms)
            ends = [
                Settlement(queue="q", id=job.id, token=job.token or "", **_any_end(chance)) for job in jobs
            ]
            await store.execute(rq.Settle(items=ends[:2], now_ms=now_ms))
            refs = [JobRef("q", f"{chance.randrange(turn + 1)}.{n}") for n in range(5)]
            chosen = chance.choice([rq.CancelJobs, rq.RemoveJobs, rq.RetryJobs])
            await store.execute(chosen(refs=refs, now_ms=now_ms))
            await store.execute(rq.Recover(now_ms=now_ms))
            await _check_counts(store, namespace, now_ms)


def _any_job(chance: random.Random, job_id: str) -> NewJob:
    number = chance.randrange(3)
    priority = chance.randrange(2) if number else 0  # so that g0 can be ordered
    options = _group(f"g{number}", max_stalls=1)
    return new(job_id=job_id, options=options, priority=priority, delay_ms=chance.choice([0, 0, 9]))


def _any_end(chance: random.Random) -> dict[str, Any]:
    outcomes = [Outcome.COMPLETE, Outcome.FAIL, Outcome.RETRY, Outcome.RELEASE, Outcome.SNOOZE]
    return {
        "outcome": chance.choice(outcomes),
        "delay_ms": chance.choice([0, 7]),
        "hold_ms": chance.choice([0, 5]),
    }


async def _check_counts(store: ValkeyBackend, namespace: str, now_ms: int) -> None:
    page = await store.execute(lrq.ListGroups(queue="q", now_ms=now_ms))
    jobs: list[JobRecord] = []
    cursor: str | None = None
    while True:
        listed = await store.execute(rq.ListJobs(queue="q", limit=500, cursor=cursor, now_ms=now_ms))
        jobs, cursor = jobs + listed.jobs, listed.cursor
        if cursor is None:
            break
    root = f"windlass:{{{namespace}:q}}"
    with valkey_server().client() as admin:
        for info in page.groups:
            its_jobs = [job for job in jobs if job.options.group == info.name]
            of_group = [job.state for job in its_jobs]
            ranked = any(job.priority and job.state not in FINISHED for job in its_jobs)
            assert (admin.zscore(f"{root}:R", info.name) is not None) is ranked
            assert admin.zcard(f"{root}:V:{info.name}") == sum(state in DUE_LATER for state in of_group)
            assert admin.zcard(f"{root}:W:{info.name}") == info.waiting == of_group.count(JobState.WAITING)
            assert admin.zcard(f"{root}:G:{info.name}") == info.parked == of_group.count(JobState.PARKED)
            assert info.active == of_group.count(JobState.ACTIVE)
            assert info.size == sum(state not in FINISHED for state in of_group)
        assert admin.zcard(f"{root}:Q") == sum(info.parked for info in page.groups)
        assert admin.zcard(f"{root}:w") == sum(info.waiting for info in page.groups)


# --- b-000-13 ---------------------------------------------------------------------------------------------


@pytest.mark.feature("A13", "D7")
async def test_groups_limits_and_keys_leave_nothing_behind(deployment: str) -> None:
    now_ms = START_MS
    some = Keep(DAY_MS // 2, None)
    async with opened(url_of(deployment), namespace := new_id(), timeout=30) as store:
        await store.execute(
            lrq.SetQueueLimits(queue="q", fields=["rate"], rate=Rate(1_000, 60_000), now_ms=now_ms)
        )
        await _limit(store, concurrency=1, rate=Rate(2, 1_000), bucket=Bucket(5, 1), max_size=50)
        await store.execute(lrq.Hold(queue="q", group="held", ms=50, now_ms=now_ms))
        for n in range(40):
            mode = list(UniqueMode)[n % len(UniqueMode)]
            unique = StoredUnique(key=f"k{n % 7}", mode=mode, ttl_ms=400) if n % 3 else None
            options = StoredOptions(
                group=f"g{n % 5}" if n % 4 else None,
                cost=1 + n % 6,
                unique=unique,
                keep_completed=some,
                keep_failed=some,
            )
            await add(store, new(job_id=f"j{n}", options=options, priority=n % 3), now_ms=now_ms)
        seen = set(_kinds(deployment, namespace))
        while True:
            jobs = await claim(store, now_ms=now_ms)
            seen |= _kinds(deployment, namespace).keys()
            await complete(store, *jobs, now_ms=now_ms)
            counts = await store.execute(rq.CountJobs(queue="q"))
            if not any(counts[state] for state in (JobState.WAITING, JobState.PARKED, JobState.SCHEDULED)):
                break
            now_ms += 500
        assert {"K", "Y", "E", "G", "A", "H", "Q", "W", "s"} <= seen, "the test does too little"
        await _prune(store, now_ms + DAY_MS)
        assert _kinds(deployment, namespace).keys() == {"", "queues"}
        found = await store.execute(lrq.GetLimits(queue="q"))  # settings stay until they are taken back
        assert found.every_group.max_size == 50


@pytest.mark.feature("H14")
async def test_a_queue_that_is_obliterated_forgets_its_groups_and_their_starts(deployment: str) -> None:
    async with opened(url_of(deployment), namespace := new_id(), timeout=30) as store:
        await _limit(store, rate=Rate(2, 60_000))
        await add(store, *(new(options=_group(f"g{n}")) for n in range(10)), now_ms=START_MS)
        await complete(store, *await claim(store, now_ms=START_MS), now_ms=START_MS)
        purge = rq.Purge(queue="q", states=list(JobState), forget=True, now_ms=START_MS)
        assert (await store.execute(purge)).count == 10
        assert not _kinds(deployment, namespace).keys() & {"G", "A", "H", "Q", "W", "s"}


# --- many groups ------------------------------------------------------------------------------------------


@pytest.mark.feature("H6")
async def test_a_new_limit_reaches_very_many_groups_in_bounded_steps() -> None:
    """One step looks at a thousand groups, the claims that follow at the rest; nobody is left parked."""
    async with opened(valkey_server().url, timeout=30) as store:
        await _limit(store, concurrency=1)
        for part in range(5):
            jobs = [new(options=_group(f"g{part}.{n // 2}")) for n in range(1_000)]
            await add(store, *jobs, now_ms=START_MS)
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.PARKED] == 2_500
        await _limit(store)
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.PARKED] == 1_500
        ran = 0
        while found := await claim(store, now_ms=START_MS):
            ran += len(found)
            await complete(store, *found, now_ms=START_MS)
        assert ran == 5_000


@pytest.mark.feature("H7")
async def test_very_many_idle_groups_are_forgotten_in_bounded_steps() -> None:
    async with opened(valkey_server().url, namespace := new_id(), timeout=30) as store:
        await _limit(store, rate=Rate(1, 1_000))
        for part in range(3):
            jobs = [new(options=_group(f"g{part}.{n}")) for n in range(500)]
            await add(store, *jobs, now_ms=START_MS)
            await complete(store, *await claim(store, now_ms=START_MS), now_ms=START_MS)
        assert (await store.execute(rq.Prune(now_ms=START_MS + 2_000))).more
        assert _kinds("valkey", namespace)["s"] == 500
        assert not (await store.execute(rq.Prune(now_ms=START_MS + 2_000))).more
        assert not _kinds("valkey", namespace).keys() & {"s", "G", "A"}


@pytest.mark.feature("H14")
async def test_very_many_groups_are_obliterated_in_bounded_steps() -> None:
    """One step deletes a thousand groups, until nothing of them is left."""
    async with opened(valkey_server().url, namespace := new_id(), timeout=30) as store:
        await _limit(store, rate=Rate(1, 60_000))
        for part in range(5):
            await add(store, *(new(options=_group(f"g{part}.{n}")) for n in range(500)), now_ms=START_MS)
            await complete(store, *await claim(store, now_ms=START_MS), now_ms=START_MS)
        await store.execute(rq.Purge(queue="q", states=list(JobState), limit=2_500, now_ms=START_MS))
        assert _kinds("valkey", namespace)["s"] == 2_500
        purge = rq.Purge(queue="q", states=list(JobState), forget=True, now_ms=START_MS)
        assert await store.execute(purge) == rq.Purged(0, [], more=True)
        assert _kinds("valkey", namespace)["s"] == 1_500
        async with Windlass(f"{valkey_server().url}?namespace={namespace}") as app:
            assert await app.queue("q").obliterate() == 0
        assert not _kinds("valkey", namespace).keys() & {"G", "A", "H", "Q", "R", "V", "W", "s"}


_GIVEN = os.environ.get("WINDLASS_FAIR_JOBS")


@pytest.mark.feature("H6", "H7", "H13")
@pytest.mark.timeout(0 if _GIVEN else 240)
@pytest.mark.parametrize(
    "limits", [None, GroupLimits(concurrency=2, rate=Rate(5, 1_000))], ids=["free", "limited"]
)
async def test_many_groups_of_which_one_is_huge(deployment: str, limits: GroupLimits | None) -> None:
    """``WINDLASS_FAIR_JOBS=100000`` runs it with 100,000 jobs of 1,000 groups."""
    jobs = int(_GIVEN or 1_000)
    harness: Harness
    async with make_harness(deployment) as harness:
        await check_fairness(harness, jobs, jobs // 100, limits)


@pytest.mark.feature("H2", "H3", "H6")
async def test_workers_of_a_cluster_keep_limits_of_queues_in_several_slots(deployment: str) -> None:
    """Real workers, the server's clock: three queues, each two at once; and a group of one."""
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    async with Windlass(f"{url_of(deployment)}?namespace={new_id()}&timeout=30") as app:

        async def busy(job: Job[Any]) -> None:
            for name in (job.queue_name, f"{job.queue_name}/{job.group}"):
                running[name] = running.get(name, 0) + 1
                most[name] = max(most.get(name, 0), running[name])
            await asyncio.sleep(0.002)
            for name in (job.queue_name, f"{job.queue_name}/{job.group}"):
                running[name] -= 1

        queues = [app.queue(f"q{n}") for n in range(3)]
        for queue in queues:
            await queue.set_global_concurrency(2)
            await queue.set_group_limits("one", concurrency=1)
            await queue.add_bulk([{"name": "t", "group": ("one", "two")[n % 2]} for n in range(20)])
        names = [queue.name for queue in queues]
        async with asyncio.timeout(60):
            await asyncio.gather(*(work_off(app, names, busy, concurrency=9) for _ in range(2)))
        for queue in queues:
            assert (await queue.get_job_counts())[JobState.COMPLETED] == 20
            assert (most[queue.name], most[f"{queue.name}/one"]) == (2, 1)


async def test_a_job_of_a_group_can_be_cancelled_wherever_it_stands(url: str) -> None:
    async with opened(url, timeout=30) as store:
        await _limit(store, concurrency=1)
        await add(store, *(new(job_id=f"j{n}", options=_group("g")) for n in range(3)), now_ms=START_MS)
        refs = [JobRef("q", f"j{n}") for n in (2, 0, 1)]
        answers = await store.execute(rq.CancelJobs(refs=refs, now_ms=START_MS))
        assert answers == [CancelResult.CANCELLED] * 3
        assert (await store.execute(lrq.ListGroups(queue="q"))).groups == []
