"""One connection to the broker, on a thread of its own, that comes back when it is lost.

The thread runs pika's loop and answers the broker's heartbeats whatever handlers do. Work is handed to it as
coroutines (``run``); all state of a connection lives in its ``Session`` and dies with it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import pika
from pika import spec
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.exceptions import AMQPError
from pika.frame import decode_frame

from windlass.backends.amqp.promise import Promise, spawn
from windlass.backends.amqp.session import Session
from windlass.errors import StorageError

log = logging.getLogger("windlass.amqp")

T = TypeVar("T")

_FIRST_DELAY_S, _LAST_DELAY_S = 0.1, 2.0
#: How long a coordinator may take to end what it has begun.
_LEAVE_S = 2.0
_READ_BYTES = 65_536
#: A frame without its payload: kind, channel, length; and the mark at its end.
_LEAST_FRAME = 8
#: Frames that go to their channel whoever listens: headers and bodies, and the method before them.
_CONTENT = frozenset({spec.FRAME_HEADER, spec.FRAME_BODY})
_DELIVER = spec.Basic.Deliver.INDEX.to_bytes(4, "big")


class _Connection(SelectConnection):  # type: ignore[misc]  # pika has no types
    """A connection that sends and reads many frames at once: pika makes a system call of each."""

    _gathered: list[bytes] | None = None
    _frame_buffer: bytes

    def _proto_connection_made(self, transport: Any) -> None:
        transport._MAX_RECV_BYTES = _READ_BYTES
        super()._proto_connection_made(transport)

    def _on_data_available(self, data_in: bytes) -> None:
        """As pika does it, but without copying the rest of the data for each frame."""
        if not self.is_open:
            super()._on_data_available(data_in)
            return
        data = self._frame_buffer + data_in if self._frame_buffer else data_in
        self._frame_buffer = b""
        at, size = 0, len(data)
        while size - at >= _LEAST_FRAME:
            end = at + _LEAST_FRAME + int.from_bytes(data[at + 3 : at + 7], "big")
            if end > size:
                break
            _, found = decode_frame(data[at:end])
            self.bytes_received += end - at  # by which pika knows that the broker is alive
            if data[at] in _CONTENT or data[at + 7 : at + 11] == _DELIVER:
                self.frames_received += 1
                self._deliver_frame_to_channel(found)
            else:
                self._process_frame(found)
            at = end
        self._frame_buffer = data[at:]

    def gather(self) -> None:
        """Keep what is sent from now on, until ``send_gathered``."""
        if self._gathered is None:
            self._gathered = []

    def send_gathered(self) -> None:
        frames, self._gathered = self._gathered, None
        if frames and self.is_open:
            super()._output_marshaled_frames([b"".join(frames)])

    def _output_marshaled_frames(self, marshaled_frames: list[bytes]) -> None:
        if self._gathered is None:
            super()._output_marshaled_frames(marshaled_frames)
        else:
            self._gathered += marshaled_frames


class Link:
    """A thread with a connection. Shared by a backend and its clones; ``start`` and ``stop`` are counted."""

    def __init__(self, parameters: pika.URLParameters, make: Callable[[Link, Any], Session]) -> None:
        self._parameters = parameters
        self._make = make
        self._lock = threading.Lock()
        self._users = 0
        self._thread: threading.Thread | None = None
        self.loop: IOLoop
        self._connection: SelectConnection | None = None
        self._session: Session | None = None
        self._waiting: Promise[Session] = Promise()
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
            self._waiting = Promise()
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

    def run(self, make: Callable[[Session], Coroutine[Promise[Any], None, T]]) -> Future[T]:
        """Run ``make(session)`` on the connection's thread once there is a session; errors come out typed."""
        future: Future[T] = Future()
        self.loop.add_callback_threadsafe(lambda: self._begin(make, future))
        return future

    @property
    def last_error(self) -> str:
        """Why there is no connection."""
        return self._last_error

    # --- on the thread ------------------------------------------------------------------------------

    def _begin(self, make: Callable[[Session], Coroutine[Promise[Any], None, T]], future: Future[T]) -> None:
        async def go() -> T:
            session = await self._waiting
            return await make(session)

        outcome = spawn(go())
        outcome.then(lambda: _hand_over(outcome, future))

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
                    self._waiting = Promise()
                with self._lock:
                    if self._users == 0:
                        break
                    self.loop = IOLoop()
        self.loop.close()

    def _connect(self) -> None:
        if self._closing:
            return
        self._connection = _Connection(
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
                if connection.is_open:
                    connection.close()
                return
            self._delay_s = _FIRST_DELAY_S
            self._waiting.set(session)

        started.then(done)

    def _lost(self, error: Any) -> None:
        """The connection could not be made, or is gone: whoever waits for an answer hears of it."""
        reason = error if isinstance(error, BaseException) else RuntimeError(str(error))
        if not self._closing:
            self._last_error = f"{type(reason).__name__}: {reason}"
        session, self._session = self._session, None
        if self._waiting.done:
            self._waiting = Promise()
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


def _hand_over(outcome: Promise[T], future: Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(outcome.result())
    except AMQPError as exc:
        error = StorageError(f"the broker refused: {type(exc).__name__}: {exc}")
        error.__cause__ = exc
        future.set_exception(error)
    except BaseException as exc:
        future.set_exception(exc)
