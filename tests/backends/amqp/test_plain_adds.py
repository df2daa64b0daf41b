"""Adds that several callers make at the same time: one entry in the log, and each caller its own answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.backends.amqp.servers import clear, fresh_url, open_store
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend, plain_adds, verbs, wire
from windlass.backends.amqp.client import AmqpClient
from windlass.core.ids import new_id
from windlass.core.job import NewJob
from windlass.core.outcome import AddOutcome
from windlass.core.states import JobState
from windlass.errors import StorageError

backend_name = "amqp"
pytestmark = pytest.mark.service("rabbitmq")


def _new(size: int = 0, queue: str = "q") -> NewJob:
    return NewJob(queue=queue, id=new_id(), task="n", payload=b'{"args":["' + b"x" * size + b'"]}')


@pytest.fixture
async def store() -> AsyncIterator[AmqpBackend]:
    store = await open_store(fresh_url())
    try:
        await store.prepare(["q"])
        yield store
    finally:
        try:
            await clear(store)
        finally:
            await store.close()


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of jobs in each entry of new jobs that this process appends to the log."""
    written: list[int] = []
    entry = AmqpClient.entry

    def note(client: AmqpClient, fact: rq.Request[Any]) -> Any:
        if isinstance(fact, verbs.Born):
            written.append(len(fact.add.jobs))
        return entry(client, fact)

    monkeypatch.setattr(AmqpClient, "entry", note)
    return written


@contextmanager
def _connection_at_work(store: AmqpBackend) -> Iterator[None]:
    """Keep the connection's thread at work. What is requested meanwhile meets in its next turn."""
    began, end = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        end.wait(60)

    store._shared.link.loop.add_callback_threadsafe(work)
    assert began.wait(60)
    try:
        yield
    finally:
        end.set()


async def _add(store: AmqpBackend, requests: list[rq.Add]) -> list[list[rq.Added] | BaseException]:
    """Make adds that meet in one turn of the connection's thread; returns their answers or errors."""
    with _connection_at_work(store):
        adding = [asyncio.create_task(store.execute(request)) for request in requests]
        await asyncio.sleep(0)  # each of them hands its request over
    return await asyncio.gather(*adding, return_exceptions=True)


def _outcomes(answers: list[list[rq.Added] | BaseException]) -> list[list[AddOutcome]]:
    """The outcomes of each add. Raises the first error."""
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [[one.outcome for one in answer] for answer in answers if not isinstance(answer, BaseException)]


async def _waiting(store: AmqpBackend) -> int:
    return (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING]


async def test_adds_of_many_callers_share_an_entry(store: AmqpBackend, entries: list[int]) -> None:
    answers = await _add(store, [rq.Add(jobs=[_new()] * (n % 2) + [_new()]) for n in range(100)])
    assert _outcomes(answers) == [[AddOutcome.QUEUED] * (n % 2 + 1) for n in range(100)]
    assert entries == [150]
    assert await _waiting(store) == 150


async def test_an_entry_has_a_limited_size(
    store: AmqpBackend, entries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_adds, "_MOST_JOBS", 10)
    monkeypatch.setattr(plain_adds, "_MOST_BYTES", 5_000)
    _outcomes(await _add(store, [rq.Add(jobs=[_new()]) for _ in range(40)]))
    assert entries == [10] * 4
    _outcomes(await _add(store, [rq.Add(jobs=[_new(2_000)]) for _ in range(10)]))
    assert entries == [10] * 4 + [2] * 5
    assert await _waiting(store) == 50


async def _assert_fails_alone(store: AmqpBackend, bad: NewJob) -> None:
    """Ten callers add at the same time, one of them ``bad``."""
    answers = await _add(store, [rq.Add(jobs=[_new() if n != 5 else bad]) for n in range(10)])
    assert [isinstance(one, Exception) for one in answers] == [n == 5 for n in range(10)]
    assert await _waiting(store) == 9


async def test_an_add_that_cannot_be_written_fails_alone(store: AmqpBackend) -> None:
    await _assert_fails_alone(store, NewJob(queue="q", id=new_id(), task="\ud800", payload=b"{}"))


async def _delete_queue(client: AmqpClient, queue: str) -> None:
    """Delete a queue as an operator would."""
    await client.call((await client.open_channel()).queue_delete, client.names.queue(queue))


@pytest.mark.parametrize("together", [True, False])
async def test_an_add_to_a_queue_that_was_deleted_fails_alone(store: AmqpBackend, together: bool) -> None:
    """The next one declares the queue again."""
    await store.prepare(["gone"])
    await store._run(lambda client: _delete_queue(client, "gone"))
    jobs = [_new(), _new(queue="gone"), _new(), _new()]
    if together:
        requests = [rq.Add(jobs=[new]) for new in jobs]
    else:  # with different times, they have entries of their own
        requests = [rq.Add(jobs=[new], now_ms=1_000 + at) for at, new in enumerate(jobs)]
    answers = await _add(store, requests)
    assert [isinstance(one, Exception) for one in answers] == [False, True, False, False]
    with pytest.raises(StorageError, match=r"no queue takes 'gone' of exchange .*; repeat the call"):
        _outcomes(answers)
    assert _outcomes(await _add(store, requests[1:2])) == [[AddOutcome.QUEUED]]


async def test_each_add_has_its_own_entry_if_the_shared_one_cannot_be_written(
    store: AmqpBackend, entries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry, bad = AmqpClient.entry, _new()

    def refuse(client: AmqpClient, fact: rq.Request[Any]) -> Any:
        written = entry(client, fact)
        if isinstance(fact, verbs.Born) and bad in fact.add.jobs:
            raise ValueError("it cannot be encoded")
        return written

    monkeypatch.setattr(AmqpClient, "entry", refuse)
    await _assert_fails_alone(store, bad)
    assert entries == [10] + [1] * 10


async def test_an_add_that_is_repeated_before_its_answer_is_answered_twice(store: AmqpBackend) -> None:
    """Also if a caller waits for the result, and so for the job's direct reply."""
    listener = store.listen_completed("q", lambda ends: None)
    listener.awaits = lambda job_id: True
    try:
        request = rq.Add(jobs=[_new()])
        assert _outcomes(await _add(store, [request, request])) == [[AddOutcome.QUEUED]] * 2
        assert await _waiting(store) == 1
    finally:
        listener.close()


async def test_a_large_add_has_entries_of_limited_size(
    store: AmqpBackend, entries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker closes the channel of a client that publishes a message of more than 128 MiB (or less)."""
    monkeypatch.setattr(plain_adds, "_MOST_BYTES", 5_000)
    jobs = [_new(2_000) for _ in range(5)]
    jobs.insert(2, _new(9_000))
    answers = await _add(store, [rq.Add(jobs=jobs)])
    assert _outcomes(answers) == [[AddOutcome.QUEUED] * 6]
    assert entries == [2, 1, 2, 1]
    assert await _waiting(store) == 6


@pytest.mark.parametrize("plain", [True, False])
async def test_a_request_that_is_too_large_for_the_broker_fails_alone(
    store: AmqpBackend, monkeypatch: pytest.MonkeyPatch, plain: bool
) -> None:
    """The connection stays, and so do the jobs that run on it."""
    monkeypatch.setattr(wire, "_MOST_BYTES", 10_000)
    session, bad = store._shared.link._session, _new(20_000)
    if not plain:
        bad.delay_ms = 60_000
    await _assert_fails_alone(store, bad)
    with pytest.raises(StorageError, match="more than the broker may take"):
        await store.execute(rq.Add(jobs=[bad]))
    assert store._shared.link._session is session
