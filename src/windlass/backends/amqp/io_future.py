"""Coroutines on pika's I/O loop: a value that comes later, and what runs a coroutine that awaits such values.

Everything here happens on the one thread of the connection, so nothing is locked. A caller on another
thread has a future of its event loop (see ``backend.AmqpBackend``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class _CallbackQueue(threading.local):
    """The callbacks that are due on this thread.

    A callback that sets the next future does not call its callbacks inside itself: they run after it. A new
    coordinator carries out thousands of log entries, each waiting for the one before; calls inside calls
    would end in a stack overflow.
    """

    def __init__(self) -> None:
        self._due: deque[Callable[[], None]] = deque()
        self._running = False

    def run(self, callbacks: Iterable[Callable[[], None]]) -> None:
        self._due.extend(callbacks)
        if self._running:
            return
        self._running, due = True, self._due
        error: BaseException | None = None
        while due:
            try:
                due.popleft()()
            except BaseException as exc:
                error = error or exc
        self._running = False
        if error is not None:
            raise error


_callbacks_due = _CallbackQueue()


class IoFuture(Generic[T]):
    """A value that comes later. Set once; what is set after that is ignored."""

    __slots__ = ("_callbacks", "_error", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    def set(self, value: T) -> None:
        if not self.done:
            self.done, self._value = True, value
            self._call()

    def fail(self, error: BaseException) -> None:
        if not self.done:
            self.done, self._error = True, error
            self._call()

    @property
    def failed(self) -> bool:
        """Whether it is done, with an error."""
        return self._error is not None

    def result(self) -> T:
        """The value, or the error raised. Only when ``done``."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it was set

    def then(self, callback: Callable[[], None]) -> None:
        """Call back once this is done; at once when it is already."""
        if self.done:
            callback()
        else:
            self._callbacks.append(callback)

    def _call(self) -> None:
        if self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            _callbacks_due.run(callbacks)

    def __await__(self) -> Generator[IoFuture[T], None, T]:
        if not self.done:
            yield self
        return self.result()


def resolved(value: T) -> IoFuture[T]:
    """A promise that is done already."""
    promise: IoFuture[T] = IoFuture()
    promise.set(value)
    return promise


def spawn(coroutine: Coroutine[IoFuture[Any], None, T]) -> IoFuture[T]:
    """Run ``coroutine``, which awaits promises only; its first steps happen in this call."""
    outcome: IoFuture[T] = IoFuture()

    def step() -> None:
        while True:
            try:
                awaited = coroutine.send(None)
            except StopIteration as end:
                outcome.set(end.value)
                return
            except BaseException as exc:
                outcome.fail(exc)
                return
            if not awaited.done:
                awaited.then(step)
                return

    step()
    return outcome
