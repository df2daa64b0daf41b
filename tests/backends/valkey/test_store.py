"""What lies in the server: order, bounds, memory, and that nothing is left behind. Traps by their numbers."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.backends.valkey.servers import DEPLOYMENTS, cluster_servers, redis_server, url_of, valkey_server
from tests.backends.valkey.support import add, cancel_tasks, claim, complete, new, opened
from tools.services.valkey import Server
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.valkey import ValkeyBackend
from windlass.backends.valkey.adds import Adder
from windlass.backends.valkey.session import together
from windlass.core.ids import new_id
from windlass.core.job import JobRef, NewJob, WorkerInfo
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome, Outcome, Settled, Settlement
from windlass.core.states import JobState
from windlass.errors import StorageError

backend_name = "valkey"
pytestmark = pytest.mark.service("valkey")

START_MS = 1_750_000_000_000
DAY_MS = 86_400_000


@pytest.fixture(params=DEPLOYMENTS)
def url(request: pytest.FixtureRequest) -> str:
    return url_of(request.param)


def _without_times(facts: object) -> object:
    """Facts of jobs or events as plain data, without what differs from one run to the next."""
    if isinstance(facts, dict):
        timed = ("_ms", "seq", "place", "token")
        return {key: _without_times(facts[key]) for key in facts if not key.endswith(timed)}
    return [_without_times(fact) for fact in facts] if isinstance(facts, list) else facts


async def _facts(store: ValkeyBackend) -> list[object]:
    """All that can be read about a queue."""
    page = await store.execute(rq.ReadEvents(queue="q"))
    return [
        [(event.id, event.type, event.job_id, event.task, event.data) for event in page.events],
        await store.execute(rq.ReadCounters(queue="q")),
        await store.execute(rq.ListJobs(queue="q")),
        await store.execute(rq.CountJobs(queue="q")),
    ]


async def test_a_job_that_is_added_alone_is_stored_like_one_of_many(url: str) -> None:
    jobs = [new(job_id="one"), new(job_id="two", task="u", payload=b"[]"), new(job_id="three")]
    jobs += [jobs[0], new(job_id="one", request_id="other")]  # the same again, and another one
    found = []
    for parts in ([[job] for job in jobs], [jobs]):
        async with opened(url) as store:
            answers = [answer for part in parts for answer in await add(store, *part)]
            read = [answers, await _facts(store), await claim(store), await _facts(store)]
            found.append(_without_times(msgspec.to_builtins(read)))
    assert found[0] == found[1]


@pytest.mark.feature("G1", "G2")
async def test_fifty_priorities_with_delays_come_out_in_exact_order(url: str) -> None:
    rng = random.Random(5)
    jobs = [
        new(
            job_id=f"j{n}",
            priority=rng.choice([0, 0, *range(-(2**20), 2**20, 41_943)]),
            delay_ms=rng.choice([0, 0, 50]),
        )
        for n in range(600)
    ]
    async with opened(url) as store:
        await add(store, *jobs, now_ms=START_MS)
        taken: list[str] = []
        while found := await claim(store, limit=37, now_ms=START_MS + 100):
            taken += [job.id for job in found]
    # Delayed jobs joined the line when they became due, behind those of their priority that already waited.
    wanted = sorted(range(600), key=lambda n: (-jobs[n].priority, jobs[n].delay_ms > 0, n))
    assert taken == [f"j{n}" for n in wanted]


async def test_equal_priorities_are_not_ordered_by_the_text_of_their_ids(url: str) -> None:
    async with opened(url) as store:
        await add(store, *(new(job_id=str(n), priority=7) for n in range(8, 13)))
        assert [job.id for job in await claim(store)] == ["8", "9", "10", "11", "12"]


async def test_a_renewed_lease_is_never_recovered_however_long_the_job_runs(url: str) -> None:
    async with opened(url) as store:
        await add(store, new(job_id="a"), now_ms=START_MS)
        (job,) = await claim(store, lease_ms=1_000, now_ms=START_MS)
        for step in range(1, 20):
            lease = rq.LeaseRef("q", "a", job.token or "", 1_000)
            await store.execute(rq.Extend(leases=[lease], now_ms=START_MS + step * 900))
            assert (await store.execute(rq.Recover(now_ms=START_MS + step * 900))).recovered == []


async def test_a_recovered_job_cannot_be_completed_by_its_late_worker(url: str) -> None:
    async with opened(url) as store:
        await add(store, new(job_id="a"), now_ms=START_MS)
        late = await claim(store, now_ms=START_MS)
        await store.execute(rq.Recover(now_ms=START_MS + DAY_MS))
        assert await complete(store, *late, now_ms=START_MS + DAY_MS) == [Settled.LOST]


async def test_a_recovered_job_is_back_in_line_in_the_same_step(url: str) -> None:
    async with opened(url) as store:
        await add(store, new(job_id="a"), new(job_id="b"), now_ms=START_MS)
        await claim(store, limit=1, now_ms=START_MS)
        await store.execute(rq.Recover(now_ms=START_MS + DAY_MS))
        assert [job.id for job in await claim(store, now_ms=START_MS + DAY_MS)] == ["a", "b"]


@pytest.mark.feature("L10")
async def test_a_finished_job_is_nowhere_in_the_line() -> None:
    async with opened(valkey_server().url, namespace := new_id()) as store:
        await add(store, *(new() for _ in range(10)))
        await complete(store, *await claim(store))
        with valkey_server().client() as admin:
            root = f"windlass:{{{namespace}:q}}"
            assert admin.xrange(f"{root}:f", min="(" + admin.hget(root, "cur").decode()) == []
            assert (admin.zcard(f"{root}:w"), admin.zcard(f"{root}:a")) == (0, 0)
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 0


async def test_counts_are_those_of_the_sets_whatever_happened(url: str) -> None:
    rng = random.Random(3)
    async with opened(url) as store:
        now_ms = START_MS
        for step in range(60):
            now_ms += rng.choice([0, 10, 40_000])
            await add(store, new(job_id=f"j{step}", delay_ms=rng.choice([0, 20])), now_ms=now_ms)
            jobs = await claim(store, limit=2, now_ms=now_ms)
            ends = [
                Settlement(queue="q", id=job.id, token=job.token or "", outcome=rng.choice(list(Outcome)))
                for job in jobs
                if rng.random() < 0.7
            ]
            await store.execute(rq.Settle(items=ends, now_ms=now_ms))
            await store.execute(rq.Recover(now_ms=now_ms))
        counts = await store.execute(rq.CountJobs(queue="q"))
        page = await store.execute(rq.ListJobs(queue="q", limit=1_000))
        listed = [job.state for job in page.jobs]
        assert counts == {state: listed.count(state) for state in JobState}


async def test_no_step_does_more_than_a_thousand_things(url: str) -> None:
    async with opened(url, timeout=20) as store:
        for _ in range(3):
            await add(store, *(new(delay_ms=1) for _ in range(1_000)), now_ms=START_MS)
        promoted = await store.execute(rq.Promote(now_ms=START_MS + 10))
        assert (promoted.count, promoted.next_due_in_ms) == (1_000, 0)


async def test_the_servers_clock_decides_when_the_request_carries_no_time() -> None:
    async with opened(valkey_server().url) as store:
        (added,) = await add(store, new())
        with valkey_server().client() as admin:
            seconds, _ = admin.time()
        assert abs(added.enqueued_ms - seconds * 1_000) < 5_000


async def test_numeric_ids_meet_no_counter(url: str) -> None:
    async with opened(url) as store:
        answers = await add(store, *(new(job_id=str(n)) for n in range(5)), new())
        assert {answer.outcome for answer in answers} == {AddOutcome.QUEUED}


async def test_a_job_that_failed_as_stalled_can_be_retried_by_hand(url: str) -> None:
    async with opened(url) as store:
        await add(store, new(job_id="a", options=StoredOptions(max_stalls=0)), now_ms=START_MS)
        await claim(store, now_ms=START_MS)
        failed = (await store.execute(rq.Recover(now_ms=START_MS + DAY_MS))).failed
        assert failed == [JobRef("q", "a")]
        await store.execute(rq.RetryJobs(refs=failed, now_ms=START_MS + DAY_MS))
        assert len(await claim(store, now_ms=START_MS + DAY_MS)) == 1


@pytest.mark.feature("M1", "L15")
async def test_every_key_of_a_queue_shares_its_hash_tag() -> None:
    async with opened(valkey_server().url, namespace := new_id()) as store:
        await _live(store)
        with valkey_server().client() as admin:
            keys = [key.decode() for key in admin.keys(f"*{namespace}*")]
    assert keys
    assert all(key.startswith((f"windlass:{{{namespace}:q}}", f"windlass:{{{namespace}}}:")) for key in keys)


async def _live(store: ValkeyBackend, now_ms: int = START_MS) -> None:
    """A bit of everything: every kind of key comes into being."""
    jobs = [
        new(job_id=f"j{n}", priority=n % 3 - 1, delay_ms=n % 2 * 5, options=StoredOptions(keep_id_ms=500))
        for n in range(30)
    ]
    await add(store, *jobs, now_ms=now_ms)
    claimed = await claim(store, now_ms=now_ms + 10)
    ref = JobRef("q", claimed[0].id)
    report = rq.Report(ref=ref, token=claimed[0].token, progress=b"1", logs=["x"], now_ms=now_ms + 10)
    await store.execute(report)
    ends = [
        Settlement(
            queue="q",
            id=job.id,
            token=job.token or "",
            outcome=list(Outcome)[n % 6],
            result=b"1",
            delay_ms=n % 2 * 9,
        )
        for n, job in enumerate(claimed)
    ]
    await store.execute(rq.Settle(items=ends, now_ms=now_ms + 20))
    await store.execute(rq.Beat(worker=WorkerInfo(id="w"), now_ms=now_ms))
    await store.execute(rq.Elect(role="r", holder="h", ttl_ms=5, now_ms=now_ms))


@pytest.mark.feature("A13")
@pytest.mark.parametrize("server", [valkey_server, redis_server])
async def test_once_all_is_pruned_only_a_queues_numbers_are_left(
    server: Callable[[], Server],
) -> None:
    started = server()
    async with opened(started.url, namespace := new_id()) as store:
        await _live(store)
        late_ms = START_MS + 1_000
        while jobs := await claim(store, now_ms=late_ms):
            await complete(store, *jobs, now_ms=late_ms)
        later_ms = late_ms + 181 * DAY_MS
        while (await store.execute(rq.Prune(now_ms=later_ms))).more:
            pass
        with started.client() as admin:
            left = {key.decode() for key in admin.keys(f"*{namespace}*")}
    root = f"windlass:{{{namespace}:q}}"
    # The root keeps the numbers that must never come again, and the lifetime counters.
    assert left == {root, f"windlass:{{{namespace}}}:queues"}


@pytest.mark.feature("L10")
@pytest.mark.serial
@pytest.mark.parametrize("server", [valkey_server, redis_server])
async def test_a_waiting_job_costs_at_most_450_bytes(server: Callable[[], Server]) -> None:
    started = server()
    count = 20_000
    async with opened(started.url, namespace := new_id(), timeout=30) as store:
        options = StoredOptions()
        await add(store, new(payload=b"x" * 100, options=options))
        before = _used(started)
        for _ in range(count // 1_000):
            await add(store, *(new(payload=b"x" * 100, options=options) for _ in range(1_000)))
        with started.client() as admin:
            admin.delete(f"windlass:{{{namespace}:q}}:v")  # the event log has its own bound
        per_job = (_used(started) - before) / count
        await store.execute(rq.Purge(queue="q", states=[JobState.WAITING], limit=1))
    assert per_job <= 450, f"{per_job:.0f} bytes per waiting job"


def _used(server: Server) -> int:
    with server.client() as admin:
        admin.execute_command("MEMORY", "PURGE")
        return int(admin.info("memory")["used_memory"])


async def test_adds_made_at_the_same_time_share_calls() -> None:
    async with opened(valkey_server().url) as store:
        await add(store, new())
        with valkey_server().client() as admin:
            before = admin.info("commandstats")["cmdstat_fcall"]["calls"]
            await asyncio.gather(*(add(store, new()) for _ in range(500)))
            calls = admin.info("commandstats")["cmdstat_fcall"]["calls"] - before
        assert calls <= 5
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 501


async def test_what_is_wrong_with_one_add_reaches_its_caller_and_no_other(url: str) -> None:
    """Callers share calls; a job that cannot be sent is refused alone, and nobody waits for ever."""
    async with opened(url, timeout=30) as store:
        bad = new(job_id="bad", task="\ud800")  # no proper Unicode
        jobs = [new(), new(), bad, new()]
        answers = await asyncio.gather(*(add(store, job) for job in jobs), return_exceptions=True)
        assert [type(answer) for answer in answers] == [list, list, UnicodeEncodeError, list]
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 3


async def test_adds_that_wait_are_sent_though_the_task_that_sends_them_is_cancelled_at_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled, start_next = asyncio.Event(), Adder._start_next

    def start_and_cancel(adder: Adder) -> None:
        start_next(adder)
        if adder._waiting and not cancelled.is_set():
            cancelled.set()
            cancel_tasks("windlass-valkey-add")

    monkeypatch.setattr(Adder, "_start_next", start_and_cancel)
    async with opened(valkey_server().url) as store:
        answers = await asyncio.gather(*(add(store, new()) for _ in range(3)))
        assert cancelled.is_set()
        assert [len(answer) for answer in answers] == [1, 1, 1]
        assert (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 3


async def test_only_adds_in_flight_fail_when_other_code_cancels_the_task_that_sends_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sending, send = asyncio.Event(), Adder._send

    async def send_two_never(adder: Adder, jobs: list[NewJob], now: str) -> list[rq.Added]:
        if len(jobs) == 2:
            sending.set()
            await asyncio.Event().wait()
        return await send(adder, jobs, now)

    monkeypatch.setattr(Adder, "_send", send_two_never)
    async with opened(valkey_server().url) as store:
        calls = [asyncio.ensure_future(add(store, new())) for _ in range(3)]
        await sending.wait()
        later = asyncio.ensure_future(add(store, new()))
        await asyncio.sleep(0)
        cancel_tasks("windlass-valkey-add")
        for answer in await asyncio.gather(*calls[1:], return_exceptions=True):
            assert isinstance(answer, StorageError)
            assert "outcome unknown" in str(answer)
        assert len(await later) == 1
        assert len(await add(store, new())) == 1


@pytest.mark.filterwarnings("ignore:unclosed")  # asyncio cannot end a transport without its loop
@pytest.mark.parametrize("server", [valkey_server, redis_server])
def test_event_loops_that_are_gone_leave_no_connections_open(server: Callable[[], Server]) -> None:
    """A program may add each job with ``asyncio.run``."""
    store = open_backend(f"{server().url}?namespace={new_id()}&timeout=30")
    assert isinstance(store, ValkeyBackend)
    with server().client() as admin:
        before = admin.info("clients")["connected_clients"]
        for _ in range(20):
            asyncio.run(add(store, new()))
        gc.collect()
        assert admin.info("clients")["connected_clients"] - before < 5
    asyncio.run(store.close())
    del store
    gc.collect()


def test_the_cluster_of_the_suite_has_three_primaries_with_a_replica_each() -> None:
    primary, replica = cluster_servers().server_of("windlass:{x:y}")
    assert primary.port != replica.port
    assert len(cluster_servers().servers) == 6


async def test_a_caller_whose_call_to_one_slot_is_cancelled_by_other_code_gets_an_error() -> None:
    """The caller itself was not cancelled, so it must not look as if it was."""
    begun: asyncio.Future[asyncio.Task[Any] | None] = asyncio.get_running_loop().create_future()

    async def other() -> None:
        begun.set_result(asyncio.current_task())
        await asyncio.Event().wait()

    waiting = asyncio.ensure_future(together(other(), asyncio.sleep(0)))
    call = await begun
    assert call is not None
    call.cancel()
    with pytest.raises(StorageError, match="outcome unknown"):
        await waiting
