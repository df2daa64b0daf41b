"""One call on its way from an event loop to the thread that serves it, and back.

A call has ``timeout`` seconds, whatever the thread is doing. One that has not begun by then is taken back: it
raises ``StorageError`` and will never run. One that has begun raises a quarter of that time later, and says
that its outcome is unknown. Cancelling the task that waits does not stop the work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from windlass.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from windlass.backend.requests import Request

R = TypeVar("R")

#: What is said of a call that was sent and not answered.
UNKNOWN = "outcome unknown, repeat with the same id"

#: A call that has begun gets this much more time: after a suspended machine wakes up, or a handler that
#: blocked the loop returns, the timer fires before the answer that is on its way.
_BEGUN_SHARE = 0.25


class Pending(Generic[R]):
    """Made and awaited on one event loop; begun and answered by another thread."""

    __slots__ = ("_deadline", "_explain", "_future", "_ticket", "loop", "timeout")

    def __init__(self, timeout: float, explain: Callable[[bool], str]) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._future: asyncio.Future[R] = self.loop.create_future()
        # Popping the ticket decides: the thread begins the call, or the timer takes it back.
        self._ticket = [True]
        self.timeout: float = timeout
        self._explain = explain
        self._deadline: Deadline | None = None

    def __await__(self) -> Generator[Any, None, R]:
        return self._future.__await__()

    def watch(self, deadline: Deadline) -> None:
        """From now on the time that this takes is counted."""
        self._deadline = deadline

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
        if self._deadline is not None:
            self._deadline.answered()
            self._deadline = None
        if self._future.done():
            return
        if error is None:
            self._future.set_result(value)  # type: ignore[arg-type]
        else:
            self._future.set_exception(error)

    def expire(self, *, begun: bool) -> bool:
        """Its time is over; ``begun``: also when it has begun. False when it is still waited for."""
        if self._deadline is None:
            return True  # it was answered
        if not begun and not self.begin():
            return False
        self.answer(None, StorageError(self._explain(begun)))
        return True


class StoreCall(Pending[R]):
    """A request to a database thread."""

    __slots__ = ("request",)

    def __init__(self, request: Request[R], timeout: float, explain: Callable[[bool], str]) -> None:
        super().__init__(timeout, explain)
        self.request: Request[R] = request


class Deadline:
    """When the calls that were handed over together must have been answered. One timer serves them all."""

    __slots__ = ("_calls", "_left", "_loop", "_timer")

    def __init__(self, calls: Sequence[Pending[Any]]) -> None:
        self._calls = list(calls)
        self._left = len(calls)
        self._loop = calls[0].loop
        for call in calls:
            call.watch(self)
        self._timer = self._loop.call_later(calls[0].timeout, self._take_back)

    def answered(self) -> None:
        """One of the calls was answered."""
        self._left -= 1
        if not self._left:
            self._timer.cancel()

    def _take_back(self) -> None:
        self._calls = [call for call in self._calls if not call.expire(begun=False)]
        if self._calls:
            seconds = self._calls[0].timeout * _BEGUN_SHARE
            self._timer = self._loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        for call in self._calls:
            call.expire(begun=True)


Answer = tuple[StoreCall[Any], Any, BaseException | None]
_Outcome = tuple[Pending[Any], Any, BaseException | None]


def deliver(answers: Iterable[_Outcome]) -> None:
    """Hand answers to the loops that wait for them: one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Outcome]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, its in by_loop.items():
        try:
            loop.call_soon_threadsafe(_answer_all, its)
        except RuntimeError:
            pass  # that loop is closed: no task waits any more


def _answer_all(answers: list[_Outcome]) -> None:
    for call, value, error in answers:
        call.answer(value, error)
