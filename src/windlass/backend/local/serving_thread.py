"""A daemon thread that serves calls from an inbox."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from windlass.backend import requests as rq
from windlass.backend.calls import Answer, StoreCall, deliver, size_of
from windlass.backend.local.notify import Notifier
from windlass.errors import StorageError


class ServingThread:
    """Base of the writer and the reader threads.

    ``opened`` is done when the thread has opened the store, or has the error if it could not. ``ended`` is
    done when the thread ends.
    """

    def __init__(self, name: str) -> None:
        #: Calls to serve; None asks the thread to end.
        self._inbox: SimpleQueue[StoreCall[Any] | None] = SimpleQueue()
        self._stopping = False
        self.opened: Future[None] = Future()
        self.ended: Future[None] = Future()
        #: Same as ``ended.done()``, but cheaper.
        self.over = False
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def put(self, call: StoreCall[Any]) -> None:
        """Add a call to the inbox. Callable from any thread."""
        self._inbox.put(call)
        if self.over:  # the thread may have ended before it saw the call
            self._refuse(StorageError("the backend was closed"))

    def stop(self) -> None:
        """End the thread after all calls that are in the inbox now."""
        self._inbox.put(None)

    def _main(self) -> None:
        try:
            self._open()
            self.opened.set_result(None)
            self._serve_all()
        except Exception as exc:
            if not self.opened.done():
                self.opened.set_exception(exc)
            self._refuse(exc)
        finally:
            self._close()
            self._refuse(StorageError("the backend was closed"))
            self.over = True
            self.ended.set_result(None)

    def _take(self, *, block: bool) -> list[StoreCall[Any]]:
        """Take all calls from the inbox; with ``block``, wait until there is a call or a request to end."""
        calls: list[StoreCall[Any]] = []
        inbox = self._inbox
        while not self._stopping and (block or not inbox.empty()):
            came = inbox.get()  # this thread is the only consumer
            block = False
            if came is None:
                self._stopping = True
            else:
                calls.append(came)
        return calls

    def _refuse(self, exc: Exception) -> None:
        """Fail all calls that are still in the inbox."""
        error = exc if isinstance(exc, StorageError) else StorageError(str(exc))
        self._stopping = False
        deliver([(call, None, error) for call in self._take(block=False) if call.begin()])

    def _open(self) -> None:
        """Open the store. Runs on the thread, like the two methods below."""

    def _serve_all(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        """Release what ``_open`` has opened."""


class ReaderThread(ServingThread):
    """Base of the readers: serves calls one by one, in the order in which they came."""

    def _serve_all(self) -> None:
        while not self._stopping:
            deliver([self._serve(call) for call in self._take(block=True) if call.begin()])

    def _serve(self, call: StoreCall[Any]) -> Answer:
        raise NotImplementedError


class WriterSession(Protocol):
    """The session of a writer: it executes calls on the store."""

    def failed(self, call: StoreCall[Any], exc: Exception) -> Answer: ...

    def close(self) -> None: ...


S = TypeVar("S", bound=WriterSession)


class WriterThread(ServingThread, Generic[S]):
    """Base of the writers: serves waiting calls in groups (group commit), lease renewals first.

    ``phase`` is what the thread does now. Errors use it to explain why a call had to wait.
    """

    #: The most calls in a group, and the most jobs or items in them.
    group_calls: ClassVar[int]
    group_items: ClassVar[int] = 5_000

    def __init__(self, name: str, session: S, wake: Notifier) -> None:
        super().__init__(name)
        self._wake = wake
        self.phase = "open"
        self._session = session
        #: Waiting calls: lease renewals, and all others.
        self._urgent: deque[StoreCall[Any]] = deque()
        self._line: deque[StoreCall[Any]] = deque()
        #: Calls that were taken from the lines and have no answer yet.
        self._group: list[StoreCall[Any]] = []

    def _line_up(self, *, block: bool) -> None:
        """Move calls from the inbox to the waiting lines; ``block`` as in ``_take``."""
        for call in self._take(block=block):
            (self._urgent if type(call.request) is rq.Extend else self._line).append(call)

    def _next_group(self) -> list[StoreCall[Any]]:
        """Take and begin the next calls to serve together. Leaves out calls that were withdrawn."""
        group: list[StoreCall[Any]] = []
        items = 0
        for line in (self._urgent, self._line):
            while line and len(group) < self.group_calls:
                items += size_of(line[0].request)
                if group and items > self.group_items:
                    break
                group.append(line.popleft())
        self._group = [call for call in group if call.begin()]
        return self._group

    def _answer(self, answers: list[Answer]) -> None:
        """Answer the calls of the group."""
        deliver(answers)
        self._group = []

    def _fail_all(self, exc: Exception) -> None:
        """Answer the calls of the group and all waiting calls with an error."""
        waiting = [call for call in (*self._urgent, *self._line) if call.begin()]
        self._answer([self._session.failed(call, exc) for call in (*self._group, *waiting)])
        self._urgent.clear()
        self._line.clear()

    def _close(self) -> None:
        self._fail_all(StorageError("the backend was closed"))
        self._session.close()
