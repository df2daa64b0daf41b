"""Impossible values in messages of other programs stop no coordinator, and no job of others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pika import BasicProperties

from tests.backends.amqp.servers import fresh_url
from tests.faults.kit import until
from windlass import Job, Windlass, Worker
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend, verbs, wire
from windlass.backends.amqp.ledger import Ledger
from windlass.backends.amqp.messages import MOST_BODY, MessageError, read_entry, read_message
from windlass.backends.amqp.unreadable import MOST_KEPT, poison
from windlass.errors import ConfigError, StorageError
from windlass.speedups.amqp import Outgoing

backend_name = "amqp"
NOW_MS = 1_760_000_000_000
_JOB = {"jid": "one", "class": "t", "args": []}
_METRIC = {
    "timestamp": 1.0,
    "jid": "one",
    "job_class": "t",
    "queue": "q",
    "duration_ms": 3,
    "status": "success",
}
_ASKED = BasicProperties(reply_to="inbox", correlation_id="1")


@pytest.mark.parametrize("priority", [10**30, -(10**30), 2**63, 2**20, "high", True, None, 1.5])
def test_a_priority_that_is_none_gives_way_to_that_of_the_message(priority: Any) -> None:
    body = json.dumps({**_JOB, "priority": priority}).encode()
    assert read_message("q", body, None, 3, NOW_MS).job.priority == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"timestamp": 1e300},
        {"timestamp": None},
        {"duration_ms": 1e300},
        {"duration_ms": -1},
        {"queue": "no name"},
        {"queue": 5},
        {"job_class": ["t"]},
    ],
)
def test_a_metric_with_impossible_values_is_left_out(wrong: dict[str, Any]) -> None:
    """Alone, and among others in one message."""
    bad = {**_METRIC, **wrong}
    ledger = Ledger()
    for offset, report in enumerate([bad, _METRIC, {"data": [_METRIC, bad, _METRIC]}]):
        ledger.apply(verbs.ForeignMetric(offset=offset, body=json.dumps(report).encode()), NOW_MS)
    assert list(ledger.queues) == ["q"]
    page, _ = ledger.apply(rq.ReadHistory(queue="q"), NOW_MS)
    assert [row.finished_ms for row in page.records] == [1_000] * 3


def test_an_answer_that_cannot_be_sent_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the coordinator would lose its connection by it, and so would each one that takes over."""
    with pytest.raises(StorageError, match="OverflowError"):
        wire.open_reply("CountJobs", wire.reply(_ASKED, 2**70).body)
    monkeypatch.setattr(wire, "_MOST_BYTES", 1_000)
    with pytest.raises(StorageError, match="ask for less"):
        wire.open_reply("Export", wire.reply(_ASKED, b"x" * 1_001).body)


@pytest.mark.parametrize(
    "error",
    [ConfigError("limit", "a whole number from 1", "x"), ConfigError("end", message="end is before start")],
)
def test_a_config_error_of_the_coordinator_arrives_with_its_text(error: ConfigError) -> None:
    with pytest.raises(ConfigError) as caught:
        wire.open_reply("CountJobs", wire.error_reply(_ASKED, error).body)
    assert (str(caught.value), caught.value.option, caught.value.want) == (
        str(error),
        error.option,
        error.want,
    )


def test_a_config_error_of_an_older_coordinator_is_read() -> None:
    older = wire.Reply(None, "ConfigError", ["limit", "a whole number from 1"])
    with pytest.raises(ConfigError) as caught:
        wire.open_reply("CountJobs", wire._encode(older))
    assert str(caught.value) == "limit must be a whole number from 1"


def test_an_entry_of_a_stream_is_no_larger_than_a_message() -> None:
    large = json.dumps(
        {"type": "retry", "jid": "x", "retry_at": 1, "job": {**_JOB, "args": ["a" * MOST_BODY]}}
    )
    with pytest.raises(MessageError, match="are more than"):
        read_entry(large.encode(), "retry", NOW_MS)


def test_large_messages_that_are_cut_off_are_not_taken_for_one() -> None:
    cut = b"x" * MOST_KEPT
    assert poison("q", cut, "20000000 bytes", NOW_MS).id != poison("q", cut, "20000001 bytes", NOW_MS).id


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass(fresh_url()) as app:
        yield app
        store = app.store.backend
        assert isinstance(store, AmqpBackend)
        await store.remove_all()


async def _publish(app: Windlass, *entries: tuple[str, dict[str, Any]]) -> None:
    """Put entries of another program into streams."""
    store = app.store.backend
    assert isinstance(store, AmqpBackend)

    async def publish(client: Any) -> None:
        names = client.names
        await client.publish(
            [Outgoing("", getattr(names, stream), json.dumps(body).encode()) for stream, body in entries]
        )

    await store._run(publish)


@pytest.mark.feature("C17", "N6")
@pytest.mark.service("rabbitmq")
async def test_coordinators_go_on_with_impossible_values_in_streams(app: Windlass) -> None:
    await app.queue("q").count()
    job = {"class": "t", "args": [1], "queue": "q", "priority": 10**30}
    await _publish(
        app,
        ("job_metrics", {"type": "job_metric", **_METRIC, "timestamp": 1e300}),
        ("heartbeats", {"identity": "a:1:b", "beat": 2**40, "pid": 10**30}),
        ("retries", {"type": "retry", "jid": "again", "retry_at": 1, "retry_count": 1, "job": job}),
        ("scheduled_jobs", {"type": "scheduled_job", "jid": "later", "scheduled_at": 1, "job": job}),
    )
    ran: list[str] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(job.id)

    async with Worker("q", handler, url_or_app=app):
        await until(lambda: len(ran) == 2, "both jobs ran")
    assert sorted(ran) == ["again", "later"]
    async with Windlass(app.url) as other:
        await app.close()  # the other one takes over, and reads all of it again
        assert len((await other.store.execute(rq.ReadHistory(queue="q"))).records) == 2
        assert [worker.id for worker in await other.queue("q").get_workers() if worker.id == "a:1:b"] == []
        await app.open()
