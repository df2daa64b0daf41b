"""A coordinator that takes over has the state of the one before it: it decides nothing differently."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
import pika
import pytest

from tests.backends.amqp.servers import broker_url, fresh_url, open_store
from tests.faults.kit import until
from windlass import Job, JobState, Windlass, Worker
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend, verbs, wire
from windlass.backends.amqp.counts import Counts, counts_of, set_counts
from windlass.backends.amqp.ledger import Ledger
from windlass.backends.amqp.timing import OwnTime
from windlass.core.clock import SteadyClock, SystemClock
from windlass.core.ids import new_id
from windlass.core.job import JobRecord, JobRef, NewJob
from windlass.core.outcome import Outcome
from windlass.errors import StorageError
from windlass_conformance.harness import settlement

backend_name = "amqp"
pytestmark = pytest.mark.service("rabbitmq")


_right_now_ms = SystemClock.now_ms


class _Ahead(SystemClock):
    """A clock that is set wrong."""

    def __init__(self, ahead_ms: int) -> None:
        super().__init__()
        self._ahead_ms = ahead_ms

    def now_ms(self) -> int:
        return _right_now_ms(self) + self._ahead_ms


def _client(url: str, ahead_ms: int = 0) -> AmqpBackend:
    """A client whose machine has a wrong clock."""
    client = open_backend(url)
    assert isinstance(client, AmqpBackend)
    client._shared.clock = SteadyClock(_Ahead(ahead_ms))
    return client


async def _claim(client: AmqpBackend, lease_ms: int = 30_000) -> JobRecord:
    """Start the next job."""
    claim = rq.Claim(
        worker="w", queues=[rq.ClaimQueue("q", 1, 1)], limit=1, claim_id=new_id(), lease_ms=lease_ms
    )
    (job,) = (await client.execute(claim)).jobs
    return job


async def _start(client: AmqpBackend, lease_ms: int) -> JobRecord:
    """Start a new job."""
    await client.execute(rq.Add(jobs=[NewJob(queue="q", id=new_id(), task="n", payload=b"{}")]))
    return await _claim(client, lease_ms)


async def _state(client: AmqpBackend, job_id: str) -> JobState | None:
    (job,) = await client.execute(rq.GetJobs(refs=[JobRef("q", job_id)]))
    return None if job is None else job.state


async def _ends(client: AmqpBackend) -> tuple[list[str], dict[str, int]]:
    """The outcomes of all attempts in the history, and the counters of outcomes."""
    page = await client.execute(rq.ReadHistory(queue="q", limit=100))
    counters = await client.execute(rq.ReadCounters(queue="q"))
    counted = {row.outcome: row.total for row in counters if row.outcome != "enqueued"}
    return [record.outcome.value for record in page.records], counted


@pytest.mark.feature("J7", "N8")
async def test_an_entry_of_a_writer_with_a_wrong_clock_counts_at_the_same_time_for_each_coordinator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One coordinator corrects the time of an entry. The next one has another clock, but must do the same:
    otherwise the lease has expired for it, and the job waits for a message that was never published."""
    url = fresh_url()
    first = await open_store(url)
    fast = _client(url, ahead_ms=40_000)
    await fast.open()
    job = await _start(first, lease_ms=30_000)
    assert (await fast.execute(rq.Recover(limit=10))).recovered == []
    await first.execute(rq.Settle(items=[settlement(job, Outcome.COMPLETE)]))
    expected = await _ends(first)
    assert expected == (["completed"], {"completed": 1})
    await fast.close()
    await first.close()
    monkeypatch.setattr(SystemClock, "now_ms", lambda clock: _right_now_ms(clock) + 60_000)
    for _ in range(2):  # also one that takes over from one that took over
        second = await open_store(url)
        (found,) = await second.execute(rq.GetJobs(refs=[JobRef("q", job.id)]))
        assert found is not None and found.state is JobState.COMPLETED
        assert await _ends(second) == expected
        await second.close()
    third = await open_store(url)
    await third.remove_all()
    await third.close()


