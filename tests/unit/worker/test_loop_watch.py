"""A handler that blocks the worker's event loop is named in the log; a machine that sleeps is no cause."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from windlass import Windlass, Worker
from windlass.core.ids import new_id
from windlass.worker import loop_watch
from windlass.worker.loop_watch import EVERY_MS, LIMIT_MS, LoopWatch


class _Seen(logging.Handler):
    """Sets an event at the first warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.event = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.event.set()

    def noticed(self, word: str) -> bool:
        """Wait, without giving way, until a line has ``word``."""
        while not any(word in line for line in self.lines):
            if not self.event.wait(30):
                return False
            self.event.clear()
        return True


@pytest.fixture
def seen() -> Any:
    handler, log = _Seen(), logging.getLogger("windlass.worker")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


async def test_a_handler_that_blocks_the_loop_is_named_with_its_line_and_the_remedy(
    seen: _Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "EVERY_MS", 200)  # a busy machine runs a thread that late
    monkeypatch.setattr(loop_watch, "LIMIT_MS", 400)
    async with Windlass(f"memory://{new_id()}") as app:

        @app.task(name="greedy")
        async def greedy() -> bool:
            return seen.noticed("task greedy")  # blocks the loop until it was noticed

        @app.task(name="patient")
        async def patient() -> None:
            await asyncio.sleep(0)

        await patient.enqueue()
        job = await greedy.enqueue()
        await Worker("default", url_or_app=app).drain()
        assert await job.result() is True
    (line,) = [line for line in seen.lines if "task greedy has blocked" in line]
    assert "task greedy has blocked the event loop for" in line
    assert f"job {job.id} of queue default, at {__file__}:" in line
    assert "in noticed): no other job of this worker goes on meanwhile. Write the task as a plain def" in line


async def test_a_handler_that_waits_or_runs_in_a_thread_is_not_reported(
    seen: _Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "EVERY_MS", 100)  # a busy machine runs a loop late, too
    monkeypatch.setattr(loop_watch, "LIMIT_MS", 1_000)
    looked = threading.Semaphore(0)
    look = LoopWatch.look

    def counted(self: LoopWatch) -> None:
        look(self)
        looked.release()

    monkeypatch.setattr(LoopWatch, "look", counted)

    def wait_for_looks() -> None:
        for _ in range(15):
            assert looked.acquire(timeout=30)

    async with Windlass(f"memory://{new_id()}") as app:

        @app.task(name="in-a-thread")
        def in_a_thread() -> None:
            wait_for_looks()

        @app.task(name="waits")
        async def waits() -> None:
            await asyncio.to_thread(wait_for_looks)

        jobs = [await in_a_thread.enqueue(), await waits.enqueue()]
        await Worker("default", url_or_app=app).drain()
        for job in jobs:
            await job.result()  # raises unless it completed
    assert not [line for line in seen.lines if "in-a-thread" in line or "waits" in line]


class _Clock:
    """Time that the test sets."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def monotonic_ms(self) -> float:
        return self.now_ms


async def test_a_machine_that_slept_is_no_reason_to_warn(seen: _Seen) -> None:
    clock: Any = _Clock()
    running: Any = {"token": type("A", (), {"task": None, "record": type("R", (), {"task": "t"})})}
    watch = LoopWatch(running, clock)
    watch.attach()

    def look(later_ms: float) -> list[str]:
        clock.now_ms += later_ms
        watch.look()
        return seen.lines

    assert look(0) == []  # asks for a sign, which this test, on the loop itself, never lets come
    assert look(3_600_000) == []  # the thread was away for an hour, and the loop with it
    assert look(LIMIT_MS - EVERY_MS * 3) == []
    assert look(EVERY_MS * 2) == []
    (line,) = look(EVERY_MS * 2)
    assert line.startswith("code outside of a handler has blocked the event loop for")
    assert look(EVERY_MS) == [line]  # once
    await asyncio.sleep(0)  # now it answers
    assert look(EVERY_MS) == [line]
    assert look(EVERY_MS) == [line]
