"""Coroutines on pika's I/O loop: futures, and ``spawn`` to run coroutines that await them.

Everything here runs on the connection's thread, so there are no locks. A caller on another thread awaits a
future of its own event loop (see ``backend.AmqpBackend``).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable
from typing import Any, Generic, TypeVar

from windlass.errors import StorageError

T = TypeVar("T")


class _CallbackQueue(threading.local):
    """The callbacks that are due on this thread.

    If a callback sets another future, the callbacks of that future run after it, not nested in it. A new
    coordinator carries out thousands of log entries, each waiting for the previous one. Nested calls would
    overflow the stack.
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
        try:
            while due:
                try:
                    due.popleft()()
                except BaseException as exc:
                    error = error or exc
        finally:  # a signal handler may raise anywhere on the thread of a caller
            self._running = False
        if error is not None:
            raise error


_callbacks_due = _CallbackQueue()


class IoFuture(Generic[T]):
    """A value that comes later. The first ``set`` or ``fail`` counts; others are ignored."""

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
        """Whether it is done and has an error."""
        return self._error is not None

    def result(self) -> T:
        """Return the value, or raise the error. Call this only when ``done``."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it was set

    def then(self, callback: Callable[[], None]) -> None:
        """Call back when this is done; now, if it already is."""
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
    """A future that is already set to ``value``."""
    promise: IoFuture[T] = IoFuture()
    promise.set(value)
    return promise


def spawn(coroutine: Coroutine[IoFuture[Any], None, T]) -> IoFuture[T]:
    """Run ``coroutine``, which awaits only ``IoFuture``s. It runs up to its first await in this call.

    An error is that of the future. An interrupt is raised here as well, because it may have left the
    connection in any state.
    """
    outcome: IoFuture[T] = IoFuture()

    def step() -> None:
        while True:
            try:
                awaited = coroutine.send(None)
            except StopIteration as end:
                outcome.set(end.value)
                return
            except Exception as exc:
                outcome.fail(exc)
                return
            except BaseException:  # of a signal handler, on the thread of a caller
                outcome.fail(StorageError("the call was interrupted; repeat it"))
                raise
            if not awaited.done:
                awaited.then(step)
                return

    step()
    return outcome
