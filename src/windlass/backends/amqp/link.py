"""A connection to the broker on its own thread, which reconnects when the connection is lost.

The thread runs pika's loop, so it answers the broker's heartbeats even while handlers block. It gets work as
coroutines (``run``). All state of a connection is in its ``AmqpSession`` and is dropped with it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop
from pika.exceptions import AMQPError, ConnectionClosedByClient

from windlass.backend.calls import Answer, StoreCall, deliver
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.session import AmqpSession
from windlass.errors import ConfigError, StorageError
from windlass.speedups.amqp import Connection, PlainConnection

log = logging.getLogger("windlass.amqp")

#: Makes the coroutine of a call from the session.
Make = Callable[[AmqpSession], Coroutine[IoFuture[Any], None, Any]]

_FIRST_DELAY_S, _LAST_DELAY_S = 0.1, 2.0
#: How long a coordinator may take to finish its work before the connection is closed.
_LEAVE_S = 2.0


class Link:
    """A thread with a connection. A backend and its clones share it; ``start`` and ``stop`` are counted."""

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
        #: Callbacks to run on the thread, whether it was woken for them, and answers to deliver.
        self._steps: deque[Callable[[], None]] = deque()
        self._woken = False
        self._answers: list[Answer] = []
        self._delay_s = _FIRST_DELAY_S
        self._closing = False
        self._last_error = "no answer yet"

    # --- from any thread -------------------------------------------------------------------------

    def start(self) -> None:
        """Add a user of the connection. The first one opens it."""
        with self._lock:
            self._users += 1
            if self._users > 1:
                return
            self._closing = self._woken = False
            self.loop = IOLoop()
            self._waiting = IoFuture()
            self._thread = threading.Thread(target=self._main, name="windlass-amqp", daemon=True)
            self._thread.start()

    def stop(self) -> threading.Thread | None:
        """Remove a user of the connection. The last one closes it, and gets the thread to join."""
        with self._lock:
            if self._users == 0:
                return None
            self._users -= 1
            if self._users:
                return None
            thread, self._thread = self._thread, None
            self.loop.add_callback_threadsafe(self._close)
            return thread

    def run(self, make: Make, call: StoreCall[Any]) -> None:
        """Run ``make(session)`` on the connection's thread once there is a session, and answer ``call`` with
        the outcome. It does not run if the time of ``call`` is over by then."""
        self.call_soon_threadsafe(lambda: self._begin(make, call))

    def call_soon_threadsafe(self, step: Callable[[], None]) -> None:
        """Run ``step`` on the connection's thread, in the order of the calls."""
        self._steps.append(step)
        if not self._woken:
            self._woken = True
            self.loop.add_callback_threadsafe(self._run_steps)

    @property
    def last_error(self) -> str:
        """Why there is no connection."""
        return self._last_error

    # --- on the thread ------------------------------------------------------------------------------

    def _run_steps(self) -> None:
        """Run the pending steps. Everything that they send is written in one step."""
        self._woken = False  # first: a step that is added from now on wakes us again
        connection = self._connection
        if connection is not None:
            connection.gather()
        for _ in range(len(self._steps)):  # not steps that these add: read the broker's answers first
            self._steps.popleft()()
        if connection is not None:
            connection.send_gathered()

    def _begin(self, make: Make, call: StoreCall[Any]) -> None:
        async def go() -> Any:
            session = await self._waiting
            if not call.begin():
                raise StorageError("the call was withdrawn: its timeout has passed")
            return await make(session)

        outcome = spawn(go())
        outcome.then(lambda: self._answer(call, outcome))

    def _answer(self, call: StoreCall[Any], outcome: IoFuture[Any]) -> None:
        """Deliver an outcome to its caller, after the messages that belong to it are sent.

        Errors of pika become ``StorageError``. The answers of one turn of the loop are delivered together,
        with one wake-up for each event loop of the callers.
        """
        value: Any = None
        error: BaseException | None = None
        try:
            value = outcome.result()
        except AMQPError as exc:
            error = StorageError(f"the broker refused: {type(exc).__name__}: {exc}")
            error.__cause__ = exc
        except BaseException as exc:
            error = exc
        self._answers.append((call, value, error))
        if self._connection is None:
            self._deliver()
        elif len(self._answers) == 1:
            self._connection.when_sent(self._deliver)

    def _deliver(self) -> None:
        answers, self._answers = self._answers, []
        deliver(answers)

    def _main(self) -> None:
        while True:
            self._connect()
            try:
                self.loop.start()
                break
            except Exception as exc:
                log.exception("unexpected error on the connection's thread, reconnecting")
                session, self._session = self._session, None
                if session is not None:
                    session.fail(StorageError(f"the connection failed ({exc}); repeat the call"))
                if self._waiting.done:
                    self._waiting = IoFuture()
                self._deliver()
                with self._lock:
                    if self._users == 0:
                        break
                    self.loop = IOLoop()
                    self.loop.add_callback_threadsafe(self._run_steps)  # steps that the last loop left
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
                log.warning("the broker refused to declare our exchanges and queues: %s", exc)
                if isinstance(exc, ConfigError):
                    self._waiting.fail(exc)  # another attempt would fail in the same way
                if connection.is_open:
                    connection.hang_up()
                return
            self._delay_s = _FIRST_DELAY_S
            self._waiting.set(session)

        started.then(done)

    def _lost(self, error: Any) -> None:
        """Handle a connection that failed to open or was lost: fail all waiting calls and reconnect."""
        reason = error if isinstance(error, BaseException) else RuntimeError(str(error))
        if not self._closing and not isinstance(reason, ConnectionClosedByClient):
            self._last_error = f"{type(reason).__name__}: {reason}"  # else we know a better reason
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
        left = spawn(self._session.prepare_close())
        if not left.done:
            self.loop.call_later(_LEAVE_S, lambda: left.fail(TimeoutError()))
        left.then(self._hang_up)

    def _hang_up(self) -> None:
        connection = self._connection
        if connection is not None and connection.is_open:
            connection.hang_up()
        elif connection is None or connection.is_closed:
            self._end()
        else:
            connection.add_on_open_callback(lambda opened: opened.close())

    def _end(self) -> None:
        self._waiting.fail(StorageError("the client was closed"))
        self.loop.stop()
