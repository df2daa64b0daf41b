"""A daemon thread that serves calls from an inbox, and how it starts and ends."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from windlass.backend.calls import StoreCall, deliver
from windlass.errors import StorageError


class ServingThread:
    """Base of the writer and the reader. ``opened`` and ``ended`` say how far the thread is."""

    def __init__(self, name: str) -> None:
        #: Lists of calls; None stands for the end.
        self._inbox: SimpleQueue[list[StoreCall[Any]] | None] = SimpleQueue()
        self._stopping = False
        self.opened: Future[None] = Future()
        self.ended: Future[None] = Future()
        #: As ``ended``, for those who ask often.
        self.over = False
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        self.thread.start()

    def put(self, calls: list[StoreCall[Any]]) -> None:
        """Line up calls that were started, in this order."""
        self._inbox.put(calls)
        if self.over:
            self._refuse(StorageError("the backend was closed"))

    def stop(self) -> None:
        """End the thread once everything lined up so far is done."""
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
        """All calls lined up now; with ``block``, it waits for a call or the end."""
        calls: list[StoreCall[Any]] = []
        inbox = self._inbox
        while not self._stopping and (block or not inbox.empty()):
            came = inbox.get()  # this thread is the only consumer
            block = False
            if came is None:
                self._stopping = True
            else:
                calls += came
        return calls

    def _refuse(self, exc: Exception) -> None:
        """Answer whatever is still lined up."""
        error = exc if isinstance(exc, StorageError) else StorageError(str(exc))
        self._stopping = False
        deliver([(call, None, error) for call in self._take(block=False) if call.begin()])

    def _open(self) -> None:
        raise NotImplementedError

    def _serve_all(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class WriterThread(ServingThread):
    """Base of the writers. ``phase`` is what the thread does now: it explains why calls had to wait."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.phase = "open"
        #: Calls that wait: renewals and their like, and all others.
        self._urgent: deque[StoreCall[Any]] = deque()
        self._line: deque[StoreCall[Any]] = deque()
