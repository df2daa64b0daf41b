"""The file store as a backend: a thin client of the process's ``Node``."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from windlass.backend.capabilities import Capabilities
from windlass.backends.file.node import Node, nodes
from windlass.backends.file.settings import FileSettings, parse
from windlass.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windlass.backend.hub import HubListener
    from windlass.backend.requests import Request
    from windlass.backend.urls import BackendUrl

R = TypeVar("R")

_CAPABILITIES = Capabilities(
    durable=True,
    shared=True,
    lifo=True,
    schedules=True,
    metrics=True,
    commands=True,
    flows=True,
    signals=True,
    streams=True,
    restore=True,
    unique=True,
    groups=True,
    limits=True,
    revoked_tasks=True,
)


class FileBackend:
    """A client of one directory and namespace. Clients of one process share its threads and memory."""

    name = "file"
    capabilities = _CAPABILITIES

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._node: Node | None = None

    async def open(self) -> None:
        if self._node is not None:
            return
        self._node = node = nodes.acquire(self._settings)
        try:
            await node.opened()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        node, self._node = self._node, None
        if node is not None:
            await nodes.release(node)

    async def execute(self, request: Request[R]) -> R:
        return await self._open_node().execute(request)

    def listen(self, topics: Iterable[str]) -> HubListener:
        return self._open_node().listen(topics)

    def clone(self) -> FileBackend:
        return FileBackend(self._settings)

    def _open_node(self) -> Node:
        if self._node is None:
            raise StorageError(f"{self._settings.shown} is not open: await backend.open() first")
        return self._node


def from_url(url: BackendUrl) -> FileBackend:
    """Return a client of the directory in the URL, not yet opened."""
    return FileBackend(parse(url))
