"""A caller's thread may use the connection while its own thread only waits for the broker."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pika
import pytest

from tests.backends.amqp.servers import fresh_url, open_store
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backend.calls import StoreCall
from windlass.backends.amqp import AmqpBackend
from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.intake import _PrefetchConsumer
from windlass.backends.amqp.io_future import IoFuture
from windlass.backends.amqp.link import Link
from windlass.backends.amqp.names import CLASSIC, Names
from windlass.backends.amqp.session import AmqpSession
from windlass.core.ids import new_id
from windlass.core.job import JobRef, NewJob
from windlass.core.outcome import Outcome, Settlement
from windlass.errors import StorageError
from windlass.speedups.amqp_loop import PlainLoop, SharedLoop

# --- the loop ----------------------------------------------------------------------------------------------


@contextmanager
def _running() -> Iterator[SharedLoop]:
    """A loop on its own thread, which waits for events."""
    loop = SharedLoop()
    assert not loop.enter()  # it does not run yet
    thread = threading.Thread(target=loop.start)
    thread.start()
    _enter(loop)
    loop.leave()
    try:
        yield loop
    finally:
        loop.add_callback_threadsafe(loop.stop)
        thread.join()
        assert not loop.enter()  # it has ended
        loop.close()


def _enter(loop: SharedLoop) -> None:
    """Enter as soon as the loop's thread waits."""
    while not loop.enter():
        pass


def test_the_loops_own_thread_does_nothing_while_another_thread_is_in() -> None:
    order: list[str] = []
    ran = threading.Event()
    with _running() as loop:
        _enter(loop)
        assert not loop.enter()  # one at a time
        loop.add_callback_threadsafe(lambda: (order.append("own thread"), ran.set()))  # type: ignore[func-returns-value]
        order += ["caller"] * 1_000
        loop.leave()
        assert ran.wait(10)
    assert order == ["caller"] * 1_000 + ["own thread"]


def test_a_timer_that_another_thread_sets_fires_in_time() -> None:
    fired = threading.Event()
    with _running() as loop:
        _enter(loop)
        loop.call_later(60, lambda: None)
        loop.call_later(0.001, fired.set)
        loop.leave()
        assert fired.wait(3)  # without a wake-up, pika would wait 5 s


class _Interrupt(BaseException):
    """Raised by a signal handler."""


class _InterruptedLock:
    """A lock that a signal handler interrupts just after it was released."""

    def __init__(self, lock: Any) -> None:
        self.acquire = lock.acquire
        self._lock = lock

    def release(self) -> None:
        self._lock.release()
        raise _Interrupt


def test_a_timer_fires_in_time_even_if_its_thread_is_interrupted_as_it_leaves() -> None:
    fired = threading.Event()
    with _running() as loop:
        _enter(loop)
        loop.call_later(0.001, fired.set)
        lock: Any = loop._lock
        loop._lock = _InterruptedLock(lock)  # type: ignore[assignment]
        with pytest.raises(_Interrupt):
            loop.leave()
        loop._lock = lock
        loop.leave()  # as its callers do then
        assert fired.wait(3)  # without a wake-up, pika would wait 5 s


