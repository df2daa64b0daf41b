"""What may happen to brokers, workers and coordinators: nothing is lost, repeats count once."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.amqp.servers import fresh_url, new_server, open_store
from tests.faults.frozen import frozen_later
from tests.faults.kit import staged, until
from tools.restarts import Campaign
from windlass import Job, JobState, Windlass, Worker
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend, link
from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.coordinator import Coordinator
from windlass.backends.amqp.counting import ready_messages
from windlass.backends.amqp.io_future import spawn
from windlass.core import probe
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import new_id
from windlass.core.job import CounterRow, NewJob
from windlass.core.outcome import Extended
from windlass.errors import StorageError
from windlass.speedups.amqp_loop import Loop
from windlass_conformance.stage import in_time

backend_name = "amqp"
pytestmark = [pytest.mark.service("rabbitmq")]
JOBS = 40


async def all_completed(app: Windlass, ids: list[str], queue: str = "q") -> dict[str, Any]:
    """The records of ``ids`` once all have completed; fails when one ends otherwise."""
    found: dict[str, Any] = {}

    async def done() -> bool:
        for job_id in ids:
            if job_id not in found:
                job = await app.queue(queue).get_job(job_id)
                assert job is not None, f"{job_id} is lost"
                assert job.state not in (JobState.FAILED, JobState.CANCELLED), job
                if job.state is not JobState.COMPLETED:
                    return False
                found[job_id] = job
        return True

    await until(done, "all jobs completed")
    return found


@pytest.mark.feature("J3", "J7", "J8", "N7")
@pytest.mark.parametrize("point", ["worker.claimed=kill@2", "amqp.ended=kill", "amqp.carried_out=kill@10"])
async def test_a_worker_killed_at_a_point_loses_nothing(tmp_path: Path, point: str) -> None:
    async with staged(tmp_path, fresh_url()) as stage:
        jobs = await stage.app.queue("q").add_bulk({"name": "noop", "data": {"n": n}} for n in range(JOBS))
        victim = stage.worker(probes=point, concurrency=4)
        assert await victim.ended() == -signal.SIGKILL
        heir = stage.worker(concurrency=4)
        await all_completed(stage.app, [job.id for job in jobs])
        heir.signal(signal.SIGTERM)
        assert await heir.ended() == 0
        await stage.app.store.backend.remove_all()  # type: ignore[attr-defined]


@pytest.mark.feature("B3", "J3", "N8")
async def test_a_coordinator_killed_before_it_marks_what_it_did_loses_no_scheduled_job(
    tmp_path: Path,
) -> None:
    async with staged(tmp_path, fresh_url()) as stage:
        # Its first worker coordinates: it keeps the scheduled jobs, releases some of them, and dies.
        victim = stage.worker(
            probes="amqp.coordinates=touch:" + str(stage.path("coordinates")) + ",amqp.carried_out=kill@12"
        )
        await until(stage.path("coordinates").exists, "the worker coordinates")
        ids = []
        for n in range(8):
            async with asyncio.timeout(40):
                while True:
                    try:
                        job = await stage.app.queue("q").add("noop", {"n": n}, delay=0.2, job_id=f"later-{n}")
                        break
                    except StorageError:
                        await asyncio.sleep(0.1)
            ids.append(job.id)
        assert await victim.ended() == -signal.SIGKILL
        heir = stage.worker()
        await all_completed(stage.app, ids)
        heir.signal(signal.SIGTERM)
        assert await heir.ended() == 0
        await stage.app.store.backend.remove_all()  # type: ignore[attr-defined]


@pytest.mark.serial
@pytest.mark.timeout(180)
@pytest.mark.feature("N8", "L12", "Z12")
async def test_a_broker_that_restarts_in_mid_run_loses_nothing() -> None:
    """Three times here; ``scripts/restarts`` does it as often as one likes."""
    server = new_server().start()
    try:
        tally = await Campaign(server, restarts=3, jobs=3).run()
    finally:
        server.stop()
    assert (tally.restarts, tally.kills, tally.added.total()) == (3, 2, 54)
    assert tally.is_good, f"{tally}: {tally.lost}, {tally.elsewhere}, {tally.not_run}"


@pytest.mark.feature("B3", "N3")
async def test_a_server_alone_releases_what_is_due(tmp_path: Path) -> None:
    """Also for queues whose workers are all in other languages."""
    async with staged(tmp_path, fresh_url()) as stage:
        server = stage.spawn("windlass", "server", probes="")
        await until(lambda: "Coordinating" in server.output, "the server coordinates")
        job = await stage.app.queue("q").add("noop", {"n": 1}, delay=0.3)

        async def released() -> bool:
            return await job.get_state() is JobState.WAITING

        await until(released, "the job is due")
        server.signal(signal.SIGTERM)
        assert await server.ended() == 0
        await stage.app.store.backend.remove_all()  # type: ignore[attr-defined]


async def test_a_broker_that_is_not_there_is_a_storage_error() -> None:
    store = open_backend("amqp://127.0.0.1:1?open=0.5")
    with pytest.raises(StorageError, match="did not answer"):
        await store.open()
    await store.close()
    await store.close()  # idempotent


@pytest.mark.feature("N8")
async def test_each_call_keeps_its_timeout_while_the_broker_is_frozen(tmp_path: Path) -> None:
    """Also for large requests and when the socket is full. What is repeated later counts once."""
    groups = [[_plain_add(10)], [_plain_add(1_000_000, jobs=15)], [_plain_add(9_000) for _ in range(50)]]
    async with frozen_later("amqp", tmp_path) as broker:
        store = await open_store(f"{broker.url}?timeout=1")
        await store.prepare(["q"])
        broker.freeze()
        for group in groups:
            adding = asyncio.gather(*(store.execute(add) for add in group), return_exceptions=True)
            assert await in_time(adding) < 1.5
            assert all("outcome unknown, repeat with the same id" in str(one) for one in adding.result())
        broker.thaw()
        other = await open_store(broker.url)
        await asyncio.gather(*(other.execute(add) for group in groups for add in group))
        await store.close()

        async def counted_once() -> bool:
            return (await other.execute(rq.CountJobs(queue="q")))[JobState.WAITING] == 1 + 15 + 50

        await until(counted_once, "what was added twice counts once")
        await other.close()


def _plain_add(size: int, jobs: int = 1) -> rq.Add:
    payload = b'{"args":["' + b"x" * size + b'"]}'
    return rq.Add(jobs=[NewJob(queue="q", id=new_id(), task="n", payload=payload) for _ in range(jobs)])


async def test_a_client_that_had_no_file_descriptor_for_a_connection_connects_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its thread goes on, and waits longer each time."""
    store = await open_store(fresh_url("timeout=5"))
    session, limits = store._shared.link._session, resource.getrlimit(resource.RLIMIT_NOFILE)
    assert session is not None

    async def failed() -> bool:
        used.extend(_all_descriptors())  # also those that the connection has left
        return caplog.text.count("unexpected error") + caplog.text.count("trying again") >= 2

    used: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limits[1]), limits[1]))
        used.extend(_all_descriptors())
        session.connection._transport._sock.shutdown(socket.SHUT_RDWR)
        await until(failed, "it could not connect")
        assert store._shared.link._delay_s >= 0.4  # it was doubled each time
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for descriptor in used:
            os.close(descriptor)
    await store.execute(rq.ListWorkers())
    await store.remove_all()
    await store.close()


