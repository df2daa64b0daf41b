"""One connection to the broker, on a thread of its own, that comes back when it is lost.

The thread runs pika's loop and answers the broker's heartbeats whatever handlers do. Work is handed to it as
coroutines (``run``); all state of a connection lives in its ``Session`` and dies with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pika
from pika.adapters.select_connection import IOLoop

from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.session import AmqpSession
from windlass.errors import ConfigError, StorageError
from windlass.speedups.amqp import Connection, PlainConnection

log = logging.getLogger("windlass.amqp")

T = TypeVar("T")

_FIRST_DELAY_S, _LAST_DELAY_S = 0.1, 2.0
#: How long a coordinator may take to end what it has begun.
_LEAVE_S = 2.0


class Link:
    """A thread with a connection. Shared by a backend and its clones; ``start`` and ``stop`` are counted."""

    def __init__(self, parameters: pika.URLParameters, make: Callable[[Link, Any], AmqpSession]) -> None:
        self._parameters = parameters
        self._make = make
        self._lock = threading.Lock()
        self._users = 0
        self._thread: threading.Thread | None = None
        self.loop: IOLoop
        self._connection: PlainConnection | None = None
        self._session: AmqpSession | None = None
        self._waiting: IoFuture[AmqpSession] = IoFuture()
        self._delay_s = _FIRST_DELAY_S
        self._closing = False
        self._last_error = "no answer yet"

    # --- from any thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Take part in the connection; the first one makes it."""
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            self._closing = False
            self.loop = IOLoop()
            self._waiting = IoFuture()
            self._thread = threading.Thread(target=self._main, name="windlass-amqp", daemon=True)
            self._thread.start()

    def stop(self) -> threading.Thread | None:
        """Leave; the last one closes the connection. Returns the thread that is on its way out."""
        with self._lock:
            if self._users == 0:
                return None
            self._users -= 1
            if self._users:
                return None
            thread, self._thread = self._thread, None
            self.loop.add_callback_threadsafe(self._close)
            return thread

    def run(
        self,
        make: Callable[[AmqpSession], Coroutine[IoFuture[Any], None, T]],
        begin: Callable[[], bool],
        done: Callable[[IoFuture[T]], None],
    ) -> None:
        """Run ``make(session)`` on the connection's thread once there is a session and ``begin`` says that
        the call still stands; ``done`` is called there with its outcome."""
        self.loop.add_callback_threadsafe(lambda: self._begin(make, begin, done))

    @property
    def last_error(self) -> str:
        """Why there is no connection."""
        return self._last_error

    # --- on the thread ------------------------------------------------------------------------------

    def _begin(
        self,
        make: Callable[[AmqpSession], Coroutine[IoFuture[Any], None, T]],
        begin: Callable[[], bool],
        done: Callable[[IoFuture[T]], None],
    ) -> None:
        async def go() -> T:
            session = await self._waiting
            if not begin():
                raise StorageError("the call was taken back: its time was over")
            return await make(session)

        connection = self._connection
        if connection is not None:
            connection.gather()
        outcome = spawn(go())
        if connection is not None:
            connection.send_gathered()
        outcome.then(lambda: done(outcome))

    def _main(self) -> None:
        while True:
            self._connect()
            try:
                self.loop.start()
                break
            except Exception as exc:
                log.exception("unexpected error on the connection's thread, beginning anew")
                session, self._session = self._session, None
                if session is not None:
                    session.fail(StorageError(f"the connection broke down ({exc}); repeat the call"))
                if self._waiting.done:
                    self._waiting = IoFuture()
                with self._lock:
                    if self._users == 0:
                        break
                    self.loop = IOLoop()
        self.loop.close()

    def _connect(self) -> None:
        if self._closing:
            return
        self._connection = Connection(
            self._parameters,
            on_open_callback=self._opened,
            on_open_error_callback=lambda _, error: self._lost(error),
            on_close_callback=lambda _, error: self._lost(error),
            custom_ioloop=self.loop,
        )

    def _opened(self, connection: Any) -> None:
        session = self._session = self._make(self, connection)
        started = spawn(session.start())

        def done() -> None:
            try:
                started.result()
            except Exception as exc:
                self._last_error = f"{exc}"
                log.warning("the broker does not let us set up what we need: %s", exc)
                if isinstance(exc, ConfigError):
                    self._waiting.fail(exc)  # another try ends alike
                if connection.is_open:
                    connection.close()
                return
            self._delay_s = _FIRST_DELAY_S
            self._waiting.set(session)

        started.then(done)

    def _lost(self, error: Any) -> None:
        """The connection could not be made, or is gone: all who wait for an answer get the error."""
        reason = error if isinstance(error, BaseException) else RuntimeError(str(error))
        if not self._closing:
            self._last_error = f"{type(reason).__name__}: {reason}"
        session, self._session = self._session, None
        if self._waiting.done:
            self._waiting = IoFuture()
        if session is not None:
            session.fail(StorageError(f"the connection to the broker was lost ({reason}); repeat the call"))
        if self._closing:
            self._end()
            return
        self.loop.call_later(self._delay_s, self._connect)
        self._delay_s = min(self._delay_s * 2, _LAST_DELAY_S)

    def _close(self) -> None:
        self._closing = True
        if self._session is None or not self._session.usable:
            self._hang_up()
            return
        left = spawn(self._session.leave())
        if not left.done:
            self.loop.call_later(_LEAVE_S, lambda: left.fail(TimeoutError()))
        left.then(self._hang_up)

    def _hang_up(self) -> None:
        connection = self._connection
        if connection is not None and connection.is_open:
            connection.close()
        elif connection is None or connection.is_closed:
            self._end()
        else:
            connection.add_on_open_callback(lambda opened: opened.close())

    def _end(self) -> None:
        self._waiting.fail(StorageError("the client was closed"))
        self.loop.stop()