@pytest.mark.parametrize("kind", [PlainLoop, SharedLoop])
def test_a_loop_that_could_not_start_can_be_closed(
    kind: type[PlainLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process had no file descriptor left for it. The connection's thread makes another loop then."""
    loop = kind()

    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(loop._poller, "_create_poller", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        loop.start()
    loop.close()


def test_nobody_enters_the_plain_loop() -> None:
    loop = PlainLoop()
    assert not loop.enter()
    loop.leave()
    loop.close()


# --- the link ----------------------------------------------------------------------------------------------


class _Loop:
    """Stands for the loop of a link."""

    def __init__(self, *, free: bool) -> None:
        self.free = free
        self.entered = 0
        self.woken: list[Callable[[], None]] = []

    def enter(self) -> bool:
        self.entered += self.free
        return self.free

    def leave(self) -> None:
        self.entered = 0

    def add_callback_threadsafe(self, call: Callable[[], None]) -> None:
        self.woken.append(call)


def _link(*, free: bool) -> tuple[Link, _Loop]:
    link = Link(pika.URLParameters("amqp://localhost"), lambda *_: pytest.fail("no connection is made"))
    loop: Any = _Loop(free=free)
    link.loop = loop
    return link, loop


def test_a_step_runs_at_once_if_the_connections_thread_only_waits() -> None:
    link, loop = _link(free=True)
    ran: list[int] = []
    for number in range(3):
        link.call_soon_threadsafe(lambda number=number: ran.append(number))  # type: ignore[misc]
        assert ran[-1] == number
    assert loop.woken == []


def test_no_step_overtakes_those_that_the_connections_thread_was_woken_for() -> None:
    """A settlement must not overtake the start of its job, whichever way each came."""
    link, loop = _link(free=False)
    ran: list[int] = []
    for number in range(3):
        link.call_soon_threadsafe(lambda number=number: ran.append(number))  # type: ignore[misc]
    loop.free = True
    link.call_soon_threadsafe(lambda: ran.append(3))
    assert ran == []
    assert len(loop.woken) == 1
    loop.woken.pop()()
    assert ran == [0, 1, 2, 3]
    loop.free = False
    link.call_soon_threadsafe(lambda: ran.append(4))
    loop.woken.pop()()  # it is woken again
    assert ran == [0, 1, 2, 3, 4]


async def test_calls_of_a_kind_at_the_same_time_are_left_to_the_connections_thread() -> None:
    """It sends them together."""
    link, loop = _link(free=True)
    link._waiting.set(AmqpSession(None, Names("", CLASSIC)))
    began: list[int] = []

    async def never(number: int) -> None:
        began.append(number)
        await IoFuture()

    for number in range(3):
        call: StoreCall[None] = StoreCall(60, lambda _: "")
        link.run(lambda _, number=number: never(number), call, rq.Add)  # type: ignore[misc]
    assert began == [0]
    await asyncio.sleep(0)
    loop.woken.pop()()
    assert began == [0, 1, 2]
    link.run(lambda _: never(3), StoreCall(60, lambda _: ""), rq.Settle)
    assert began == [0, 1, 2, 3]  # another kind does not wait for the thread
    assert loop.woken == []


async def test_calls_of_one_turn_of_an_event_loop_are_carried_out_together() -> None:
    """Also if the connection's thread is so quick that it is back in time for each of them."""
    link, loop = _link(free=True)
    link._waiting.set(AmqpSession(None, Names("", CLASSIC)))
    turns: list[int] = []

    def run_now(call: Callable[[], None]) -> None:
        turns.append(len(link._steps))
        call()

    loop.add_callback_threadsafe = run_now  # type: ignore[method-assign]

    async def never(_session: AmqpSession) -> None:
        await IoFuture()

    for _ in range(100):
        link.run(never, StoreCall(60, lambda _: ""), rq.Add)
    await asyncio.sleep(0)
    assert turns == [99]


def test_a_caller_carries_out_no_step_of_another_one() -> None:
    """It may be large, and the caller's event loop would stand meanwhile."""
    link, loop = _link(free=True)
    ran: list[int] = []
    link._steps.append(lambda: ran.append(0))
    link.call_soon_threadsafe(lambda: ran.append(1))
    assert ran == []
    loop.woken.pop()()
    assert ran == [0, 1]


def test_an_error_of_a_step_is_left_to_the_connections_thread() -> None:
    """It reconnects, as after an error of its own. The caller goes on."""
    link, loop = _link(free=True)

    def fail() -> None:
        raise ValueError("broken")

    link.call_soon_threadsafe(fail)
    with pytest.raises(RuntimeError, match="thread of a caller") as told:
        loop.woken.pop()()
    assert isinstance(told.value.__cause__, ValueError)


def test_an_interrupt_on_the_thread_of_a_caller_leaves_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the connection's thread would wait for ever."""
    link, loop = _link(free=True)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        link.call_soon_threadsafe(interrupt)
    monkeypatch.setattr("windlass.backends.amqp.link.took", interrupt)
    with pytest.raises(KeyboardInterrupt):
        link.call_soon_threadsafe(lambda: None)
    assert loop.entered == 0
    assert len(loop.woken) == 2  # the connection's thread reconnects


def test_signal_handlers_that_raise_at_any_point_leave_the_loop() -> None:
    """Also just before a step and just after it. Or the connection's thread would wait for ever."""

    def interrupt(*_: object) -> None:
        raise _Interrupt

    def answers() -> bool:
        """Whether the connection's thread runs, and steps are run."""
        for call in (loop.add_callback_threadsafe, link.call_soon_threadsafe):
            ran = threading.Event()
            call(ran.set)
            if not ran.wait(3):
                return False
        return True

    link, _ = _link(free=True)
    loop = link.loop = SharedLoop()
    thread = threading.Thread(target=_start_again_and_again, args=(loop,), daemon=True)
    thread.start()
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(1_000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 5e-6 * (1 + number % 20))
                while True:
                    link.call_soon_threadsafe(lambda: None)
            except _Interrupt:
                assert answers(), f"not after {number} interrupts"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    loop.add_callback_threadsafe(loop.stop)
    thread.join()
    loop.close()


def _start_again_and_again(loop: SharedLoop) -> None:
    while True:
        try:
            loop.start()
            return
        except RuntimeError:
            pass  # an interrupted step: a link would reconnect


# --- with a broker -----------------------------------------------------------------------------------------


async def _thread(client: AmqpClient) -> int:
    return threading.get_ident()


@pytest.mark.service("amqp")
async def test_small_requests_run_on_the_callers_thread_but_not_those_of_a_busy_worker() -> None:
    store = open_backend(fresh_url())
    assert isinstance(store, AmqpBackend)
    await store.open()
    try:
        assert store._shared._consumer is not None
        assert await store._run(_thread) != threading.get_ident()
        while await store._run(_thread, kind=rq.Add) != threading.get_ident():
            pass  # its own thread was at work
        kind_of, busy = store._shared.kind_for_caller, store._shared._consumer.intake._prefetching
        new = NewJob(queue="q", id=new_id(), task="n", payload=b"{}")
        settle: rq.Settle = rq.Settle(items=[])
        assert kind_of(rq.Add(jobs=[new] * 100)) is rq.Add
        assert kind_of(rq.Add(jobs=[new] * 101)) is None
        assert kind_of(rq.Restore(jobs=[])) is None
        assert kind_of(settle) is rq.Settle
        busy["q"] = _PrefetchConsumer(1, 0)
        assert kind_of(settle) is None
        assert kind_of(rq.Add(jobs=[new])) is rq.Add
        del busy["q"]
    finally:
        await store.remove_all()
        await store.close()


def test_large_requests_do_not_run_on_the_callers_thread() -> None:
    """Its event loop would stand while they are encoded and sent: 100 jobs of 1 MB took a second."""
    store = open_backend("amqp://localhost")
    assert isinstance(store, AmqpBackend)
    kind_of = store._shared.kind_for_caller

    def add(jobs: int, size: int) -> type[Any] | None:
        new = NewJob(queue="q", id=new_id(), task="n", payload=b"x" * size)
        return kind_of(rq.Add(jobs=[new] * jobs))

    def settle(result: bytes | None) -> type[Any] | None:
        end = Settlement(queue="q", id="i", token="t", outcome=Outcome.COMPLETE, result=result)
        return kind_of(rq.Settle(items=[end] * 2))

    assert (add(1, 100_000), add(1, 100_001)) == (rq.Add, None)
    assert (add(100, 1_000), add(99, 1_011)) == (rq.Add, None)
    assert (settle(None), settle(b"x" * 50_000), settle(b"x" * 50_001)) == (rq.Settle, rq.Settle, None)
    assert kind_of(rq.ChangeJob(ref=JobRef("q", "i"), payload=b"x" * 1_000_000)) is None


async def _interrupt(store: AmqpBackend) -> None:
    """Interrupt a request on the thread of its caller, while it is sent."""
    session = store._shared.link._session
    assert session is not None
    connection, publish = session.connection, session.connection.publish

    def interrupted(*args: Any) -> None:
        publish(*args)
        if threading.current_thread() is threading.main_thread():
            connection.publish = publish
            raise KeyboardInterrupt

    connection.publish = interrupted
    while connection.publish is interrupted:  # its own thread may be at work
        with contextlib.suppress(KeyboardInterrupt):
            await store.execute(_add())


@pytest.mark.service("amqp")
async def test_confirms_after_an_interrupt_are_those_of_their_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection may have sent a message that it did not count. So another one takes its place."""
    unknown: list[int] = []
    confirmed = AmqpSession._confirmed

    def note(session: AmqpSession, tag: int, refused: bool) -> None:
        unknown.extend({tag} - set(session._unconfirmed))
        confirmed(session, tag, refused)

    store = await open_store(fresh_url())
    monkeypatch.setattr(AmqpSession, "_confirmed", note)
    try:
        await _interrupt(store)
        await _list_workers(store)
        for _ in range(3):
            await store.execute(_add())
        await store.execute(rq.ListWorkers())
        assert unknown == []
    finally:
        await store.remove_all()
        await store.close()


@pytest.mark.service("amqp")
async def test_an_add_that_waits_to_be_sent_fails_with_its_connection() -> None:
    """Or its caller would get no answer before its timeout."""
    store = await open_store(fresh_url())
    await store.prepare(["q"])
    link = store._shared.link
    try:
        while not link.loop.enter():
            pass
        adding = asyncio.create_task(store.execute(_add()))
        await asyncio.sleep(0)
        link._steps.append(_fail)  # runs in the same turn
        link.loop.leave()
        with pytest.raises(StorageError, match="the connection failed"):
            async with asyncio.timeout(10):
                await adding
    finally:
        await store.remove_all()
        await store.close()


def _add() -> rq.Add:
    return rq.Add(jobs=[NewJob(queue="q", id=new_id(), task="n", payload=b"{}")])


def _fail() -> None:
    raise ValueError("broken")


async def _list_workers(store: AmqpBackend) -> None:
    """Ask the coordinator after a connection has failed."""
    with contextlib.suppress(StorageError):  # it may begin before the next connection does
        await store.execute(rq.ListWorkers())
    await store.execute(rq.ListWorkers())


@pytest.mark.service("amqp")
async def test_a_connection_that_failed_makes_room_for_the_next_coordinator() -> None:
    """Otherwise the broker keeps it for a minute, with the queue of the coordinator and all its messages."""
    store = await open_store(fresh_url())
    try:
        store._shared.link.call_soon_threadsafe(_fail)
        async with asyncio.timeout(10):
            await _list_workers(store)
    finally:
        await store.remove_all()
        await store.close()