@pytest.mark.parametrize("closed", [False, True])
async def test_a_client_that_had_no_file_descriptor_for_a_loop_makes_one_later(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    """Other threads may take the descriptors that its last loop had."""
    store = await open_store(fresh_url("timeout=5"))
    await store.remove_all()
    tries: list[bool] = []
    tried = asyncio.Event()
    here = asyncio.get_running_loop()

    def loop() -> Any:
        tries.append(False)
        here.call_soon_threadsafe(tried.set)
        if closed or len(tries) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return Loop()

    def fail() -> None:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(link, "Loop", loop)
    store._shared.link.loop.add_callback_threadsafe(fail)
    async with asyncio.timeout(20):
        await tried.wait()
        if not closed:
            await store.execute(rq.ListWorkers())
            assert len(tries) == 3
            await store.remove_all()
        await store.close()


async def test_a_client_that_could_not_start_its_thread_can_be_opened_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise OSError("too many open files")

    store = open_backend(fresh_url("open=5"))
    assert isinstance(store, AmqpBackend)
    with monkeypatch.context() as patched:
        patched.setattr(link, "Loop", fail)
        with pytest.raises(OSError, match="too many"):
            await store.open()
    await store.open()
    await store.execute(rq.ListWorkers())
    await store.remove_all()
    await store.close()
    assert store._shared.link._users == 0


def _all_descriptors() -> Iterator[int]:
    """Open all file descriptors that the process may still open."""
    with contextlib.suppress(OSError):
        while True:
            yield os.open(os.devnull, os.O_RDONLY)


async def test_a_client_that_is_opened_while_it_is_closed_waits_for_that() -> None:
    """Two threads would use the same state: neither would end, and no call would be answered."""
    async with asyncio.timeout(20):
        store = await open_store(fresh_url())
        for _ in range(3):
            other = store.clone()
            await asyncio.gather(store.close(), other.open(), other.open())
            await other.execute(rq.ListWorkers())
            store = other
        await store.remove_all()
        await store.close()


@pytest.mark.feature("B3")
async def test_many_jobs_due_at_once_are_released_in_their_order() -> None:
    """The coordinator's steps are bounded at 1,000; nothing of a larger release is lost or out of order."""
    async with Windlass(fresh_url()) as app:
        queue = app.queue("q")
        jobs = await queue.add_bulk(
            {"name": "n", "data": {"n": n}, "delay": 1.5, "job_id": f"j{n:04}"} for n in range(1_500)
        )
        assert {job.state for job in jobs} == {JobState.SCHEDULED}
        order: list[str] = []

        async def handler(job: Job[Any]) -> None:
            order.append(job.id)

        async with Worker("q", handler, url_or_app=app, concurrency=200):
            await until(lambda: len(order) == 1_500, "all ran")
        assert order == sorted(order)
        await app.store.backend.remove_all()  # type: ignore[attr-defined]


@pytest.mark.feature("J7", "N8")
@pytest.mark.parametrize("limit", [20, 5])
async def test_what_a_new_coordinator_publishes_again_starts_once(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """The coordinator before it died without a mark of what it had done: all of it is done once more."""
    monkeypatch.setattr(Coordinator, "_write_mark", lambda self: None)
    url, at_ms = fresh_url(), 1_000_000
    first, second, third = open_backend(url), open_backend(url), open_backend(url)
    await first.open()
    jobs = [NewJob(queue="q", id=f"j{n}", task="n", payload=b"{}", delay_ms=100) for n in range(5)]
    await first.execute(rq.Add(jobs=jobs, now_ms=at_ms))
    await first.execute(rq.Promote(now_ms=at_ms + 100))
    await first.close()
    started = []
    await second.open()
    await third.open()
    for client in (second, third):
        queues = [rq.ClaimQueue("q", limit, limit)]
        claim = rq.Claim(
            worker="w", queues=queues, limit=limit, claim_id=new_id(), lease_ms=30_000, now_ms=at_ms + 200
        )
        claimed = await client.execute(claim)
        started += [job.id for job in claimed.jobs]
    assert sorted(started) == [f"j{n}" for n in range(5)]
    assert isinstance(second, AmqpBackend)
    await second.remove_all()
    await third.close()
    await second.close()


@pytest.mark.feature("J7", "N8")
async def test_of_what_was_published_several_times_and_delivered_before_each_job_starts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three coordinators published each job, and the broker gives all messages out for the second time."""
    monkeypatch.setattr(Coordinator, "_write_mark", lambda self: None)
    url, at_ms = fresh_url(), 1_000_000
    await _promote_and_leave(url, at_ms)
    for _ in range(2):
        store = await open_store(url)
        await store.close()
    store = await open_store(url)
    await _deliver_all_once(store)
    started: list[str] = []
    for _ in range(8):
        queues = [rq.ClaimQueue("q", 3, 3)]
        claim = rq.Claim(
            worker="w", queues=queues, limit=3, claim_id=new_id(), lease_ms=30_000, now_ms=at_ms + 200
        )
        started += [job.id for job in (await store.execute(claim)).jobs]
    assert sorted(started) == [f"j{n}" for n in range(5)]
    await store.remove_all()
    await store.close()


@pytest.mark.feature("J7", "N8")
async def test_a_new_coordinator_marks_what_it_did_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each one that ends soon after would leave one more message of each job to the next."""
    watch = probe.Probe()
    monkeypatch.setattr(probe, "_installed", watch)
    monkeypatch.setattr("windlass.backends.amqp.coordinator._MARK_EVERY_S", 3_600.0)
    monkeypatch.setattr(Coordinator, "prepare_close", _close_at_once)
    url = fresh_url()
    await _promote_and_leave(url, 1_000_000)
    second = await open_store(url)
    await until(lambda: watch.count("amqp.marked") > 0, "the mark is written")
    assert await _messages(second) == 10
    await second.close()
    third = await open_store(url)
    assert await _messages(third) == 10
    await third.remove_all()
    await third.close()


async def _close_at_once(_: Coordinator) -> None:
    """As a coordinator that crashed."""


async def _promote_and_leave(url: str, at_ms: int) -> None:
    """Five jobs are due and published by a coordinator that then ends."""
    store = open_backend(url)
    assert isinstance(store, AmqpBackend)
    await store.open()
    jobs = [NewJob(queue="q", id=f"j{n}", task="n", payload=b"{}", delay_ms=100) for n in range(5)]
    await store.execute(rq.Add(jobs=jobs, now_ms=at_ms))
    await store.execute(rq.Promote(now_ms=at_ms + 100))
    await store.close()


async def _deliver_all_once(store: AmqpBackend) -> None:
    """Take every message of the queue and give it back."""

    async def take(client: Any) -> None:
        found = await client.pull(client.names.queue("q"), 100)
        client.requeue([delivery.tag for delivery in found])

    await store._run(take)


async def _messages(store: AmqpBackend) -> int:
    messages, _ = await store._run(lambda client: ready_messages(client, "q"))
    return int(messages)


async def test_pika_counts_the_bytes_that_came() -> None:
    """It ends a connection on which no bytes came for a heartbeat and five seconds; we read in its stead."""
    store = open_backend(fresh_url())
    assert isinstance(store, AmqpBackend)
    await store.open()
    session = store._shared.link._session
    assert session is not None
    before = session.connection.bytes_received
    await store.execute(rq.ListWorkers())
    assert session.connection.bytes_received > before
    await store.remove_all()
    await store.close()


@pytest.mark.feature("N7")
async def test_a_call_that_begins_while_a_connection_is_closed_waits_for_the_next_one() -> None:
    store = await open_store(fresh_url())
    link = store._shared.link
    assert link._session is not None
    link.call_soon_threadsafe(link._session.reconnect)
    assert await store.execute(rq.ListWorkers()) == []
    await store.remove_all()
    await store.close()


@pytest.mark.feature("Q3")
async def test_a_new_coordinator_has_the_same_history() -> None:
    """Entries of the log count at the time that their writers noted, whoever reads them."""
    url = fresh_url()
    soon = {"type": "fixed", "delay": 0.01, "jitter": 0}

    async def fail_twice(job: Job[Any]) -> None:
        if job.attempt < 3:
            raise ConnectionError("busy")

    async with Windlass(url) as app:
        queue = app.queue("q")
        await queue.add_bulk(
            {"name": "flaky", "data": n, "delay": 0.005 * n, "max_attempts": 3, "backoff": soon}
            for n in range(20)
        )
        await Worker("q", fail_twice, url_or_app=app, burst=True, poll=0.1).run()
        expected = await history_and_counters(app)
    assert Counter(record.outcome.value for record in expected[0].records) == {
        "retrying": 40,
        "completed": 20,
    }
    for _ in range(2):  # also a coordinator that takes over from one that took over
        async with Windlass(url) as app:
            assert await history_and_counters(app) == expected
    async with Windlass(url) as app:
        await app.store.backend.remove_all()  # type: ignore[attr-defined]


async def history_and_counters(app: Windlass) -> tuple[rq.HistoryPage, list[CounterRow]]:
    """The history and the counters of the queue."""
    page = await app.store.backend.execute(rq.ReadHistory(queue="q", limit=1_000))
    return page, await app.store.backend.execute(rq.ReadCounters(queue="q"))


@pytest.mark.feature("J2", "N8")
async def test_a_job_that_runs_for_long_is_kept_by_its_lease_and_not_by_its_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection may go and come back: no other worker gets it, and it completes once."""
    url = f"{fresh_url()}&consumer_timeout=0.4"
    watch, ran = probe.Probe(), list[str]()
    monkeypatch.setattr(probe, "_installed", watch)
    async with Windlass(url) as app:
        store = app.store.backend
        assert isinstance(store, AmqpBackend)

        async def handler(job: Job[Any]) -> str:
            ran.append(job.id)
            await until(lambda: watch.count("amqp.kept_by_lease") > 0, "the job is kept by its lease")
            session = store._shared.link._session
            assert session is not None
            store._shared.link.loop.add_callback_threadsafe(session.reconnect)
            await until(lambda: session.closed, "the connection is gone")
            await app.queue("q").get_job_counts()  # there is a new one
            return "done"

        async with Worker("q", handler, url_or_app=app, concurrency=2):
            job = await app.queue("q").add("n")
            assert await job.result(timeout=40) == "done"
        assert ran == [job.id]
        counts = await app.queue("q").get_job_counts()
        assert (counts[JobState.COMPLETED], counts[JobState.WAITING], counts[JobState.ACTIVE]) == (1, 0, 0)
        await store.remove_all()


@pytest.mark.feature("J2", "N8")
async def test_a_worker_that_connects_again_goes_on_with_what_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker gives its message out again: it is dropped, for the lease of the running job counts."""
    url, watch, ran = fresh_url(), probe.Probe(), list[str]()
    monkeypatch.setattr(probe, "_installed", watch)
    async with Windlass(url) as app, Windlass(url) as caller:
        store = app.store.backend
        assert isinstance(store, AmqpBackend)

        async def handler(job: Job[Any]) -> str:
            ran.append(job.id)
            session = store._shared.link._session
            assert session is not None
            store._shared.link.loop.add_callback_threadsafe(session.reconnect)
            await until(lambda: watch.count("amqp.rejoined") > 0, "the worker said what it runs")
            counts = await caller.queue("q").get_job_counts()
            assert (counts[JobState.ACTIVE], counts[JobState.WAITING]) == (1, 0)
            return "done"

        async with Worker("q", handler, url_or_app=app, concurrency=2, poll=0.1):
            job = await caller.queue("q").add("n")
            assert await job.result(timeout=40) == "done"
        assert ran == [job.id]
        await store.remove_all()


@pytest.mark.feature("J2", "N8")
async def test_calls_are_answered_after_a_connection_that_was_lost_during_two_claims() -> None:
    """The second claim begins to pull when the first one fails."""
    store = await open_store(fresh_url("timeout=5"))
    assert (await store.execute(_claim_of("q"))).jobs == []

    async def lose_connection(client: AmqpClient) -> None:
        claims = [spawn(client.consumer.claim(_claim_of("q"), 0)) for _ in range(2)]
        client.connection._terminate_stream(ConnectionError("lost"))
        for claim in claims:
            await claim

    with pytest.raises(StorageError, match="the connection to the broker was lost"):
        await store._run(lose_connection)
    assert (await store.execute(_claim_of("q"))).jobs == []
    await store.remove_all()
    await store.close()


@pytest.mark.feature("J2", "N8")
async def test_a_renewal_does_not_wait_for_a_coordinator_that_is_stuck() -> None:
    """It is in the log, and other leases are due meanwhile."""
    url = fresh_url()
    stuck, worker = await open_store(url), await open_store(url)
    await stuck.execute(rq.Add(jobs=[NewJob(queue="q", id=new_id(), task="n", payload=b"{}")]))
    (job,) = (await worker.execute(_claim_of("q", lease_ms=3_000))).jobs
    await stuck._run(lambda client: client.coordinator.retire())
    lease = rq.LeaseRef("q", job.id, job.token or "", 3_000)
    async with asyncio.timeout(3):
        assert await worker.execute(rq.Extend(leases=[lease])) == [Extended.OK]
    await stuck.close()
    (after,) = await worker.execute(rq.GetJobs(refs=[job.ref]))
    assert after is not None and (after.state, after.token) == (JobState.ACTIVE, job.token)
    await worker.remove_all()
    await worker.close()


@pytest.mark.feature("J2", "N8")
async def test_a_lease_begins_when_its_job_starts_and_not_when_a_claim_begins_to_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker that counted from its request would stop the job at once, and the lease would run out."""
    url, watch = fresh_url(), probe.Probe()
    monkeypatch.setattr(probe, "_installed", watch)
    stuck, worker = await open_store(url), await open_store(url)
    await stuck.execute(rq.Add(jobs=[NewJob(queue="q", id=new_id(), task="n", payload=b"{}")]))
    await stuck._run(lambda client: client.coordinator.retire())
    sent_ms = SYSTEM_CLOCK.monotonic_ms()
    claiming = asyncio.create_task(worker.execute(_claim_of("q")))
    await until(lambda: watch.count("amqp.not_elected") > 1, "the claim has waited for a coordinator")
    assert not claiming.done()
    waited_ms = SYSTEM_CLOCK.monotonic_ms() - sent_ms
    await stuck.close()
    claimed = await claiming
    assert len(claimed.jobs) == 1
    assert waited_ms - 1 < -claimed.held_ms <= SYSTEM_CLOCK.monotonic_ms() - sent_ms
    await worker.remove_all()
    await worker.close()


@pytest.mark.feature("J2", "N8")
async def test_jobs_that_have_started_do_not_wait_for_the_verification_of_others() -> None:
    """The worker renews their leases once it has them. The other messages go back to their queue."""
    url = fresh_url()
    stuck, worker, other = [await open_store(url) for _ in range(3)]
    jobs = [NewJob(queue=queue, id=new_id(), task="n", payload=b"{}") for queue in ("a", "b")]
    await stuck.execute(rq.Add(jobs=jobs))
    await other.execute(_claim_of("b"))
    assert (await worker.execute(_claim_of("c"))).jobs == []  # it has the rules of its coordinator
    await other.close()  # the broker delivers its message again
    await stuck._run(lambda client: client.coordinator.retire())
    async with asyncio.timeout(10):
        claimed = await worker.execute(_claim_of("a", "b", lease_ms=4_000))
    assert [job.id for job in claimed.jobs] == [jobs[0].id]
    await stuck.close()
    again = await worker.execute(_claim_of("b"))
    assert [job.id for job in again.jobs] == [jobs[1].id]
    await worker.remove_all()
    await worker.close()


def _claim_of(*queues: str, lease_ms: int = 30_000) -> rq.Claim:
    wanted = [rq.ClaimQueue(queue, 1, 1) for queue in queues]
    return rq.Claim(worker="w", queues=wanted, limit=len(queues), claim_id=new_id(), lease_ms=lease_ms)


@pytest.mark.serial
@pytest.mark.timeout(240)
@pytest.mark.feature("J2", "N8")
async def test_a_job_that_outlasts_the_consumer_timeout_of_the_broker_completes_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It runs until the broker has twice closed the channel on which the coordinator holds its record."""
    server = new_server("consumer_timeout = 1500", runtime="-rabbit channel_tick_interval 500").start()
    watch, ran = probe.Probe(), list[str]()
    monkeypatch.setattr(probe, "_installed", watch)
    try:
        async with Windlass(f"{server.url}?consumer_timeout=1.5") as app:

            async def handler(job: Job[Any]) -> None:
                ran.append(job.id)
                await until(lambda: watch.count("amqp.kept_by_lease") > 0, "the job is kept by its lease")
                before = watch.count("amqp.kept_read")
                await until(lambda: watch.count("amqp.kept_read") >= before + 2, "two timeouts passed")

            async with Worker("q", handler, url_or_app=app, concurrency=2):
                job = await app.queue("q").add("n")
                await job.result(timeout=60)
            assert ran == [job.id]
    finally:
        server.stop()


@pytest.mark.feature("C18")
@pytest.mark.parametrize("place", ["first", "last"])
async def test_a_job_that_kills_its_worker_at_once_fails_as_stalled(tmp_path: Path, place: str) -> None:
    """Also when it is prefetched, and the worker dies before it could log the start.

    That death is not counted. The broker marks what it delivers again, and such a start is logged first.
    """
    async with staged(tmp_path, fresh_url()) as stage:
        queue = stage.app.queue("q")
        specs: list[dict[str, Any]] = [{"name": "noop", "data": {"n": n}} for n in range(200)]
        specs.insert(0 if place == "first" else 200, {"name": "suicide"})
        jobs = await queue.add_bulk(specs)  # of each, two lost workers are survived
        deadly = next(job for job in jobs if job.name == "suicide")

        async def has_failed() -> bool:
            found = await queue.get_job(deadly.id)
            return found is not None and found.state is JobState.FAILED

        async def ended_or_failed() -> bool:
            return victim.code is not None or await has_failed()

        for _ in range(12):
            victim = stage.worker(concurrency=1)
            await until(ended_or_failed, "the end of the worker or of the job")
            if await has_failed():
                break
            assert victim.code == -signal.SIGKILL, victim.output
        assert await has_failed()
        assert len(stage.lines("died")) in (3, 4)
        await all_completed(stage.app, [job.id for job in jobs if job is not deadly])
