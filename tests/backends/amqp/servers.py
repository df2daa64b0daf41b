"""The broker that the tests of this folder run on: started once per process, stopped at its end."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tools.services.rabbitmq import Server, rabbitmq_binary
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.amqp import AmqpBackend
from windlass.core.ids import new_id
from windlass.errors import StorageError
from windlass_conformance import UrlHarness

if TYPE_CHECKING:
    from types import TracebackType

    from windlass.backend import Backend


def scratch() -> Path:
    """A folder that goes with the process."""
    folder = Path(tempfile.mkdtemp(prefix="windlass-rabbitmq-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def new_server(*settings: str, runtime: str = "") -> Server:
    """A broker of one's own, not yet started."""
    binary = rabbitmq_binary()
    if binary is None:
        raise RuntimeError("rabbitmq-server is missing: see scripts/test for what the suite needs")
    server = Server(binary, scratch(), *settings, runtime=runtime)
    atexit.register(server.stop)
    return server


@cache
def broker_url() -> str:
    """The URL of the shared broker, which is started when it is not running yet.

    ``WINDLASS_TEST_AMQP`` names one that runs already.
    """
    return os.environ.get("WINDLASS_TEST_AMQP") or new_server().start().url


def fresh_url(settings: str = "") -> str:
    """The URL of a namespace of its own on the shared broker. ``settings`` are further options."""
    return f"{broker_url()}?namespace=f{new_id()[-12:]}" + (f"&{settings}" if settings else "")


class AmqpHarness(UrlHarness):
    """A harness that leaves nothing on the broker."""

    def __init__(self, url: str) -> None:
        super().__init__("amqp", url)
        self._made: dict[str, list[AmqpBackend]] = {}

    def connect(self, namespace: str) -> Backend:
        backend = super().connect(namespace)
        assert isinstance(backend, AmqpBackend)
        self._made.setdefault(namespace, []).append(backend)
        return backend

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for client in (*self._clones, self.backend):
                assert isinstance(client, AmqpBackend)
                made = self._made.pop(client.namespace, [])
                client.names.used.update(*(one.names.used for one in made))
                if made:
                    await clear(client)
        finally:
            await super().__aexit__(kind, error, trace)


async def clear(client: AmqpBackend) -> None:
    """Take all that ``client`` made off the broker.

    A busy broker now and then closes the connection of one who deletes a lot (541 INTERNAL_ERROR), so
    the call is repeated as its error says, twice at most.
    """
    for tries_left in (2, 1, 0):
        try:
            await client.open()  # a test may have closed it
            return await client.remove_all()
        except StorageError:
            if not tries_left:
                raise


def make_harness(settings: str = "") -> AmqpHarness:
    """A harness for one test. ``settings`` are options of the URL."""
    return AmqpHarness(f"{broker_url()}?{settings}" if settings else broker_url())


async def open_store(url: str) -> AmqpBackend:
    """A client of which the coordinator, itself perhaps, has done all that the log asks for."""
    store = open_backend(url)
    assert isinstance(store, AmqpBackend)
    await store.open()
    await store.execute(rq.ListWorkers())
    return store
