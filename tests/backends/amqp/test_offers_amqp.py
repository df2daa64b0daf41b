"""Jobs that an idle worker begins as their message comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.backends.amqp.servers import fresh_url
from tests.faults.kit import until
from windlass import Job, JobState, Windlass, Worker
from windlass.backend import requests as rq
from windlass.backend.hub import Hub
from windlass.backends.amqp.offers import Offer, OfferedSlot, Offers, OfferTimeouts, WorkerListener
from windlass.core.job import JobRecord
from windlass.core.paths import counts


@pytest.mark.service("rabbitmq")
async def test_an_idle_worker_begins_the_job_whose_message_comes() -> None:
    """Each job runs once, and the log knows it."""
    ran: list[int] = []

    async def handler(job: Job[Any]) -> int:
        ran.append(job.data["n"])
        return int(job.data["n"])

    before, calls = counts["amqp.offered"], 0
    async with Windlass(fresh_url()) as app:
        queue = app.queue("q")
        async with Worker("q", handler, url_or_app=app, concurrency=4):
            async with asyncio.timeout(40):
                while counts["amqp.offered"] < before + 3:
                    assert await queue.add_and_wait("job", {"n": calls}) == calls
                    calls += 1
        assert ran == list(range(calls))
        found = await queue.get_job_counts()
        assert (found[JobState.COMPLETED], found[JobState.ACTIVE]) == (calls, 0)
        await app.store.backend.remove_all()  # type: ignore[attr-defined]


@pytest.mark.service("rabbitmq")
async def test_a_worker_that_is_full_holds_no_message_that_another_could_run() -> None:
    gate, ran = asyncio.Event(), list[str]()

    async def slow(job: Job[Any]) -> None:
        ran.append("slow")
        await gate.wait()

    async def quick(job: Job[Any]) -> None:
        ran.append("quick")

    url = fresh_url()
    async with Windlass(url) as one, Windlass(url) as two:
        queue = one.queue("q")
        async with Worker("q", slow, url_or_app=one, concurrency=1):
            await queue.add("job")
            await until(lambda: ran == ["slow"], "the first worker is full")
            async with Worker("q", quick, url_or_app=two, concurrency=1):
                for _ in range(3):
                    await (await queue.add("job")).result()
            gate.set()
        assert ran == ["slow", "quick", "quick", "quick"]
        await one.store.backend.remove_all()  # type: ignore[attr-defined]


async def _listener(slots: int) -> tuple[Offers, WorkerListener]:
    offers = Offers()
    listener = offers.listen(Hub(), ["worker:w", "ready:q"])
    assert isinstance(listener, WorkerListener)
    listener.on_offer(lambda job, since_ms: True)
    offers.claimed(_claim(slots), 0)
    return offers, listener


def _claim(slots: int) -> rq.Claim:
    queues = [rq.ClaimQueue("q", slots, slots)]
    return rq.Claim(worker="w", queues=queues, limit=slots, claim_id="c", idle=True)


async def test_an_offered_job_that_ended_leaves_its_slot_to_another() -> None:
    offers, listener = await _listener(1)
    slot = OfferedSlot(listener)
    listener.offer(JobRecord(queue="q", id="a", task="n", payload=b""), lambda began: None)
    assert offers.find("q") is None
    slot.release()
    assert offers.find("q") is listener


@pytest.mark.parametrize("how", ["claim", "decline"])
async def test_a_slot_that_was_counted_again_meanwhile_is_not_counted_twice(how: str) -> None:
    offers, listener = await _listener(2)
    slot = OfferedSlot(listener)
    listener.offer(JobRecord(queue="q", id="a", task="n", payload=b""), lambda began: None)
    if how == "claim":
        offers.claimed(_claim(2), 1)
    else:
        listener.decline()
    free = listener.free_slots
    slot.release()
    assert listener.free_slots == free


class _Timers:
    """Timers that the test ends."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        assert seconds == 0.25
        self.calls.append(call)

    def fire(self) -> None:
        (call,) = self.calls  # one timer for all offers
        self.calls = []
        call()


def _offer(answers: list[bool], age_ms: float) -> Offer:
    offer = Offer(JobRecord(queue="q", id="a", task="n", payload=b""), answers.append)
    offer.since_ms -= age_ms
    return offer


def test_an_offer_that_no_worker_looks_at_is_taken_back_in_its_time() -> None:
    timers, answers = _Timers(), list[bool]()
    timeouts = OfferTimeouts(timers.call_later, 0.25)
    late, fresh = _offer(answers, 300), _offer(answers, 0)
    timeouts.add(late)
    timeouts.add(fresh)
    timers.fire()
    assert (answers, late.take()) == ([False], False)
    fresh.since_ms -= 300
    timers.fire()
    assert (answers, timers.calls) == ([False, False], [])


def test_an_offer_that_a_worker_has_looked_at_is_left_alone() -> None:
    timers, answers = _Timers(), list[bool]()
    timeouts = OfferTimeouts(timers.call_later, 0.25)
    taken = _offer(answers, 300)
    timeouts.add(taken)
    assert taken.take()
    timers.fire()
    assert (answers, timers.calls) == ([], [])
