"""A store of this machine, as this process uses it: a writer, a reader, listeners. Shared by all clients."""

from __future__ import annotations

import asyncio
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from windlass._renamed import old_names
from windlass.backend.calls import UNKNOWN, StoreCall
from windlass.errors import StorageError, UnsupportedByBackendError

if TYPE_CHECKING:
    from windlass.backend.hub import Hub, HubListener
    from windlass.backend.local.notify import Notifier
    from windlass.backend.local.serving_thread import ServingThread, WriterThread
    from windlass.backend.requests import Request

_LAST_MOMENT_S = 0.1


class StoreSettings(Protocol):
    """What a store needs of its settings."""

    @property
    def timeout(self) -> float: ...

    @property
    def shown(self) -> str: ...

    def __hash__(self) -> int: ...


R = TypeVar("R")
SettingsT = TypeVar("SettingsT", bound=StoreSettings)
SessionT = TypeVar("SessionT")


class LocalStore(ABC, Generic[SettingsT, SessionT]):
    """Threads and what they share, for one (place, namespace, settings) in this process."""

    #: The backend, and what the store is called in messages.
    name: ClassVar[str]
    what: ClassVar[str]
    #: Opening has at least this long, whatever a call may take.
    open_s: ClassVar[float]
    #: Why calls had to wait, by the phase of the writer.
    waited: ClassVar[Mapping[str, str]]
    #: Requests for the writer, and for the reader.
    verbs: ClassVar[Container[type[Any]]]
    reads: ClassVar[Container[type[Any]]]

    def __init__(
        self, settings: SettingsT, hub: Hub, wake: Notifier, session: SessionT, writer: WriterThread[Any]
    ) -> None:
        self.settings = settings
        self.pid = os.getpid()
        self.clients = 0
        self.hub = hub
        self.wake = wake
        self.session = session
        self._writer = writer
        self._reader: ServingThread | None = None
        self._reader_lock = threading.Lock()
        self._writer.start()

    @abstractmethod
    def make_reader(self) -> ServingThread:
        """The lane for requests that change nothing, not yet started."""

    async def opened(self) -> None:
        """Wait until the store is ready; raises ``StorageError`` when it cannot be."""
        wait_s = max(self.settings.timeout, self.open_s)
        opening = asyncio.wrap_future(self._writer.opened)
        opening.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # also when given up
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
        lane: ServingThread = writer if type(request) in self.verbs else self._reading(request)
        if writer.over or lane.over:  # the reader may have ended by itself
            raise StorageError(f"{self.settings.shown} is closed")
        call = StoreCall(self.settings.timeout, self._explain, request)
        call.watch()
        lane.put(call)
        return await call.future

    def listen(self, topics: Iterable[str]) -> HubListener:
        listener = self.hub.listen(topics)
        self.wake.listen_for(listener.topics)
        return listener

    async def stop(self) -> None:
        """End the threads after the calls that are under way."""
        lanes: list[ServingThread] = [self._writer] + ([self._reader] if self._reader else [])
        for lane in lanes:
            lane.stop()
        for lane in lanes:
            # One that could not even open hangs at a lock: it is left to end by itself.
            wait_s = self.settings.timeout if lane.opened.done() else _LAST_MOMENT_S
            await asyncio.wait([asyncio.wrap_future(lane.ended)], timeout=wait_s)
            if lane.ended.done():
                lane.thread.join()
        self.wake.stop()

    def forked(self) -> None:
        """Called in a forked child, which leaves this store to its parent."""

    def _reading(self, request: Request[Any]) -> ServingThread:
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
    """The stores of this process, one for equal settings, with as many clients as there are."""

    def __init__(self, make: Callable[[SettingsT], StoreT]) -> None:
        self._make = make
        self._stores: dict[SettingsT, StoreT] = {}
        #: In a child: its parent's stores, which must never be closed here.
        self._left_to_parent: list[StoreT] = []
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def acquire(self, settings: SettingsT) -> StoreT:
        """The process's store for ``settings``, with one more client."""
        with self._lock:
            store = self._stores.get(settings)
            if store is None:
                store = self._stores[settings] = self._make(settings)
            store.clients += 1
            return store

    async def release(self, store: StoreT) -> None:
        """Take one client away; the last one ends the threads."""
        with self._lock:
            store.clients -= 1
            last = store.clients == 0
            if last and self._stores.get(store.settings) is store:
                del self._stores[store.settings]
        if last and store.pid == os.getpid():
            await store.stop()

    def _after_fork(self) -> None:
        """A child begins without stores, and must not close what its parent uses."""
        self._lock = threading.Lock()
        for store in self._stores.values():
            store.forked()
        self._left_to_parent.extend(self._stores.values())
        self._stores.clear()


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
