"""One call on its way from an event loop to the thread that serves it, and back.

A call has ``timeout`` seconds, whatever the thread is doing. One that has not begun by then is taken back: it
raises ``StorageError`` and will never run. One that has begun raises a quarter of that time later, and says
that its outcome is unknown. Cancelling the task that waits does not stop the work.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from windlass.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from windlass.backend.requests import Request

R = TypeVar("R")

#: What is said of a call that was sent and not answered.
UNKNOWN = "outcome unknown, repeat with the same id"

#: A call that has begun gets this much more time: after a suspended machine wakes up, or a handler that
#: blocked the loop returns, the timer fires before the answer that is on its way.
_BEGUN_SHARE = 0.25


class StoreCall(Generic[R]):
    """Made and awaited (``future``) on one event loop; begun and answered by another thread.

    The time that it takes is counted from ``watch`` on.
    """

    __slots__ = ("_explain", "_ticket", "_watched", "future", "loop", "request", "timeout")

    def __init__(
        self, timeout: float, explain: Callable[[bool], str], request: Request[R] | None = None
    ) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.future: asyncio.Future[R] = self.loop.create_future()
        # Popping the ticket decides: the thread begins the call, or the timer takes it back.
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
        """Neither begun nor taken back."""
        return bool(self._ticket)

    def begin(self) -> bool:
        """Take the call for execution; False when it was taken back."""
        try:
            return self._ticket.pop()
        except IndexError:
            return False

    def answer(self, value: R | None, error: BaseException | None) -> None:
        """End the call, on its own loop. An answer that comes too late is dropped."""
        if self._watched is not None:
            self._watched.calls.pop(self, None)
        if self.future.done():
            return
        if error is None:
            self.future.set_result(value)  # type: ignore[arg-type]
        else:
            self.future.set_exception(error)

    def expire(self, *, begun: bool) -> None:
        """Its deadline has passed."""
        self.answer(None, StorageError(self._explain(begun)))


class _Deadlines:
    """When the calls of one event loop must have been answered. All have the same time, so one timer does."""

    __slots__ = ("_begun", "_timeout", "_timer", "calls", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self.loop = loop
        self._timeout = timeout
        #: Calls that wait for their answer, each with its deadline: the earliest is first.
        self.calls: dict[StoreCall[Any], float] = {}
        #: Those that had begun when their time was over, with when it is over for good.
        self._begun: dict[StoreCall[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: StoreCall[Any]) -> None:
        self.calls[call] = due = self.loop.time() + self._timeout
        if self._timer is None:
            self._timer = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        """Take back what has not begun in its time; give up what had begun and had a little more."""
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
        self._timer = self.loop.call_at(min(nearest), self._look) if nearest else None


def _past(calls: dict[StoreCall[Any], float], now: float) -> list[StoreCall[Any]]:
    """Take out the calls whose deadline has come."""
    past: list[StoreCall[Any]] = []
    for call, due in calls.items():
        if due > now:
            break
        past.append(call)
    for call in past:
        del calls[call]
    return past


class _OfThread(threading.local):
    """The deadlines of the event loop that runs in this thread, by how much time calls have."""

    def __init__(self) -> None:
        self.by_timeout: dict[float, _Deadlines] = {}


_of_thread = _OfThread()


Answer = tuple[StoreCall[Any], Any, BaseException | None]


def deliver(answers: Iterable[Answer]) -> None:
    """Hand answers to the loops that wait for them: one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, its in by_loop.items():
        try:
            loop.call_soon_threadsafe(_answer_all, its)
        except RuntimeError:
            pass  # the loop is closed, so nothing waits for the answer


def _answer_all(answers: list[Answer]) -> None:
    for call, value, error in answers:
        call.answer(value, error)