def test_the_mark_has_the_times_that_were_corrected() -> None:
    """A new coordinator takes them over, whatever its own clock says, and continues at the time of the
    mark. Of many it remembers the newest."""
    first = OwnTime()
    now_ms = first.now_ms()
    assert first.of(7, now_ms, live=True) == now_ms
    right_ms = first.of(8, now_ms + 3_600_000, live=True)
    assert right_ms < now_ms + 60_000 and first.corrected == {8: right_ms}
    mark, second = counts_of(Ledger(), 9, first), OwnTime()
    assert second.replayed(7, now_ms, mark) == now_ms
    assert second.replayed(8, now_ms + 3_600_000, mark) == right_ms
    assert OwnTime().replayed(9, now_ms, Counts()) == now_ms  # a mark of an earlier release has no times
    later = OwnTime()
    later.resume(Counts())
    assert later.last_ms == 0
    later.resume(mark)
    assert later.last_ms == right_ms
    for offset in range(10, 6_000):
        first.of(offset, now_ms + 3_600_000, live=True)
    assert len(first.corrected) == 5_000 and list(first.corrected)[-1] == 5_999
    mark, second = counts_of(Ledger(), 5_999, first), OwnTime()
    assert second.replayed(7, now_ms, mark) == now_ms
    assert second.replayed(8, now_ms + 3_600_000, mark) == mark.time_ms  # its time was forgotten


def test_time_goes_back_after_a_coordinator_whose_clock_was_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would stand still for its successors, until their clocks have caught up."""
    with monkeypatch.context() as patched:
        patched.setattr(SystemClock, "now_ms", lambda clock: _right_now_ms(clock) + 3_600_000)
        ahead = OwnTime()
        wrong_ms = ahead.of(0, ahead.now_ms() - 3_600_000, live=True)
    first_mark, second = counts_of(Ledger(), 0, ahead), OwnTime()
    now_ms = second.now_ms()
    assert wrong_ms > now_ms + 3_000_000
    assert second.replayed(0, now_ms, first_mark) == wrong_ms
    second.resume(first_mark)
    assert second.of(1, wrong_ms + 1, live=False) == wrong_ms  # what the first one did after its mark
    assert second.of(2, now_ms, live=True) == now_ms
    assert second.of(3, now_ms + 1, live=True) == now_ms + 1
    mark, third = counts_of(Ledger(), 3, second), OwnTime()
    said = [now_ms, wrong_ms + 1, now_ms, now_ms + 1]
    right = [wrong_ms, wrong_ms, now_ms, now_ms + 1]
    assert [third.replayed(n, at_ms, mark) for n, at_ms in enumerate(said)] == right


@pytest.mark.feature("J7", "N8")
async def test_leases_and_delays_are_right_after_a_coordinator_whose_clock_was_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = fresh_url()
    with monkeypatch.context() as patched:
        patched.setattr(SystemClock, "now_ms", lambda clock: _right_now_ms(clock) + 3_600_000)
        first = await open_store(url)
        job = await _start(first, lease_ms=30_000)
        await first.execute(rq.Extend(leases=[rq.LeaseRef("q", job.id, job.token or "", 30_000)]))
        await first.close()
    second = await open_store(url)
    delayed = NewJob(queue="q", id="later", task="n", payload=b"{}", delay_ms=10_000)
    await second.execute(rq.Add(jobs=[delayed]))
    held, later = await second.execute(rq.GetJobs(refs=[JobRef("q", job.id), JobRef("q", "later")]))
    soon_ms = second._shared.clock.now_ms() + 60_000
    assert held is not None and held.lease_until_ms is not None and held.lease_until_ms < soon_ms
    assert later is not None and later.due_ms is not None and later.due_ms < soon_ms
    await second.remove_all()
    await second.close()


@pytest.mark.feature("J7", "N8")
async def test_a_job_that_ended_when_the_clock_was_ahead_does_not_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its entries count at the time at which they did count, also after the time was set back."""
    url = fresh_url()
    with monkeypatch.context() as patched:
        patched.setattr(SystemClock, "now_ms", lambda clock: _right_now_ms(clock) + 3_600_000)
        first = await open_store(url)
        await first.prepare(["q"])
        jobs = [NewJob(queue="q", id="later", task="n", payload=b"{}", delay_ms=1)]
        await first.execute(rq.Add(jobs=jobs))
        while await _state(first, "later") is not JobState.WAITING:
            pass
        await first.execute(rq.Settle(items=[settlement(await _claim(first), Outcome.COMPLETE)]))
        await first.close()
    for _ in range(3):
        store = await open_store(url)
        assert await _state(store, "later") is JobState.COMPLETED
        assert (await _ends(store))[0] == ["completed"]
        await store.close()
    store = await open_store(url)
    await store.remove_all()
    await store.close()


