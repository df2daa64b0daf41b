"""An idle consumer gets as many messages as the worker has free slots, and offers them one by one."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from windlass.backends.amqp.intake import Intake
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.speedups.amqp_frames import Delivery

QUEUE = "q"


class _Broker:
    """An intake with an idle worker, and its requests to the connection."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.prefetch = 1
        self.deliver: Callable[[Delivery], None] = lambda delivery: None
        self.ending: list[IoFuture[None]] = []
        self.hints = 0
        self.offered: list[tuple[Any, IoFuture[None]]] = []
        self.consumers = 0
        self.intake = Intake(self._client())
        self.intake.offer = self._offer
        self.intake.free_slots = lambda queue: self.slots
        self.intake.start_idle_consumer(QUEUE)

    def _client(self) -> Any:
        def set_prefetch(prefetch_count: int) -> None:
            self.prefetch = prefetch_count

        def hint(topics: list[str]) -> None:
            self.hints += 1

        return SimpleNamespace(
            names=SimpleNamespace(queue=str),
            hub=SimpleNamespace(wanted=lambda topic: True, publish=hint),
            channel=SimpleNamespace(basic_qos=set_prefetch),
            paused=set(),
            usable=True,
            closed=False,
            consume_many=self._consume,
            cancel_consumer=lambda tag, ended: self.ending.append(ended),
            expect=lambda promise: promise,
            call_later=lambda seconds, call: None,
            delivered=lambda delivery: None,
        )

    def _consume(self, queue: str, taker: Callable[[Delivery], None]) -> str:
        self.deliver = taker
        self.consumers += 1
        return f"consumer{self.consumers}"

    def _offer(self, queue: str, delivery: Any) -> bool:
        if not self.slots:
            return False
        self.slots -= 1
        self.offered.append((delivery, self.intake.begin_offer(queue)))
        return True

    def push(self, *tags: int) -> None:
        """The broker pushes messages to the idle consumer."""
        for tag in tags:
            self.deliver(Delivery(tag, False, None, 0, b"{}"))

    def answer(self, *, began: bool) -> None:
        """The worker answers the last offer."""
        delivery, offer = self.offered[-1]
        self.intake.end_offer(QUEUE, delivery, offer, began=began, more=self.slots > 0)

    def claim(self) -> list[int]:
        """The tags of the pushed messages that a claim takes."""

        async def go() -> list[int]:
            await self.intake.finish_idle_consumer(QUEUE)
            return [delivery.tag for delivery in self.intake.take(QUEUE, 10)]

        self.intake.begin_claim([QUEUE])
        taken = spawn(go())
        for ended in self.ending:
            ended.set(None)
        return taken.result()

    @property
    def tags(self) -> list[int]:
        return [delivery.tag for delivery, _ in self.offered]


@pytest.mark.parametrize(("slots", "prefetch"), [(0, 1), (1, 1), (10, 10), (500, 16)])
def test_an_idle_consumer_gets_no_more_than_the_worker_has_slots_for(slots: int, prefetch: int) -> None:
    assert _Broker(slots).prefetch == prefetch


def test_a_worker_with_free_slots_gets_one_message_after_the_other_by_one_consumer() -> None:
    broker = _Broker(3)
    broker.push(1)
    broker.answer(began=True)
    broker.push(2, 3)
    assert broker.tags == [1, 2], "the third waits until the second has begun"
    broker.answer(began=True)
    assert broker.tags == [1, 2, 3]
    assert (broker.consumers, broker.ending) == (1, [])


def test_a_worker_that_is_full_gets_nothing_more() -> None:
    broker = _Broker(1)
    broker.push(1)
    broker.answer(began=True)
    assert len(broker.ending) == 1
    assert broker.hints == 1


def test_messages_after_one_that_did_not_begin_wait_in_their_order() -> None:
    """Else a younger job would start before an older one."""
    broker = _Broker(3)
    broker.push(1, 2, 3)
    broker.answer(began=False)
    assert broker.tags == [1]
    assert broker.claim() == [1, 2, 3]


def test_a_claim_takes_messages_that_came_while_one_was_offered() -> None:
    broker = _Broker(3)
    broker.push(1, 2)
    broker.intake.begin_claim([QUEUE])
    broker.answer(began=True)
    assert broker.tags == [1]
    assert broker.claim() == [2]


def test_a_worker_with_more_free_slots_than_a_consumer_gets_is_notified_to_claim() -> None:
    """The broker pushes nothing more while the jobs of the consumer run."""
    broker = _Broker(50)
    for tag in range(1, 17):
        broker.push(tag)
        broker.answer(began=True)
    assert broker.slots == 34
    assert (len(broker.ending), broker.hints) == (1, 1)
    assert not broker.intake.listens(QUEUE), "or hints of the coordinator would be ignored"


def test_jobs_that_end_make_room_for_others_without_another_consumer() -> None:
    """The broker pushes more as soon as their messages are acknowledged."""
    broker = _Broker(50)
    for tag in range(1, 41):
        broker.push(tag)
        broker.answer(began=True)
        broker.intake.end_offered(QUEUE, tag)
    assert (broker.consumers, broker.ending, broker.hints) == (1, [], 0)


def test_messages_that_came_are_offered_before_an_exhausted_consumer_ends() -> None:
    broker = _Broker(50)
    broker.push(*range(1, 17))
    for _ in range(15):
        broker.answer(began=True)
        assert broker.ending == []
    broker.answer(began=True)
    assert broker.tags == list(range(1, 17))
    assert (len(broker.ending), broker.hints) == (1, 1)
