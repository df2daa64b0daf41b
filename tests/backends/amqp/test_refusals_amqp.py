"""What the broker refuses or leaves unanswered: messages, the end of a connection, kept records."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pika
import pytest

from tests.backends.amqp.servers import broker_url
from tests.faults.kit import until
from windlass import Job, Windlass, Worker
from windlass.backends.amqp import AmqpBackend, wire
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.kept import KeptRecords
from windlass.backends.amqp.ledger import Ledger
from windlass.backends.amqp.names import Names
from windlass.core import probe
from windlass.core.ids import new_id
from windlass.core.job import NewJob
from windlass.core.transitions import ChangeRecorder, create
from windlass.speedups.amqp import PlainConnection

pytestmark = pytest.mark.service("rabbitmq")
backend_name = "amqp"


def declare_short_queue(namespace: str) -> None:
    """A queue that refuses what is more than one message."""
    arguments = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}
    connection = pika.BlockingConnection(pika.URLParameters(broker_url()))
    connection.channel().queue_declare(f"{namespace}.queue.q", durable=True, arguments=arguments)
    connection.close()


async def fill(
    app: Windlass, watch: probe.Probe, *, by_coordinator: bool = False
) -> list[asyncio.Task[Job[Any]]]:
    """Add jobs to the short queue until the broker refuses one. It counts a little late, so more than one
    may find its place."""
    adds: list[asyncio.Task[Job[Any]]] = []

    async def refused() -> bool:
        if all(add.done() for add in adds):
            job_id = f"job-{len(adds)}" if by_coordinator else None
            adds.append(asyncio.create_task(app.queue("q").add("n", job_id=job_id)))
        return watch.count("amqp.refused") > 0

    await until(refused, "the broker refused a message")
    return adds


async def run_all(app: Windlass, adds: list[asyncio.Task[Job[Any]]]) -> None:
    """Run the jobs of these adds, which are answered as their messages find a place; each runs once."""
    ran: Counter[str] = Counter()

    async def handler(job: Job[Any]) -> None:
        ran[job.id] += 1

    async with Worker("q", handler, url_or_app=app):
        jobs = await asyncio.gather(*adds)
        for job in jobs:
            await job.result(timeout=30)
    assert ran == Counter(job.id for job in jobs)


@pytest.mark.feature("J3")
@pytest.mark.parametrize("by_coordinator", [False, True])
async def test_messages_that_the_broker_refuses_are_published_again(
    by_coordinator: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watch = probe.Probe()
    monkeypatch.setattr(probe, "_installed", watch)
    namespace = f"q{new_id()[-12:]}"
    await asyncio.to_thread(declare_short_queue, namespace)

    async with Windlass(f"{broker_url()}?namespace={namespace}&queue_type=quorum") as app:
        adds = await fill(app, watch, by_coordinator=by_coordinator)
        assert not adds[-1].done()  # it is answered when the broker has its message
        await run_all(app, adds)
        assert "reconnecting" not in caplog.text
        assert isinstance(app.store.backend, AmqpBackend)
        await app.store.backend.remove_all()


@pytest.mark.feature("J3")
async def test_adds_that_share_an_entry_do_not_wait_for_the_refused_messages_of_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = probe.Probe()
    monkeypatch.setattr(probe, "_installed", watch)
    namespace = f"q{new_id()[-12:]}"
    await asyncio.to_thread(declare_short_queue, namespace)

    async with Windlass(f"{broker_url()}?namespace={namespace}&queue_type=quorum") as app:
        assert isinstance(app.store.backend, AmqpBackend)
        await app.store.backend.prepare(["q", "other"])
        adds = await fill(app, watch)
        adds += [asyncio.create_task(app.queue("q").add("n")) for _ in range(2)]
        others = [asyncio.create_task(app.queue("other").add("n")) for _ in range(20)]
        await asyncio.gather(*others)
        assert not all(add.done() for add in adds)
        await run_all(app, adds)
        await app.store.backend.remove_all()


class Timers:
    """A loop on which time does not pass by itself."""

    def __init__(self) -> None:
        self.planned: list[Callable[[], None]] = []

    def call_later(self, _seconds: float, call: Callable[[], None]) -> None:
        self.planned.append(call)

    def pass_time(self) -> None:
        planned, self.planned = self.planned, []
        for call in planned:
            call()


class SilentConnection(PlainConnection):
    """A connection whose broker does not answer."""

    is_closed = False
    ended = 0

    def __init__(self) -> None:
        self.timers = Timers()

    @property
    def ioloop(self) -> Any:
        return self.timers

    def close(self, *_reason: Any) -> None:
        """Asks the broker."""

    def _terminate_stream(self, _error: Exception | None) -> None:
        self.ended += 1


@pytest.mark.parametrize(("answers", "ended"), [(True, 0), (False, 1)])
def test_a_connection_ends_even_if_the_broker_does_not_answer(answers: bool, ended: int) -> None:
    connection = SilentConnection()
    connection.hang_up()
    assert connection.ended == 0
    connection.is_closed = answers
    connection.timers.pass_time()
    assert connection.ended == ended


class CountedRecords:
    """A session whose broker counts ``count`` kept records and delivers fewer."""

    def __init__(self, count: int) -> None:
        self.names = Names("default")
        self.usable = True
        self._count = count
        self.timers = Timers()
        self.deliver: Callable[..., None]

    async def open_channel(self, _on_close: Any) -> Any:
        return SimpleNamespace(queue_declare=None, is_open=True)

    async def call(self, *_args: Any, **_options: Any) -> Any:
        return SimpleNamespace(method=SimpleNamespace(message_count=self._count))

    def consume(self, _channel: Any, _queue: str, callback: Callable[..., None]) -> None:
        self.deliver = callback

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.call_later(seconds, call)

    def expect(self, promise: IoFuture[Any]) -> IoFuture[Any]:
        return promise


def kept_body(job_id: str) -> bytes:
    new = NewJob(queue="q", id=job_id, task="n", payload=b"", delay_ms=1_000)
    job = create(new, ChangeRecorder(0, lambda: 0))
    return wire.kept_record("kept", job, 1).body


def test_a_take_over_waits_for_kept_records_only_while_they_come() -> None:
    session, ledger = CountedRecords(3), Ledger()
    late: list[None] = []
    kept = KeptRecords(cast("Any", session), ledger, lambda *_: None)
    kept.on_late = lambda: late.append(None)
    opened = spawn(kept.open())
    session.deliver(None, SimpleNamespace(delivery_tag=1), None, kept_body("a"))
    over = []
    for _ in range(2):
        session.timers.pass_time()
        over.append(opened.done)
    assert over == [False, True]  # first, one came meanwhile: perhaps more are on their way
    kept.adopt(None)
    kept.live = True
    session.deliver(None, SimpleNamespace(delivery_tag=2), None, kept_body("b"))
    assert {ref.id for ref in ledger.placed} == {"a", "b"} and len(late) == 1
