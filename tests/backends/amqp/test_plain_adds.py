"""Adds that several callers make at the same time: one entry in the log, and each caller its own answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.backends.amqp.servers import fresh_url, open_store
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend, plain_adds, verbs
from windlass.backends.amqp.client import AmqpClient
from windlass.core.ids import new_id
from windlass.core.job import NewJob
from windlass.core.outcome import AddOutcome
from windlass.core.states import JobState

backend_name = "amqp"
pytestmark = pytest.mark.service("rabbitmq")


def _new(size: int = 0, queue: str = "q") -> NewJob:
    return NewJob(queue=queue, id=new_id(), task="n", payload=b'{"args":["' + b"x" * size + b'"]}')


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


async def _add(store: AmqpBackend, requests: list[rq.Add]) -> list[list[rq.Added]]:
    return await asyncio.gather(*(store.execute(request) for request in requests))


async def _waiting(store: AmqpBackend) -> int:
    return (await store.execute(rq.CountJobs(queue="q")))[JobState.WAITING]


async def test_adds_of_many_callers_share_an_entry(entries: list[int]) -> None:
    store = await open_store(fresh_url())
    await store.prepare(["q"])
    answers = await _add(store, [rq.Add(jobs=[_new()] * (n % 2) + [_new()]) for n in range(100)])
    assert [len(one) for one in answers] == [n % 2 + 1 for n in range(100)]
    assert {one.outcome for many in answers for one in many} == {AddOutcome.QUEUED}
    assert sum(entries) == 150 and len(entries) < 50
    assert await _waiting(store) == 150
    await store.remove_all()
    await store.close()


async def test_an_entry_has_a_limited_size(entries: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_adds, "_MOST_JOBS", 10)
    monkeypatch.setattr(plain_adds, "_MOST_BYTES", 5_000)
    store = await open_store(fresh_url())
    await store.prepare(["q"])
    await _add(store, [rq.Add(jobs=[_new()]) for _ in range(40)])
    assert sum(entries) == 40 and max(entries) <= 10
    await _add(store, [rq.Add(jobs=[_new(2_000)]) for _ in range(10)])
    assert sum(entries) == 50 and max(entries[-5:]) <= 2
    assert await _waiting(store) == 50
    await store.remove_all()
    await store.close()


async def _assert_fails_alone(bad: NewJob) -> None:
    """Ten callers add at the same time, one of them ``bad``."""
    store = await open_store(fresh_url())
    await store.prepare(["q"])
    requests = [rq.Add(jobs=[_new() if n != 5 else bad]) for n in range(10)]
    answers = await asyncio.gather(*(store.execute(one) for one in requests), return_exceptions=True)
    assert [isinstance(one, Exception) for one in answers] == [n == 5 for n in range(10)]
    assert await _waiting(store) == 9
    await store.remove_all()
    await store.close()


async def test_an_add_that_cannot_be_written_fails_alone() -> None:
    await _assert_fails_alone(NewJob(queue="q", id=new_id(), task="\ud800", payload=b"{}"))


async def test_each_add_has_its_own_entry_if_the_shared_one_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry, bad = AmqpClient.entry, _new()

    def refuse(client: AmqpClient, fact: rq.Request[Any]) -> Any:
        if isinstance(fact, verbs.Born) and bad in fact.add.jobs:
            raise ValueError("it cannot be encoded")
        return entry(client, fact)

    monkeypatch.setattr(AmqpClient, "entry", refuse)
    await _assert_fails_alone(bad)


async def test_an_add_that_is_repeated_before_its_answer_is_answered_twice() -> None:
    """Also if a caller waits for the result, and so for the job's direct reply."""
    store = await open_store(fresh_url())
    await store.prepare(["q"])
    listener = store.listen_completed("q", lambda ends: None)
    listener.awaits = lambda job_id: True
    request = rq.Add(jobs=[_new()])
    answers = await _add(store, [request, request])
    assert [one.outcome for many in answers for one in many] == [AddOutcome.QUEUED] * 2
    assert await _waiting(store) == 1
    listener.close()
    await store.remove_all()
    await store.close()
