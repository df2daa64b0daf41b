"""The file store as a backend: a thin client of the process's ``Node``."""

from __future__ import annotations

from windlass.backend.capabilities import Capabilities
from windlass.backend.local.store import LocalBackend
from windlass.backend.urls import BackendUrl
from windlass.backends.file.node import Node, nodes
from windlass.backends.file.settings import FileSettings, parse


class FileBackend(LocalBackend[FileSettings, Node]):
    """A client of one directory and namespace. Clients of one process share its threads and memory."""

    name = "file"
    capabilities = Capabilities.full(durable=True, shared=True)
    stores = nodes


def from_url(url: BackendUrl) -> FileBackend:
    """Return a client of the directory in the URL, not yet opened."""
    return FileBackend(parse(url))
