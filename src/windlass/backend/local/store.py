"""A store on this machine: a writer thread, a reader thread and listeners for all clients of a process."""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from windlass._renamed import old_names
from windlass.backend.calls import UNKNOWN, StoreCall
from windlass.backend.hub import HubListener
from windlass.backend.local.notify import Notifier
from windlass.backend.local.serving_thread import ServingThread, WriterThread
from windlass.backend.local.settings import LocalSettings
from windlass.backend.requests import Request
from windlass.errors import StorageError, UnsupportedByBackendError

#: How long ``stop`` waits for a thread that has not opened the store yet.
_LAST_MOMENT_S = 0.1


R = TypeVar("R")
SettingsT = TypeVar("SettingsT", bound=LocalSettings)
SessionT = TypeVar("SessionT")


class LocalStore(ABC, Generic[SettingsT, SessionT]):
    """The threads and listeners for one path, namespace and set of settings in this process."""

    #: The name of the backend, and the word for the store in messages.
    name: ClassVar[str]
    what: ClassVar[str]
    #: The least timeout for opening, even if the timeout of calls is shorter.
    open_s: ClassVar[float]
    #: The explanation of a timeout, by the phase of the writer.
    waited: ClassVar[Mapping[str, str]]
    #: The requests that the writer serves, and those that the reader serves.
    verbs: ClassVar[Container[type[Any]]]
    reads: ClassVar[Container[type[Any]]]

    def __init__(
        self, settings: SettingsT, wake: Notifier, session: SessionT, writer: WriterThread[Any]
    ) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.clients = 0
        self.wake = wake
        self.session = session
        self._writer = writer
        self._reader: ServingThread | None = None
        self._reader_lock = threading.Lock()
        self._writer.start()

    @abstractmethod
    def make_reader(self) -> ServingThread:
        """Return the thread for requests that change nothing, not yet started."""

    async def opened(self) -> None:
        """Wait until the store is open. Raises ``StorageError`` on failure or timeout."""
        wait_s = max(self.settings.timeout, self.open_s)
        opening = asyncio.wrap_future(self._writer.opened)
        # Retrieve the exception even after a timeout, so that asyncio does not log it.
        opening.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.wait([opening], timeout=wait_s)
        if not opening.done():
            raise StorageError(
                f"{self.settings.shown} could not be opened within {wait_s:g} s: "
                f"{self.waited['lock']}; find that process, or raise ?timeout="
            )
        opening.result()

    async def execute(self, request: Request[R]) -> R:
        """See ``Backend.execute``."""
        writer = self._writer
        thread: ServingThread = writer if type(request) in self.verbs else self._reader_for(request)
        if writer.over or thread.over:  # the reader may have ended after an error
            raise StorageError(f"{self.settings.shown} is closed")
        call = StoreCall(self.settings.timeout, self._explain, request)
        call.watch()
        thread.put(call)
        return await call.future

    def listen(self, topics: Iterable[str]) -> HubListener:
        listener = self.wake.hub.listen(topics)
        self.wake.listen_for(listener.topics)
        return listener

    async def stop(self) -> None:
        """End the threads after pending calls, and wait for them at most the timeout of a call."""
        threads: list[ServingThread] = [self._writer] + ([self._reader] if self._reader else [])
        for serving in threads:
            serving.stop()
        for serving in threads:
            # A thread that has not opened the store yet waits for a lock. It ends by itself later.
            wait_s = self.settings.timeout if serving.opened.done() else _LAST_MOMENT_S
            await asyncio.wait([asyncio.wrap_future(serving.ended)], timeout=wait_s)
            if serving.ended.done():
                serving.thread.join()
        self.wake.stop()

    def forked(self) -> None:
        """Hook for a forked child, which must leave this store to its parent."""

    def _reader_for(self, request: Request[Any]) -> ServingThread:
        """Return the reader, and start it if needed. Raises ``UnsupportedByBackendError``."""
        if type(request) not in self.reads:
            raise UnsupportedByBackendError(self.name, type(request).__name__)
        if self._reader is None:
            with self._reader_lock:
                if self._reader is None:
                    reader = self.make_reader()
                    reader.start()
                    self._reader = reader
        return self._reader

    def _explain(self, begun: bool) -> str:
        if begun:
            return (
                f"{self.settings.shown} did not finish a call within {self.settings.timeout:g} s: {UNKNOWN}. "
                "Is the disk stuck? If it is only slow, raise ?timeout="
            )
        why = self.waited.get(self._writer.phase, "it is busy")
        return (
            f"{self.settings.shown} did not begin a call within {self.settings.timeout:g} s: {why}. "
            f"Nothing was changed; repeat the call, end what holds the {self.what}, or raise ?timeout="
        )


StoreT = TypeVar("StoreT", bound=LocalStore)  # type: ignore[type-arg]


class OpenStores(Generic[SettingsT, StoreT]):
    """The open stores of this process. Clients with equal settings share a store."""

    def __init__(self, make: Callable[[SettingsT], StoreT]) -> None:
        self._make = make
        self._stores: dict[SettingsT, StoreT] = {}
        #: In a child: its parent's stores, which must never be closed here.
        self._left_to_parent: list[StoreT] = []
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def acquire(self, settings: SettingsT) -> StoreT:
        """Return the store for ``settings``, and count one more client. Creates the store if needed."""
        with self._lock:
            store = self._stores.get(settings)
            if store is None:
                store = self._stores[settings] = self._make(settings)
            store.clients += 1
            return store

    async def release(self, store: StoreT) -> None:
        """Count one client less. After the last client, wait for the threads to end."""
        with self._lock:
            store.clients -= 1
            last = store.clients == 0
            if last and self._stores.get(store.settings) is store:
                del self._stores[store.settings]
        if last and store.pid == os.getpid():
            await store.stop()

    def _after_fork(self) -> None:
        """Start a child without stores. It keeps its parent's stores referenced, so that none is closed."""
        self._lock = threading.Lock()
        for store in self._stores.values():
            store.forked()
        self._left_to_parent.extend(self._stores.values())
        self._stores.clear()


class LocalBackend(Generic[SettingsT, StoreT]):
    """A client of one store on this machine. Implements most of ``backend.protocol.Backend``."""

    #: The open stores of this kind in this process.
    stores: OpenStores[SettingsT, StoreT]

    def __init__(self, settings: SettingsT) -> None:
        self._settings = settings
        self._store: StoreT | None = None

    async def open(self) -> None:
        if self._store is not None:
            return
        self._store = store = self.stores.acquire(self._settings)
        try:
            await store.opened()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await self.stores.release(store)

    def execute(self, request: Request[R]) -> Coroutine[Any, Any, R]:
        return self._open_store().execute(request)

    def listen(self, topics: Iterable[str]) -> HubListener:
        return self._open_store().listen(topics)

    def clone(self) -> Self:
        return type(self)(self._settings)

    def _open_store(self) -> StoreT:
        if self._store is None:
            raise StorageError(f"{self._settings.shown} is not open: await backend.open() first")
        return self._store


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
