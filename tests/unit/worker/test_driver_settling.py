"""The driver of a store whose claims go apart from its settlements: who is woken when a job ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.unit.worker.pump_support import claimed, end, pump_of
from windlass.backend import requests as rq
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.outcome import Settled
from windlass.worker.driver import Driver
from windlass.worker.emitter import Emitter


class _Listener:
    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.waits = self.wakes = 0

    async def wait(self, timeout_ms: float | None = None, clock: Any = None) -> frozenset[str]:
        self.waits += 1
        await self.event.wait()
        self.event.clear()
        return frozenset()

    def wake(self) -> None:
        self.wakes += 1
        self.event.set()


class _Store:
    """Has no jobs. Notes how often the first lane was woken before each settlement came."""

    def __init__(self, listener: _Listener) -> None:
        self._listener = listener
        self.settled: list[tuple[list[str], int]] = []

    async def execute(self, request: rq.Request[Any]) -> Any:
        if isinstance(request, rq.Settle):
            self.settled.append(([end.token for end in request.items], self._listener.wakes))
            return rq.SettleResult([Settled.OK for _ in request.items], None)
        return claimed()


def _driver() -> tuple[Driver, Any, _Listener, _Store]:
    pump = pump_of(2)
    pump.claims_separately = True
    shared: Any = SimpleNamespace(
        app=SimpleNamespace(clock=SYSTEM_CLOCK),
        pump=pump,
        emitter=Emitter(),
        supervisor=None,
        stop=SimpleNamespace(forced=asyncio.Event(), is_over=False),
        lease_ms=30_000,
        worker_id="w",
    )
    running: Any = SimpleNamespace(
        begin=lambda *_: None, reporter=SimpleNamespace(settled=lambda *_: None), attempts={}
    )
    driver = Driver(shared, running, on_command_hint=lambda: asyncio.sleep(0))
    listener: Any = _Listener()
    store: Any = _Store(listener)
    driver._listener, driver._store = listener, store
    return driver, pump, listener, store


async def _until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the driver is what we wait for
            await asyncio.sleep(0)


def _end(driver: Driver, pump: Any, token: str) -> None:
    pump.began("mail")
    pump.freed("mail")
    assert pump.ended(end(token))
    driver.settle()


async def test_a_job_that_ends_is_settled_without_waking_a_lane_that_has_nothing_to_claim() -> None:
    driver, pump, listener, store = _driver()
    run = asyncio.create_task(driver.run())
    await _until(lambda: listener.waits == 1)
    _end(driver, pump, "a")
    _end(driver, pump, "b")
    await _until(lambda: listener.waits == 2)
    assert store.settled == [(["a", "b"], 0)]
    _end(driver, pump, "c")
    await _until(lambda: len(store.settled) == 2)
    pump.close()
    driver.wake()
    await asyncio.wait_for(run, 10)


async def test_a_job_that_ends_wakes_a_lane_that_waits_for_a_slot() -> None:
    driver, pump, listener, _ = _driver()
    run = asyncio.create_task(driver.run())
    await _until(lambda: listener.waits == 1)
    pump.hint()
    _end(driver, pump, "a")
    assert listener.wakes == 1
    pump.close()
    await asyncio.wait_for(run, 10)


async def test_no_settlement_is_sent_between_a_failed_step_and_the_next() -> None:
    """The worker first reconciles, when nothing is in flight."""
    driver, pump, listener, store = _driver()
    _end(driver, pump, "a")  # the driver does not run
    await asyncio.sleep(0)
    assert (store.settled, listener.wakes) == ([], 1)
