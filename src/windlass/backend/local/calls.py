"""One call on its way from an event loop to a database thread and back.

A call that was not begun in time is taken back: it raises ``StorageError`` and will never be carried out.
One that was begun is waited for somewhat longer. Cancelling the task that waits does not stop the work.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from windlass.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from windlass.backend.requests import Request

R = TypeVar("R")

#: A call that was begun may take this many timeouts more.
_BEGUN_FACTOR = 4


class Call(Generic[R]):
    """Made and awaited on one event loop; begun and answered by a database thread."""

    __slots__ = ("_answer", "_explain", "_future", "_patience", "_ticket", "loop", "request", "timeout")

    def __init__(self, request: Request[R], timeout: float, explain: Callable[[bool], str]) -> None:
        self.request = request
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[R] | None = None
        #: Of a call that nobody had to wait for.
        self._answer: tuple[R | None, Exception | None] = (None, None)
        # Whoever pops the ticket decides: the thread that begins the call, or the timer that drops it.
        self._ticket = [True]
        self.timeout = timeout
        self._explain = explain
        self._patience: Patience | None = None

    def start(self) -> asyncio.Future[R]:
        """What to wait for."""
        self._future = self.loop.create_future()
        return self._future

    def wait_with(self, patience: Patience) -> None:
        """From now on the time that this takes is counted."""
        self._patience = patience

    def result(self) -> R:
        """The answer to a call that was carried out before it was started."""
        value, error = self._answer
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    @property
    def waiting(self) -> bool:
        """Neither begun nor dropped."""
        return bool(self._ticket)

    def begin(self) -> bool:
        """Take the call for execution; False when it was dropped."""
        try:
            return self._ticket.pop()
        except IndexError:
            return False

    def answer(self, value: R | None, error: Exception | None) -> None:
        """End the call, on its own loop."""
        if self._patience is not None:
            self._patience.one_less()
            self._patience = None
        if self._future is None:
            self._answer = value, error
        elif not self._future.done():
            if error is None:
                self._future.set_result(value)  # type: ignore[arg-type]
            else:
                self._future.set_exception(error)

    def give_up(self, *, begun: bool) -> bool:
        """Its time is over; ``begun``: also when it was begun. False when it is still waited for."""
        if self._patience is None:
            return True  # it was answered
        if not begun and not self.begin():
            return False
        self.answer(None, StorageError(self._explain(begun)))
        return True


class Patience:
    """How long the calls that were handed over together are waited for. One timer serves them all."""

    __slots__ = ("_calls", "_left", "_loop", "_timer")

    def __init__(self, calls: list[Call[Any]]) -> None:
        self._calls = calls
        self._left = len(calls)
        self._loop = calls[0].loop
        for call in calls:
            call.wait_with(self)
        self._timer = self._loop.call_later(calls[0].timeout, self._late)

    def one_less(self) -> None:
        """One of the calls was answered."""
        self._left -= 1
        if not self._left:
            self._timer.cancel()

    def _late(self) -> None:
        self._calls = [call for call in self._calls if not call.give_up(begun=False)]
        if self._calls:
            self._timer = self._loop.call_later(self._calls[0].timeout * _BEGUN_FACTOR, self._overdue)

    def _overdue(self) -> None:
        for call in self._calls:
            call.give_up(begun=True)


Answer = tuple[Call[Any], Any, Exception | None]


def deliver(answers: Iterable[Answer]) -> None:
    """Hand answers to the loops that wait for them: one wake-up for each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Answer]] = {}
    for answer in answers:
        by_loop.setdefault(answer[0].loop, []).append(answer)
    for loop, its in by_loop.items():
        try:
            loop.call_soon_threadsafe(_answer_all, its)
        except RuntimeError:
            pass  # that loop is closed: nobody waits any more


def _answer_all(answers: list[Answer]) -> None:
    for call, value, error in answers:
        call.answer(value, error)