def test_messages_count_although_a_replay_gave_out_more_generations_than_there_are() -> None:
    """Otherwise workers would drop all messages of later jobs as outdated."""
    ledger, at_ms = Ledger(), 1_000_000
    for name in ("early", "late"):
        ledger.apply(rq.Add(jobs=[NewJob(queue="q", id=name, task="n", payload=b"{}")]), at_ms)
        ledger.plan()
    assert ledger.gen == 2
    set_counts(ledger, Counts(gen=1))  # the job "late" has the first and only message
    start = verbs.Start("q", "late", "token", "w", 30_000, at_ms, gen=1)
    (found,), _ = ledger.apply(verbs.Doubt(starts=[start]), at_ms)
    assert found is not None
    ledger.apply(verbs.Started(starts=[start]), at_ms)
    assert ledger.queues["q"].jobs["late"].state is JobState.ACTIVE


def _put_back(queue: str, body: bytes) -> None:
    """Put a message back that was acknowledged, as a broker does that was killed before it wrote that."""
    with pika.BlockingConnection(pika.URLParameters(broker_url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def _first_message(queue: str) -> bytes:
    """The first message of a queue, which stays there."""
    with pika.BlockingConnection(pika.URLParameters(broker_url())) as connection:
        _, _, body = connection.channel().basic_get(queue)
        assert isinstance(body, bytes)
        return body


@pytest.mark.feature("J7", "N8")
@pytest.mark.parametrize("later", [0, 1])
@pytest.mark.parametrize("how", ["cancelled", "removed"])
async def test_the_record_of_a_cancelled_job_that_the_broker_returns_brings_no_job_back(
    how: str, later: int
) -> None:
    """The coordinator had acknowledged it, but the broker was killed before it wrote that to its disk. A
    coordinator that ended without a mark may have given the record another generation."""
    url = fresh_url()
    record = await _add_later(url)
    store = await open_store(url)
    ref, names = JobRef("q", "later"), store.names
    body = wire.kept_record(names.kept, record.job, record.gen + later).body
    if how == "cancelled":
        await store.execute(rq.CancelJobs(refs=[ref]))
    else:
        await store.execute(rq.RemoveJobs(refs=[ref]))
    await store.close()
    await asyncio.to_thread(_put_back, names.kept, body)
    for _ in range(2):
        store = await open_store(url)
        (job,) = await store.execute(rq.GetJobs(refs=[ref]))
        assert (None if job is None else job.state) == (JobState.CANCELLED if how == "cancelled" else None)
        await store.close()
    store = await open_store(url)
    await store.remove_all()
    await store.close()


@pytest.mark.feature("J7", "N8")
async def test_the_record_of_a_run_that_the_log_has_lost_keeps_its_job() -> None:
    """The end of the log was lost in a power failure. It says that the job waits, as it did before that run,
    and the worker has acknowledged the job's message."""
    url = fresh_url()
    scheduled = await _add_later(url, prepare=True)
    store = await open_store(url)
    await store.execute(rq.ChangeJob(ref=JobRef("q", "later"), delay_ms=0))
    await store.close()
    await asyncio.to_thread(_empty, store.names.queue("q"))
    failed = msgspec.structs.replace(scheduled.job, state=JobState.RETRYING, deliveries=1, attempts=1)
    body = wire.kept_record(store.names.kept, failed, scheduled.gen + 2).body
    await asyncio.to_thread(_put_back, store.names.kept, body)
    await _assert_stays(url, JobState.RETRYING)


@pytest.mark.feature("J7", "N8")
async def test_the_record_of_a_job_that_was_added_again_keeps_it_although_the_log_has_lost_that() -> None:
    """The end of the log was lost in a power failure. It says that the job was removed, as it was before."""
    url = fresh_url()
    first = await _add_later(url)
    store = await open_store(url)
    await store.execute(rq.RemoveJobs(refs=[JobRef("q", "later")]))
    await store.close()
    again = msgspec.structs.replace(first.job, enqueued_ms=store._shared.clock.now_ms() + 1)
    body = wire.kept_record(store.names.kept, again, first.gen + 1).body
    await asyncio.to_thread(_put_back, store.names.kept, body)
    await _assert_stays(url, JobState.SCHEDULED)


async def _add_later(url: str, *, prepare: bool = False) -> wire.KeptRecord:
    """Add a delayed job, ``later``, and return its record. ``prepare``: also declare the queue."""
    store = await open_store(url)
    if prepare:
        await store.prepare(["q"])
    jobs = [NewJob(queue="q", id="later", task="n", payload=b"{}", delay_ms=3_600_000)]
    await store.execute(rq.Add(jobs=jobs))
    await store.close()  # else it holds the record
    return wire.read_kept(await asyncio.to_thread(_first_message, store.names.kept))


async def _assert_stays(url: str, state: JobState) -> None:
    """Assert that every coordinator comes to the same state of ``later``. Then remove everything."""
    for _ in range(3):
        store = await open_store(url)
        assert await _state(store, "later") is state
        await store.close()
    store = await open_store(url)
    await store.remove_all()
    await store.close()


def _empty(queue: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker_url())) as connection:
        connection.channel().queue_purge(queue)


def _delete(stream: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(broker_url())) as connection:
        connection.channel().queue_delete(stream)


def _raise_mark(queue: str, by: int) -> None:
    """Make a mark say that more entries were carried out than the log has."""
    with pika.BlockingConnection(pika.URLParameters(broker_url())) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        method, _, body = channel.basic_get(queue)
        mark = msgspec.msgpack.decode(body, type=Counts)
        mark.offset += by
        channel.basic_ack(method.delivery_tag)
        channel.basic_publish(
            "", queue, verbs.encode(mark), pika.BasicProperties(delivery_mode=2), mandatory=True
        )


@pytest.mark.feature("J7", "N8")
async def test_a_log_that_lost_its_end_is_continued_and_repeats_nothing() -> None:
    """A broker does not flush each entry of a stream, but it flushes the mark."""
    url = fresh_url()
    store = await open_store(url)
    job = await _start(store, lease_ms=30_000)
    await store.execute(rq.Settle(items=[settlement(job, Outcome.COMPLETE)]))
    expected = await _ends(store)
    await store.close()
    await asyncio.to_thread(_raise_mark, store.names.mark, 100)
    for n in range(2):
        store = _client(url)
        await store.open()
        with contextlib.suppress(StorageError):  # it reconnects to take over from where the log ends
            await store.execute(rq.ListQueues())
        assert await _ends(store) == expected
        job = await _start(store, lease_ms=30_000)
        await store.execute(rq.Settle(items=[settlement(job, Outcome.COMPLETE)]))
        expected = (["completed"] * (n + 2), {"completed": n + 2})
        assert await _ends(store) == expected
        await store.close()
    store = await open_store(url)
    await store.remove_all()
    await store.close()


@pytest.mark.feature("J7", "N8")
async def test_a_log_that_was_replaced_is_carried_out_from_its_beginning() -> None:
    """The offsets of a stream that was deleted and declared again begin at 0, below that of the mark."""
    url, ran = fresh_url(), list[str]()

    async def handler(job: Job[Any]) -> None:
        ran.append(job.id)

    async with Windlass(url) as app:
        await app.queue("q").add("kept", delay=3_600, job_id="kept")
        for n in range(20):
            await app.queue("q").add("early", job_id=f"early-{n}")
        names = app.store.backend.names  # type: ignore[attr-defined]
        await app.queue("other").pause()
    await asyncio.to_thread(_delete, names.log)
    async with Windlass(url) as app:
        await app.queue("q").add("late", job_id="late")
        assert (await app.queue("q").get_job_counts())[JobState.SCHEDULED] == 1
        assert await app.queue("other").is_paused()
        async with Worker("q", handler, url_or_app=app):
            await until(lambda: "late" in ran, "the job that was added after that ran")
    async with Windlass(url) as app:
        job = await app.queue("q").get_job("late")
        assert job is not None and job.state is JobState.COMPLETED
        await app.store.backend.remove_all()  # type: ignore[attr-defined]
