"""A connection to the broker on its own thread, which reconnects when the connection is lost.

The thread runs pika's loop, so it answers the broker's heartbeats even while handlers block. It gets work as
coroutines (``run``). All state of a connection is in its ``AmqpSession`` and is dropped with it.

A small request is carried out on the thread of its caller if nothing else is pending, no other of its kind
is unanswered and the connection's thread only waits for the broker (``speedups.amqp_loop``). In this package,
"on the connection's thread" includes this case: nothing else uses the connection meanwhile.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pika
from pika.exceptions import AMQPError, ConnectionClosedByClient

from windlass.backend.calls import Answer, StoreCall, deliver
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.session import AmqpSession
from windlass.core.paths import took
from windlass.errors import ConfigError, StorageError
from windlass.speedups.amqp import Connection, PlainConnection
from windlass.speedups.amqp_loop import Loop, PlainLoop

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
        #: The thread of the connection, and the one whose connection was closed last.
        self._thread: threading.Thread | None = None
        self._ending: threading.Thread | None = None
        self.loop: PlainLoop
        self._connection: PlainConnection | None = None
        self._session: AmqpSession | None = None
        self._waiting: IoFuture[AmqpSession] = IoFuture()
        #: Callbacks to run on the thread, whether it was woken for them, and answers to deliver.
        self._steps: deque[Callable[[], None]] = deque()
        self._woken = False
        self._answers: list[Answer] = []
        #: Calls without an answer, by the kind of their request.
        self._unanswered: dict[type[Any] | None, set[StoreCall[Any]]] = {}
        self._delay_s = _FIRST_DELAY_S
        self._closing = False
        self._last_error = "no answer yet"

    # --- from any thread -------------------------------------------------------------------------

    def start(self) -> threading.Thread | None:
        """Add a user of the connection. The first one opens it.

        If the last one is still being closed, this adds no user, but returns the thread to join before the
        next try.
        """
        with self._lock:
            if not self._users and self._ending is not None and self._ending.is_alive():
                return self._ending
            if self._users:
                self._users += 1
                return None
            self._closing = self._woken = False
            self._unanswered = {}
            self.loop = Loop()
            self._waiting = IoFuture()
            self._thread = threading.Thread(target=self._main, name="windlass-amqp", daemon=True)
            self._thread.start()
            self._users = 1  # last: there may be no file descriptor or thread for it
            return None

    def stop(self) -> threading.Thread | None:
        """Remove a user of the connection. The last one closes it, and gets the thread to join."""
        with self._lock:
            if self._users == 0:
                return None
            self._users -= 1
            if self._users:
                return None
            self._ending, self._thread = self._thread, None
            self.loop.add_callback_threadsafe(self._close)
            return self._ending

    def run(self, make: Make, call: StoreCall[Any], kind: type[Any] | None = None) -> None:
        """Run ``make(session)`` on the connection's thread once there is a session, and answer ``call`` with
        the outcome. It does not run if the time of ``call`` is over by then.

        ``kind``: the type of a small request, which the caller's thread may carry out. If others of its kind
        are unanswered, the connection's thread does it, together with those that are made in this turn of the
        caller's event loop. It would otherwise be woken for each of them on a quiet machine.
        """
        unanswered = self._unanswered.setdefault(kind, set())
        alone = not unanswered
        unanswered.add(call)
        self._steps.append(lambda: self._begin(make, call, unanswered))
        if kind is None:
            self._wake()
        elif alone:
            self._run_on_caller()
        else:
            call.loop.call_soon(self._wake)

    def call_soon_threadsafe(self, step: Callable[[], None]) -> None:
        """Run ``step``, which takes little time, on the connection's thread, in the order of the calls."""
        self._steps.append(step)
        self._run_on_caller()

    def _run_on_caller(self) -> None:
        """Run the pending step on this thread, if it is the only one and the connection's thread only waits;
        else wake that thread."""
        loop = self.loop
        entered: bool | None = None  # unknown while ``enter`` runs: a signal handler may raise anywhere
        try:
            entered = not self._woken and len(self._steps) == 1 and loop.enter()
            if not entered:
                self._wake()
                return
            took("amqp.on_caller")
            self._run_steps(1)
        except BaseException as exc:
            loop.add_callback_threadsafe(partial(_raise, exc))  # the connection's thread reconnects
            if not isinstance(exc, Exception):
                raise
        finally:
            if entered is not False:
                try:
                    loop.leave()
                finally:
                    loop.leave()  # in case that a signal handler raised before the first one began

    def _wake(self) -> None:
        """Wake the connection's thread, which then runs the pending steps. Not if it has run them already."""
        if self._steps and not self._woken:
            self._woken = True
            try:
                self.loop.add_callback_threadsafe(self._run_steps)
            except BaseException:  # of a signal handler
                self._woken = False
                raise

    @property
    def last_error(self) -> str:
        """Why there is no connection."""
        return self._last_error

    # --- on the thread ------------------------------------------------------------------------------

    def _run_steps(self, most: int = sys.maxsize) -> None:
        """Run the oldest pending steps. Everything that they send is written in one step."""
        self._woken = False  # first: a step that is added from now on wakes us again
        connection = self._connection
        if connection is not None:
            connection.gather()
        now = min(most, len(self._steps))  # not steps that these add: read the broker's answers first
        for _ in range(now):
            self._steps.popleft()()
        if connection is not None:
            connection.send_gathered()

    def _begin(self, make: Make, call: StoreCall[Any], unanswered: set[StoreCall[Any]]) -> None:
        async def go() -> Any:
            session = await self._waiting
            if not call.begin():
                raise StorageError("the call was withdrawn: its timeout has passed")
            return await make(session)

        def answer() -> None:
            unanswered.discard(call)
            self._answer(call, outcome)

        outcome = spawn(go())
        outcome.then(answer)

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
        self._connect()
        while True:
            try:
                self.loop.start()
                break
            except Exception as exc:
                log.exception("unexpected error on the connection's thread, reconnecting")
                self._last_error = f"{type(exc).__name__}: {exc}"
                if self._connection is not None:
                    self._connection.abandon()
                session, self._session, self._connection = self._session, None, None
                if session is not None:
                    session.fail(StorageError(f"the connection failed ({exc}); repeat the call"))
                self._expect_another()
                self._deliver()
                self._unanswered = {}  # an interrupted call is not answered
                if not self._replace_loop():
                    return
                self._connect_later()
        self.loop.close()

    def _replace_loop(self) -> bool:
        """Make another loop, without the timers and sockets of this one. False if the last user has left.

        The process may have no file descriptor left. Then this waits until it has some.
        """
        self.loop.close()  # first, for its descriptors; a callback that is added to it now is dropped
        while True:
            with self._lock:
                if self._users == 0:
                    return False
                try:
                    self.loop = Loop()
                except OSError as exc:
                    log.warning("no connection to the broker can be opened, trying again: %s", exc)
                else:
                    self.loop.add_callback_threadsafe(self._run_steps)  # steps that the last loop left
                    return True
            time.sleep(self._next_delay_s())

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

    def _connect_later(self) -> None:
        self.loop.call_later(self._next_delay_s(), self._connect)

    def _next_delay_s(self) -> float:
        """How long to wait now; next time it is twice as long."""
        delay_s, self._delay_s = self._delay_s, min(self._delay_s * 2, _LAST_DELAY_S)
        return delay_s

    def _opened(self, connection: Any) -> None:
        session = self._session = self._make(self, connection)
        session.on_reconnect = self._expect_another
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
            if connection.is_open:
                self._waiting.set(session)

        started.then(done)

    def _expect_another(self) -> None:
        """Let calls from now on wait for the next connection."""
        if self._waiting.done:
            self._waiting = IoFuture()

    def _lost(self, error: Any) -> None:
        """Handle a connection that failed to open or was lost: fail all waiting calls and reconnect."""
        reason = error if isinstance(error, BaseException) else RuntimeError(str(error))
        if not self._closing and not isinstance(reason, ConnectionClosedByClient):
            self._last_error = f"{type(reason).__name__}: {reason}"  # else we know a better reason
        session, self._session = self._session, None
        self._expect_another()
        if session is not None:
            session.fail(StorageError(f"the connection to the broker was lost ({reason}); repeat the call"))
        if self._closing:
            self._end()
            return
        self._connect_later()

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


def _raise(exc: BaseException) -> None:
    raise RuntimeError("a step on the thread of a caller failed") from exc
