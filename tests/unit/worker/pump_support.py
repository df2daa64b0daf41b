"""What the tests of the pump share: pumps, ends and answers in one word each."""

from __future__ import annotations

from typing import Any

from windlass.backend.requests import Claimed
from windlass.core.job import JobRecord
from windlass.core.outcome import Outcome, Settlement
from windlass.worker.options import to_specs
from windlass.worker.pump import Exchange, Pump, ReconcileStep, Wait
from windlass.worker.shares import SharePlanner

POLL_MS = 2_000


def pump_of(slots: int = 4, queues: Any = "mail", **options: Any) -> Pump:
    shares = SharePlanner(to_specs(queues, slots), "weighted")
    return Pump(shares, slots=slots, poll_ms=POLL_MS, **options)


def end(token: str, queue: str = "mail") -> Settlement:
    return Settlement(queue=queue, id=token, token=token, outcome=Outcome.COMPLETE)


def claimed(count: int = 0, *, due_in_ms: int | None = None, queue: str = "mail") -> Claimed:
    jobs = [JobRecord(queue=queue, id=str(n), task="t", payload=b"") for n in range(count)]
    return Claimed(jobs, now_ms=0, next_due_in_ms=due_in_ms)


def give(pump: Pump, count: int, now_ms: float = 0, **answer: Any) -> bool:
    """Answer the exchange that is next with ``count`` jobs, and begin them."""
    exchange = pump.next(now_ms)
    assert isinstance(exchange, Exchange)
    drained = pump.answered(exchange, claimed(count, **answer) if exchange.queues else None, now_ms)
    for _ in range(count):
        pump.began("mail")
    return drained


def shown(step: object) -> object:
    """A step as the tables write it: what is settled, and how many are claimed."""
    if isinstance(step, Exchange):
        return [one.token for one in step.settlements], step.limit
    if isinstance(step, Wait):
        return ("rest until" if step.ignore_hints else "wait until"), step.until_ms
    if isinstance(step, ReconcileStep):
        return "reconcile", step.tokens
    return step


def one_ended(pump: Pump) -> None:
    give(pump, 1)
    pump.freed("mail")
    pump.ended(end("a"))


def paused(pump: Pump) -> None:
    pump.paused = True


def cut_off(pump: Pump) -> None:
    one_ended(pump)
    exchange = pump.next(0)
    assert isinstance(exchange, Exchange)
    pump.failed(exchange)
    pump.interrupted()
