"""An idle worker is given the next job as it is added; whatever becomes of the message, no job is lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.backends.valkey.servers import DEPLOYMENTS, url_of
from tests.backends.valkey.support import add, cancel_tasks, complete, new, opened
from tests.faults.kit import until
from windlass import Windlass, Worker
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.backends.valkey import ValkeyBackend, handoff, sent_records
from windlass.backends.valkey.subscriptions import SubscriptionListener
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import new_id
from windlass.core.job import JobRecord, JobRef
from windlass.core.outcome import AddOutcome, Settled
from windlass.core.states import JobState
from windlass.speedups import valkey as connections
from windlass.speedups.valkey import PlainConnection, QuickConnection

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")


@pytest.fixture(params=DEPLOYMENTS)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param)


class Seated:
    """A worker without handlers: it listens, claims when it is told to, and has nothing to do."""

    def __init__(self, store: ValkeyBackend, worker: str) -> None:
        self.store = store
        self.worker = worker
        self.listener: SubscriptionListener = store.listen(["ready:q", f"worker:{worker}"])

    async def claim(self, *, idle: bool = True, limit: int = 5) -> rq.Claimed:
        queues = [rq.ClaimQueue("q", limit, limit)]
        request = rq.Claim(worker=self.worker, queues=queues, limit=limit, claim_id=new_id(), idle=idle)
        return await self.store.execute(request)

    async def hint(self) -> frozenset[str]:
        return await self.listener.wait(20_000)


@contextlib.asynccontextmanager
async def seated(url: str, *workers: str) -> AsyncIterator[tuple[ValkeyBackend, list[Seated]]]:
    """A client that adds, and workers with clients of their own that have taken a seat."""
    namespace = new_id()
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for worker in workers:
            store = await stack.enter_async_context(opened(url, namespace, timeout=30))
            found.append(Seated(store, worker))
            assert (await found[-1].claim()).jobs == []
        yield await stack.enter_async_context(opened(url, namespace, timeout=30)), found


async def _get(store: ValkeyBackend, job_id: str) -> JobRecord:
    record = (await store.execute(rq.GetJobs(refs=[JobRef("q", job_id)])))[0]
    assert record is not None
    return record


def _calls(store: ValkeyBackend) -> Counter[str]:
    """Counts the functions that a client calls from now on."""
    calls: Counter[str] = Counter()
    functions = store._here().session.functions
    inner = functions._call

    async def call(name: str, *arguments: Any) -> Any:
        calls[name] += 1
        return await inner(name, *arguments)

    functions._call = call  # type: ignore[assignment]
    return calls


async def test_a_job_that_is_added_while_a_worker_waits_is_leased_in_the_same_step(url: str) -> None:
    async with seated(url, "w") as (store, (worker,)):
        calls = _calls(worker.store)
        await add(store, new(job_id="one"))
        stored = await _get(store, "one")
        assert (stored.state, stored.worker, stored.deliveries) == (JobState.ACTIVE, "w", 1)
        counts = await store.execute(rq.CountJobs(queue="q"))
        assert {state: count for state, count in counts.items() if count} == {JobState.ACTIVE: 1}
        assert [one.id for one in (await store.execute(rq.ListJobs(queue="q"))).jobs] == ["one"]
        assert await worker.hint() == {"ready:q"}
        claimed = await worker.claim()
        assert not calls, "the answer was here already"
        (job,) = claimed.jobs
        assert (job.id, job.token, job.payload, job.started_ms) == (
            "one",
            stored.token,
            b"{}",
            stored.started_ms,
        )
        assert 0 <= claimed.held_ms < 20_000
        assert await complete(store, job) == [Settled.OK]
        events = [event.type for event in (await store.execute(rq.ReadEvents(queue="q"))).events]
        assert events == ["enqueued", "started", "drained", "completed"]


@pytest.mark.parametrize("begins", [True, False])
async def test_a_worker_may_begin_a_job_as_it_comes_or_leave_it_to_its_next_claim(
    url: str, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff, "CLAIM_TIMEOUT_S", 20)
    async with seated(url, "w") as (store, (worker,)):
        shown: list[JobRecord] = []
        seen = asyncio.Event()

        def begin(record: JobRecord, since_ms: float) -> bool:
            assert since_ms <= SYSTEM_CLOCK.monotonic_ms()
            shown.append(record)
            seen.set()
            return begins

        worker.listener.on_offer(begin)
        await add(store, new(job_id="one"))
        await asyncio.wait_for(seen.wait(), 20)
        (job,) = shown
        assert (job.id, job.token) == ("one", (await _get(store, "one")).token)
        assert [one.id for one in (await worker.claim()).jobs] == ([] if begins else ["one"])
        assert await complete(store, job) == [Settled.OK]
        assert len(shown) == 1


async def test_a_seat_is_good_for_one_job_and_every_worker_is_given_its_own(url: str) -> None:
    async with seated(url, "w1", "w2") as (store, workers):
        for job_id in ("a", "b", "c"):
            await add(store, new(job_id=job_id))
        found = [(await _get(store, job_id)) for job_id in ("a", "b", "c")]
        assert [(job.state, job.worker) for job in found] == [
            (JobState.ACTIVE, "w1"),
            (JobState.ACTIVE, "w2"),
            (JobState.WAITING, None),
        ]
        for worker, job_id in zip(workers, ("a", "b"), strict=True):
            await worker.hint()
            assert [job.id for job in (await worker.claim()).jobs] == [job_id]
        assert [job.id for job in (await workers[0].claim()).jobs] == ["c"]


@pytest.mark.feature("L7")
async def test_a_lost_message_costs_nothing_but_the_next_claim(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with seated(url, "w") as (store, (worker,)):
        lost: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()
        place = worker.store._here().session.handoffs
        heard = place.received

        def lose(name: str, news: bytes) -> bool:
            lost.put_nowait((name, news))
            return False

        monkeypatch.setattr(place, "received", lose)
        await add(store, new(job_id="one"))
        late = await asyncio.wait_for(lost.get(), 20)
        (job,) = (await worker.claim()).jobs
        assert (job.id, job.deliveries) == ("one", 1)
        assert heard(*late) is False, "it is known already"
        assert (await worker.claim(idle=False)).jobs == []
        assert await complete(store, job) == [Settled.OK]


@pytest.mark.feature("J24")
@pytest.mark.parametrize("kind", [PlainConnection, QuickConnection])
async def test_a_job_that_its_worker_cannot_read_fails_alone_and_ends_no_subscription(
    url: str, monkeypatch: pytest.MonkeyPatch, kind: type[PlainConnection] | type[QuickConnection]
) -> None:
    """As an earlier release is given a job with options that it does not know."""
    monkeypatch.setattr(connections, "_kind", kind)
    unknown = b"\x00\x00\x00\x02\xc1\xc1"
    async with seated(url, "w") as (store, (worker,)):
        lines = dict(worker.store._here().subscriber._connections)
        share = sent_records._share
        monkeypatch.setattr(sent_records, "_share", lambda new: share(new)._replace(plain_meta=unknown))
        await add(store, new(job_id="bad"))
        monkeypatch.setattr(sent_records, "_share", share)
        assert await worker.hint() == {"ready:q"}
        assert (await worker.claim()).jobs == []
        bad = await _get(store, "bad")
        assert (bad.state, bad.reason) == (JobState.FAILED, "bad_record")
        await add(store, new(job_id="good"))
        assert await worker.hint() == {"ready:q"}
        (job,) = (await worker.claim()).jobs
        assert job.id == "good"
        assert worker.store._here().subscriber._connections == lines


async def test_a_message_that_crosses_a_claim_gives_the_job_once(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with seated(url, "w") as (store, (worker,)):
        session = worker.store._here().session
        heard, work = session.handoffs.received, session.functions.work
        under_way: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue()

        def keep(name: str, news: bytes) -> bool:
            under_way.put_nowait((name, news))
            return False

        async def crossed(*arguments: Any) -> Any:
            turn = await work(*arguments)
            assert heard(*await under_way.get())  # before the answer, which brings the same job
            return turn

        monkeypatch.setattr(session.handoffs, "received", keep)
        monkeypatch.setattr(session.functions, "work", crossed)
        await add(store, new(job_id="one"))
        assert (await worker.claim()).jobs == []
        assert [job.id for job in (await worker.claim()).jobs] == ["one"]


async def test_a_worker_that_is_gone_is_given_nothing(url: str) -> None:
    async with seated(url, "w1", "w2") as (store, (gone, worker)):
        subscriber = gone.store._here().subscriber
        await subscriber.close()  # its connection is cut; its seat is still there
        channel = store._keys.channel("to:q:w1")
        client = store._here().session.client

        async def is_gone() -> bool:
            return not (await client.command(channel, "PUBSUB", "SHARDNUMSUB", channel))[1]

        await until(is_gone, "the server to notice")
        await add(store, new(job_id="one"))
        assert (await _get(store, "one")).worker == "w2"
        await worker.hint()
        assert len((await worker.claim(idle=False)).jobs) == 1
        await add(store, new(job_id="two"))
        assert (await _get(store, "two")).state is JobState.WAITING


@pytest.mark.parametrize("case", ["paused", "limit", "rate", "group", "before", "many", "special", "delayed"])
async def test_jobs_that_may_not_start_at_once_wait_as_always(url: str, case: str) -> None:
    async with seated(url, "w") as (store, (worker,)):
        jobs = [new(job_id="one")]
        match case:
            case "paused":
                await store.execute(rq.PauseQueue(queue="q", paused=True))
            case "limit":
                await store.execute(lrq.SetQueueLimits(queue="q", fields=["concurrency"], concurrency=1))
            case "rate":
                await store.execute(lrq.Hold(queue="q", ms=60_000))
            case "group":
                await store.execute(lrq.PauseGroup(queue="q", group="g", paused=True))
            case "before":
                await add(store, new(job_id="zero", priority=1))
            case "many":
                jobs.append(new(job_id="two"))
            case "special":
                jobs = [new(job_id="one", priority=1)]
            case "delayed":
                jobs = [new(job_id="one", delay_ms=60_000)]
        await add(store, *jobs)
        expected = JobState.SCHEDULED if case == "delayed" else JobState.WAITING
        assert (await _get(store, "one")).state is expected
        assert await worker.hint() == {"ready:q"}


async def test_ids_that_are_kept_are_refused_and_others_are_given_as_always(url: str) -> None:
    async with seated(url, "w") as (store, _):
        root = store._keys.queue("q")
        await store._here().session.client.command(root, "ZADD", f"{root}:k", "9000000000000", "kept")
        refused = await store.execute(rq.Add(jobs=[new(job_id="kept")]))
        assert [one.outcome for one in refused] == [AddOutcome.DUPLICATE]
        assert (await store.execute(rq.GetJobs(refs=[JobRef("q", "kept")]))) == [None]
        await add(store, new(job_id="one"))
        assert (await _get(store, "one")).worker == "w"


async def test_a_worker_that_wants_nothing_is_given_nothing(url: str) -> None:
    async with seated(url, "w") as (store, (worker,)):
        calls = _calls(worker.store)
        worker.listener.decline()
        await until(lambda: calls["work"] == 1, "the seat to be left")
        await worker.store._here().session.handoffs.close()
        await add(store, new(job_id="one"))
        assert (await _get(store, "one")).deliveries == 0


async def test_a_job_that_is_not_wanted_any_more_goes_back_to_its_place(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoff, "CLAIM_TIMEOUT_S", 0.01)
    async with seated(url, "w") as (store, (worker,)):
        await add(store, new(job_id="one"))
        await add(store, new(job_id="two"))

        async def is_back() -> bool:
            return (await _get(store, "one")).state is JobState.WAITING

        await until(is_back, "the job to be given back")
        jobs = (await worker.claim()).jobs
        assert [(job.id, job.deliveries, job.attempts) for job in jobs] == [("one", 2, 0), ("two", 1, 0)]
        assert await complete(store, *jobs) == [Settled.OK] * 2


async def test_closing_gives_back_what_was_not_started(url: str) -> None:
    async with seated(url, "w") as (store, (worker,)):
        await add(store, new(job_id="one"))
        await worker.hint()
        await worker.store.close()
        record = await _get(store, "one")
        assert (record.state, record.attempts) == (JobState.WAITING, 0)


@pytest.mark.feature("L7")
async def test_what_a_reconciling_worker_does_not_know_of_goes_back(url: str) -> None:
    async with seated(url, "w") as (store, (worker,)):
        await add(store, new(job_id="one"))
        await worker.hint()
        assert await worker.store.execute(rq.Reconcile(worker="w", held=[])) == 1
        jobs = (await worker.claim()).jobs
        assert [(job.id, job.deliveries) for job in jobs] == [("one", 2)]
        assert await complete(store, *jobs) == [Settled.OK]


async def test_seats_that_the_server_forgot_are_taken_again(url: str) -> None:
    async with seated(url, "w") as (store, (worker,)):
        root = store._keys.queue("q")
        client = store._here().session.client
        await client.command(root, "UNLINK", f"{root}:Z", f"{root}:U")
        await add(store, new(job_id="one"))
        assert (await _get(store, "one")).state is JobState.WAITING
        assert len((await worker.claim()).jobs) == 1
        assert (await worker.claim()).jobs == []
        await add(store, new(job_id="two"))
        assert (await _get(store, "two")).worker == "w"


# --- whole workers --------------------------------------------------------------------------------------


async def test_an_idle_worker_asks_once_for_each_job(url: str) -> None:
    app = Windlass(f"{url}?namespace={new_id()}")

    async def handler(job: Any) -> Any:
        return job.data

    async with app, Worker("q", handler, url_or_app=app, poll=60, duties=False):
        backend = app.store.backend
        assert isinstance(backend, ValkeyBackend)
        queue = app.queue("q")
        await queue.add_and_wait("echo", 0)
        calls = _calls(backend)
        for number in range(20):
            assert await queue.add_and_wait("echo", number) == number
        assert calls["add_plain"] == 20
        assert 20 <= calls["work"] <= 30, calls


async def test_a_worker_never_runs_more_jobs_than_it_has_slots(url: str) -> None:
    app = Windlass(f"{url}?namespace={new_id()}")
    runs: Counter[int] = Counter()
    most = 0

    async def handler(job: Any) -> None:
        nonlocal most
        most = max(most, sum(worker.busy for worker in workers))
        runs[job.data] += 1
        await asyncio.sleep(0)

    workers = [Worker("q", handler, url_or_app=app, concurrency=1, duties=False) for _ in range(2)]

    async def produce(first: int) -> None:
        for number in range(first, first + 100):
            await queue.add("run", number)
            await asyncio.sleep(0 if number % 7 else 0.002)

    async with app, workers[0], workers[1]:
        queue = app.queue("q")
        await asyncio.gather(*(produce(first) for first in (0, 100, 200)))
        await until(lambda: len(runs) == 300, "all jobs to run")
    assert set(runs.values()) == {1}
    assert most <= 2


async def test_a_paused_worker_takes_nothing(url: str) -> None:
    app = Windlass(f"{url}?namespace={new_id()}")
    ran: list[Any] = []

    async def handler(job: Any) -> None:
        ran.append(job.data)

    async with app, Worker("q", handler, url_or_app=app, duties=False) as worker:
        queue = app.queue("q")
        await queue.add_and_wait("run", 1)
        worker.pause()
        backend = app.store.backend
        assert isinstance(backend, ValkeyBackend)
        places = backend._here().session.handoffs._handoffs
        await until(lambda: not places[worker.id].registrations, "the seat to be left")
        job = await queue.add("run", 2)
        await job.refresh()
        assert (job.state, job.deliveries, ran) == (JobState.WAITING, 0, [1])
        worker.resume()
        await until(lambda: ran == [1, 2], "the job to run")


async def test_a_worker_is_handed_jobs_again_after_other_code_has_cancelled_a_call_about_its_handoff(
    url: str,
) -> None:
    async with seated(url, "w") as (store, (worker,)):
        functions = worker.store._here().session.functions
        inner, asked = functions._call, asyncio.Event()

        async def call_never(*arguments: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

        functions._call = call_never  # type: ignore[assignment]
        worker.listener.decline()
        await asked.wait()
        cancel_tasks("windlass-valkey-handoff")
        functions._call = inner
        await until(lambda: not worker.store._here().session.handoffs._tasks, "the end of the task")
        await worker.claim()
        await add(store, new(job_id="one"))
        assert (await _get(store, "one")).worker == "w"
