"""A bell brings as many messages as the worker has room for; they are shown one after the other."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pika import BasicProperties, spec

from windlass.backends.amqp.intake import Intake
from windlass.backends.amqp.io_future import IoFuture, spawn

QUEUE = "q"


class _Broker:
    """An intake with an idle worker, and what it asks of its connection."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.prefetch = 1
        self.ring: Callable[..., None] = lambda *message: None
        self.ending: list[IoFuture[None]] = []
        self.hints = 0
        self.shown: list[tuple[Any, IoFuture[None]]] = []
        self.bells = 0
        self.intake = Intake(self._client())
        self.intake.offer = self._show
        self.intake.free_slots = lambda queue: self.room
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
            consume=self._consume,
            cancel_consumer=lambda tag, ended: self.ending.append(ended),
            expect=lambda promise: promise,
            call_later=lambda seconds, call: None,
            delivered=lambda delivery: None,
        )

    def _consume(self, channel: Any, queue: str, callback: Callable[..., None]) -> str:
        self.ring = callback
        self.bells += 1
        return f"bell{self.bells}"

    def _show(self, queue: str, delivery: Any) -> bool:
        if not self.room:
            return False
        self.room -= 1
        self.shown.append((delivery, self.intake.begin_offer(queue)))
        return True

    def push(self, *tags: int) -> None:
        """Messages come by the bell."""
        for tag in tags:
            method = spec.Basic.Deliver(delivery_tag=tag, redelivered=False)
            self.ring(None, method, BasicProperties(), b"{}")

    def answer(self, *, began: bool) -> None:
        """The worker answers what it was shown last."""
        delivery, showing = self.shown[-1]
        self.intake.end_offer(QUEUE, delivery, showing, began=began, more=self.room > 0)

    def claim(self) -> list[int]:
        """The tags that a claim takes of what was pushed."""

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
        return [delivery.tag for delivery, _ in self.shown]


@pytest.mark.parametrize(("room", "prefetch"), [(0, 1), (1, 1), (10, 10), (500, 16)])
def test_a_bell_brings_no_more_than_the_worker_has_room_for(room: int, prefetch: int) -> None:
    assert _Broker(room).prefetch == prefetch


def test_a_worker_with_room_gets_one_message_after_the_other_by_one_bell() -> None:
    broker = _Broker(3)
    broker.push(1)
    broker.answer(began=True)
    broker.push(2, 3)
    assert broker.tags == [1, 2], "the third waits until the second has begun"
    broker.answer(began=True)
    assert broker.tags == [1, 2, 3]
    assert (broker.bells, broker.ending) == (1, [])


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


def test_a_claim_takes_what_came_while_a_message_was_shown() -> None:
    broker = _Broker(3)
    broker.push(1, 2)
    broker.intake.begin_claim([QUEUE])
    broker.answer(began=True)
    assert broker.tags == [1]
    assert broker.claim() == [2]


def test_a_worker_with_more_room_than_a_bell_brings_is_told_to_claim() -> None:
    """The broker pushes nothing more while the jobs run that the bell brought."""
    broker = _Broker(50)
    for tag in range(1, 17):
        broker.push(tag)
        broker.answer(began=True)
    assert broker.room == 34
    assert (len(broker.ending), broker.hints) == (1, 1)
    assert not broker.intake.listens(QUEUE), "or hints of the coordinator would be ignored"


def test_messages_that_came_are_shown_before_a_used_up_bell_ends() -> None:
    broker = _Broker(50)
    broker.push(*range(1, 17))
    for _ in range(15):
        broker.answer(began=True)
        assert broker.ending == []
    broker.answer(began=True)
    assert broker.tags == list(range(1, 17))
    assert (len(broker.ending), broker.hints) == (1, 1)
