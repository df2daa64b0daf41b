"""Calls from an event loop to the thread that serves a store, with a timeout.

If the thread has not begun a call after ``timeout`` seconds, the call is withdrawn: it raises
``StorageError`` and will never run. If the thread has begun it, the caller waits a quarter of that time
longer, and the error says that the outcome is unknown. Cancelling the waiting task does not stop the work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from windlass.backend import requests as rq
from windlass.backend.requests import Request
from windlass.errors import StorageError

R = TypeVar("R")

#: Part of the error for a call that was sent and not answered.
UNKNOWN = "outcome unknown, repeat with the same id"

#: A call that has begun gets this share of the timeout in addition. After a suspended machine resumes, or a
#: handler that blocked the loop returns, the timer would otherwise fire before an answer that has arrived.
_BEGUN_SHARE = 0.25


class StoreCall(Generic[R]):
    """Created and awaited (``future``) on one event loop; begun and answered by another thread.

    The timeout starts with ``watch``.
    """

    __slots__ = ("_explain", "_ticket", "_watched", "future", "loop", "request", "timeout")

    def __init__(
        self, timeout: float, explain: Callable[[bool], str], request: Request[R] | None = None
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.future: asyncio.Future[R] = self.loop.create_future()
        # Both the thread and the timer try to pop this item. One of them succeeds: ``list.pop`` is atomic.
        self._ticket = [True]
        self.timeout: float = timeout
        self._explain = explain
        self._watched: _Deadlines | None = None
        self.request: Any = request

    def watch(self) -> None:
        """Start the timeout of the call."""
        watched = _of_thread.by_timeout.get(self.timeout)
        if watched is None or watched.loop is not self.loop:
            watched = _of_thread.by_timeout[self.timeout] = _Deadlines(self.loop, self.timeout)
        self._watched = watched
        watched.add(self)

    @property
    def waiting(self) -> bool:
        """Whether the call was neither begun nor withdrawn."""
        return bool(self._ticket)

    def begin(self) -> bool:
        """Take the call for execution; False if it was withdrawn or has begun. Callable from any thread."""
        try:
            return self._ticket.pop()
        except IndexError:
            return False

    def answer(self, value: R | None, error: BaseException | None) -> None:
        """Set the result or the error of the call, on its own loop. A late answer is dropped."""
        if self._watched is not None:
            self._watched.calls.pop(self, None)
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)  # type: ignore[arg-type]
        else:
            self.future.set_exception(error)

    def expire(self, *, begun: bool) -> None:
        """End the call with the error for a timeout."""
        self.answer(None, StorageError(self._explain(begun)))


class _Deadlines:
    """The deadlines of the calls of one event loop that have the same timeout. One timer serves them all."""

    __slots__ = ("_begun", "_timeout", "_timer", "calls", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self.loop = loop
        self._timeout = timeout
        #: Calls without an answer and their deadlines, the earliest first.
        self.calls: dict[StoreCall[Any], float] = {}
        #: Calls that had begun at their deadline, and their extended deadlines.
        self._begun: dict[StoreCall[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: StoreCall[Any]) -> None:
        self.calls[call] = due = self.loop.time() + self._timeout
        if self._timer is None:
            self._timer = self.loop.call_at(due, self._expire_calls)

    def _expire_calls(self) -> None:
        """Withdraw calls that have not begun by their deadline; fail those past their extended deadline."""
        now = self.loop.time()
        for call in _past(self.calls, now):
            if call.begin():
                call.expire(begun=False)
            else:
                self._begun[call] = now + self._timeout * _BEGUN_SHARE
        for call in _past(self._begun, now):
            if not call.future.done():
                call.expire(begun=True)
        nearest = [next(iter(calls.values())) for calls in (self.calls, self._begun) if calls]
        self._timer = self.loop.call_at(min(nearest), self._expire_calls) if nearest else None


def _past(calls: dict[StoreCall[Any], float], now: float) -> list[StoreCall[Any]]:
    """Remove and return the calls whose deadline has passed. ``calls`` is ordered by deadline."""
    past: list[StoreCall[Any]] = []
    for call, due in calls.items():
        if due > now:
            break
        past.append(call)
    for call in past:
        del calls[call]
    return past


class _OfThread(threading.local):
    """The deadlines of the event loop that runs in this thread, by timeout."""

    def __init__(self) -> None:
        self.by_timeout: dict[float, _Deadlines] = {}


_of_thread = _OfThread()


Answer = tuple[StoreCall[Any], Any, BaseException | None]


def deliver(answers: Iterable[Answer]) -> None:
    """Hand answers to the loops that wait for them, with one wake-up per loop. Callable from any thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, loop_answers in by_loop.items():
        try:
            loop.call_soon_threadsafe(_answer_all, loop_answers)
        except RuntimeError:
            pass  # the loop is closed, so nothing waits for the answer


def _answer_all(answers: list[Answer]) -> None:
    for call, value, error in answers:
        call.answer(value, error)


def size_of(request: rq.Request[Any]) -> int:
    """The most jobs that a request can affect, for the size of a group of calls."""
    if type(request) is rq.Add:
        return len(request.jobs)
    if type(request) is rq.Settle:
        return len(request.items) + (request.claim.limit if request.claim else 0)
    return int(getattr(request, "limit", 1))
