"""A server that stands still for 4 s: the caller's event loop goes on, and every call keeps its timeout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.frozen import Store
from windlass import Job, Queue, StorageError, Windlass, Worker
from windlass_conformance.stage import Standstill

#: A stall is a matter of time, so nothing else may run beside these.
pytestmark = pytest.mark.serial

_FROZEN_S = 4.0
_MOST_STALL_S = 0.05
_TICK_S = 0.002
_UNKNOWN = "outcome unknown, repeat with the same id"

Act = Callable[[Queue, int], Awaitable[Any]]


async def _add(queue: Queue, turn: int) -> None:
    await queue.add("n", job_id=f"one-{turn}")


async def _add_unnamed(queue: Queue, turn: int) -> None:
    await queue.add("n")


async def _add_bulk(queue: Queue, turn: int) -> None:
    await queue.add_bulk([{"name": "n", "job_id": f"many-{turn}-{number}"} for number in range(100)])


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("valkey", marks=pytest.mark.service("valkey")),
        pytest.param("amqp", marks=pytest.mark.service("rabbitmq")),
    ],
)
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(backend_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store(backend_name, Path(tmp_path_factory.mktemp("frozen")))
    yield store
    store.stop()


@pytest.fixture
async def app(server: Store, request: pytest.FixtureRequest) -> AsyncIterator[Windlass]:
    async with Windlass(f"{server.url}?timeout=1&namespace={abs(hash(request.node.name))}") as app:
        yield app


class Ticks:
    """Knows for how long the loop stood still at most since ``begin``, while the machine ran this process."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = Standstill().__enter__()
        self._last = self._loop.time()
        self._stalls: list[tuple[float, float]] = []
        self._timer = self._loop.call_soon(self._tick)

    def begin(self) -> None:
        self._last = self._loop.time()
        self._stalls.clear()

    @property
    def longest(self) -> float:
        return self._machine.longest_other(self._stalls)

    def stop(self) -> None:
        self._timer.cancel()
        self._machine.__exit__()

    def _tick(self) -> None:
        now = self._loop.time()
        due = self._last + _TICK_S
        if now > due + _TICK_S:  # others are too short to matter
            self._stalls.append((due, now))
        self._last = now
        self._timer = self._loop.call_later(_TICK_S, self._tick)


@contextmanager
def frozen(server: Store) -> Iterator[asyncio.Event]:
    """The server stands still for 4 s, after which the event is set, or until the block has ended."""
    over = asyncio.Event()

    def thaw() -> None:
        server.thaw()
        over.set()

    server.freeze()
    timer = asyncio.get_running_loop().call_later(_FROZEN_S, thaw)
    try:
        yield over
    finally:
        timer.cancel()
        server.thaw()


@pytest.mark.parametrize("act", [_add, _add_unnamed, _add_bulk])
async def test_a_call_raises_at_its_timeout_and_the_loop_runs_on(
    app: Windlass, server: Store, act: Act
) -> None:
    queue, loop, ticks = app.queue("q"), asyncio.get_running_loop(), Ticks()
    await act(queue, 0)
    stalls: list[float] = []
    with frozen(server):
        for turn in (1, 2):
            ticks.begin()
            began = loop.time()
            # The second may have no connection that it trusts: it then says that nothing was sent.
            with pytest.raises(StorageError, match=_UNKNOWN if turn == 1 else "no answer|did not answer"):
                await act(queue, turn)
            assert 0.9 < loop.time() - began < 1.5
            stalls.append(ticks.longest)
    ticks.stop()
    assert min(stalls) < _MOST_STALL_S  # a busy machine may hold up one turn, not each
    await act(queue, 1)
    assert await queue.count() >= (2 if act is not _add_bulk else 200)


async def test_a_call_behind_one_that_waits_keeps_its_own_timeout(app: Windlass, server: Store) -> None:
    queue, loop = app.queue("q"), asyncio.get_running_loop()
    await queue.add("n")

    async def late(turn: int) -> float:
        await asyncio.sleep(
            turn * 0.3
        )  # the calls are to begin one after the other while the server is frozen
        began = loop.time()
        with pytest.raises(StorageError):
            await queue.add("n", job_id=f"{turn}")
        return loop.time() - began

    with frozen(server):
        took = await asyncio.gather(*(late(turn) for turn in range(4)))
    assert max(took) < 1.5
    assert [(await queue.add("n", job_id=f"{turn}")).id for turn in range(4)] == ["0", "1", "2", "3"]
    assert await queue.count() == 5


async def test_a_call_that_waits_longer_is_answered_when_the_server_goes_on(server: Store) -> None:
    async with Windlass(f"{server.url}?timeout=20&namespace=patient") as app:
        queue, ticks = app.queue("q"), Ticks()
        await queue.add("first")
        with frozen(server):
            ticks.begin()
            job = await queue.add("second", job_id="second")
        ticks.stop()
        assert job.outcome == "queued"
        assert ticks.longest < _MOST_STALL_S


async def test_a_worker_settles_after_the_freeze_and_its_loop_runs_on(app: Windlass, server: Store) -> None:
    begun, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    runs = 0

    async def handler(job: Job[Any]) -> str:
        nonlocal runs
        runs += 1
        begun.set()
        await go_on.wait()
        ended.set()
        return "done"

    ticks = Ticks()
    async with Worker("q", handler, url_or_app=app, lease=30, poll=0.5):
        job = await app.queue("q").add("n")
        async with asyncio.timeout(20):
            await begun.wait()
        with frozen(server) as over:
            ticks.begin()
            go_on.set()
            await ended.wait()
            await over.wait()
        stall = ticks.longest
        ticks.stop()
        assert await job.result(timeout=30) == "done"
    assert runs == 1
    assert stall < _MOST_STALL_S
