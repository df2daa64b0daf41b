"""Pushed messages keep their order: with claims, with returned messages, and with those still in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.backends.amqp.servers import fresh_url
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend
from windlass.backends.amqp.intake import Intake
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.core.clock import SteadyClock
from windlass.core.ids import new_id
from windlass.core.job import NewJob
from windlass.speedups.amqp import Outgoing
from windlass.speedups.amqp_frames import Delivery

backend_name = "amqp"
QUEUE = "q"


class _Names:
    def queue(self, name: str) -> str:
        return name


class _Hub:
    def wanted(self, topic: str) -> bool:
        return True

    def publish(self, topics: list[str]) -> None:
        pass


class _Client:
    """A connection whose broker answers when the test says so."""

    def __init__(self) -> None:
        self.names, self.hub, self.clock = _Names(), _Hub(), SteadyClock()
        self.paused: set[str] = set()
        self.usable, self.closed = True, False
        self.on_paused: Any = None
        self.channel: Any = self
        self.takers: list[Callable[[Delivery], None]] = []
        self.timers: list[Callable[[], None]] = []
        self.ending: list[IoFuture[None]] = []
        self.answers: list[Callable[[Any], None]] = []
        self.given_back: list[int] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append(call)

    def cancel_timer(self, timer: None) -> None:
        pass

    def fire(self) -> None:
        """Run the timers: their time has passed."""
        timers, self.timers = self.timers, []
        for timer in timers:
            timer()

    def consume_many(self, queue: str, taker: Callable[[Delivery], None]) -> str:
        self.takers.append(taker)
        return f"consumer{len(self.takers)}"

    def cancel_consumer(self, tag: str, ended: IoFuture[None]) -> None:
        self.ending.append(ended)

    def basic_cancel(self, tag: str) -> None:
        pass

    def basic_qos(self, prefetch_count: int, callback: Any = None) -> None:
        if callback is not None:
            self.answers.append(callback)

    async def call(self, method: Any, **options: Any) -> Any:
        answer: IoFuture[Any] = IoFuture()
        method(callback=answer.set, **options)
        return await answer

    def expect(self, promise: IoFuture[Any]) -> IoFuture[Any]:
        return promise

    def delivered(self, delivery: Delivery) -> None:
        pass

    def requeue(self, tags: Any) -> None:
        self.given_back += list(tags)


def _message(number: int) -> Delivery:
    return Delivery(number, False, None, 0, b"{}")


def _prefetching() -> tuple[_Client, Intake]:
    """An intake that has prefetched three messages, which no worker claims in time."""
    client = _Client()
    intake = Intake(client)  # type: ignore[arg-type]
    intake.on_full_claim(QUEUE, 5)
    intake.on_full_claim(QUEUE, 5)
    for number in (1, 2, 3):
        client.takers[0](_message(number))
    client.fire()
    client.fire()
    assert len(client.ending) == 1
    return client, intake


def _claim(intake: Intake) -> IoFuture[list[Delivery]]:
    """The pushed messages that a claim takes before it pulls the rest."""

    async def go() -> list[Delivery]:
        await intake.finish_idle_consumer(QUEUE)
        return intake.take(QUEUE, 10)

    intake.begin_claim([QUEUE])
    return spawn(go())


def test_a_claim_during_the_cancel_of_a_consumer_takes_its_messages_in_order() -> None:
    client, intake = _prefetching()
    found = _claim(intake)
    client.takers[0](_message(4))  # it was on its way
    client.ending[0].set(None)
    assert [delivery.tag for delivery in found.result()] == [1, 2, 3, 4]
    for answer in client.answers:
        answer(None)
    assert client.given_back == []


def test_unclaimed_messages_are_returned_together_with_those_in_flight() -> None:
    client, _ = _prefetching()
    client.ending[0].set(None)
    assert client.given_back == []
    client.takers[0](_message(4))  # the broker answers before it hands over the last ones
    client.answers[0](None)
    assert client.given_back == [1, 2, 3, 4]


def test_messages_that_a_claim_leaves_of_a_cancelled_consumer_are_returned_when_unclaimed() -> None:
    client, intake = _prefetching()
    found = _claim(intake)
    client.ending[0].set(None)
    assert len(found.result()) == 3
    client.answers[0](None)
    intake.end_claim([QUEUE])
    client.takers[0](_message(4))  # it was on its way
    client.fire()
    client.fire()
    client.answers[-1](None)
    assert client.given_back == [4]


def test_no_idle_consumer_starts_while_a_claim_is_running() -> None:
    """It would get a message that is older than those that the claim pulls at the same time."""
    client = _Client()
    intake = Intake(client)  # type: ignore[arg-type]
    offer = intake.begin_offer(QUEUE)
    found = _claim(intake)
    intake.end_offer(QUEUE, _message(1), offer, began=True, more=True)
    assert found.done
    assert client.takers == []
    intake.end_claim([QUEUE])
    assert len(client.takers) == 1


@pytest.mark.service("rabbitmq")
async def test_a_claim_that_must_ask_about_its_jobs_is_not_overtaken_by_the_next() -> None:
    """Messages that came before are asked about first; the claim after it waits for its turn."""
    store = open_backend(fresh_url())
    assert isinstance(store, AmqpBackend)
    await store.open()
    ids = [new_id() for _ in range(10)]

    async def add(some: list[str]) -> None:
        await store.execute(rq.Add(jobs=[NewJob(queue=QUEUE, id=id, task="n", payload=b"{}") for id in some]))

    async def deliver_all_once(client: Any) -> None:
        found = await client.pull(client.names.queue(QUEUE), 5)
        client.requeue([delivery.tag for delivery in found])

    started: list[str] = []

    async def claim() -> None:
        queues = [rq.ClaimQueue(QUEUE, 5, 5)]
        request = rq.Claim(worker="w", queues=queues, limit=5, claim_id=new_id(), lease_ms=30_000)
        started.extend(job.id for job in (await store.execute(request)).jobs)

    await add(ids[:5])
    await store._run(deliver_all_once)
    await add(ids[5:])
    await asyncio.gather(claim(), claim())
    assert started == ids
    await store.remove_all()
    await store.close()


@pytest.mark.service("rabbitmq")
async def test_messages_that_arrive_while_a_consumer_is_cancelled_are_taken_in_order() -> None:
    """Large messages arrive in pieces and are read by pika, the others are not: none may go back."""
    store = open_backend(fresh_url())
    assert isinstance(store, AmqpBackend)
    await store.open()
    sizes = [10, 200_000] * 15
    bodies = [b"%02d" % n + bytes(size) for n, size in enumerate(sizes)]

    async def consume(client: Any) -> list[Delivery]:
        await client.need_queue(QUEUE)
        await client.publish(Outgoing(client.names.direct, QUEUE, body) for body in bodies)
        found: list[Delivery] = []
        ended: IoFuture[None] = IoFuture()

        def take(delivery: Delivery) -> None:
            found.append(delivery)
            if len(found) == 3:
                client.channel.basic_qos(prefetch_count=1)  # pika sends what follows after its answer
                client.cancel_consumer(tag, ended)

        client.channel.basic_qos(prefetch_count=len(bodies))
        tag = client.consume_many(client.names.queue(QUEUE), take)
        await ended
        rest: list[Delivery] = await client.pull(client.names.queue(QUEUE), len(bodies))
        return found + rest

    found: list[Delivery] = await store._run(consume)
    assert [one.body[:2] for one in found] == [body[:2] for body in bodies]
    assert not any(one.redelivered for one in found)
    await store.remove_all()
    await store.close()
