"""``windlass server``: runs only the coordinator of a broker."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from typing import Any

from windlass.backend import requests as rq
from windlass.cli.output import Out
from windlass.cli.store_commands import StoreOptions, store_command
from windlass.errors import StorageError, UnsupportedByBackendError

#: How often to check that this process still takes part in the election, and to prune.
_EVERY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class ServerOptions(StoreOptions):
    """Only the store."""


async def run(options: ServerOptions, out: Out) -> int:
    """Take part in the coordinator's election until a signal arrives."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with options.app() as app:
        coordinate = getattr(app.store.backend, "coordinate", None)
        if coordinate is None:
            raise UnsupportedByBackendError(app.store.name, "a server", "its workers need no server")
        await coordinate()
        out.note(f"Coordinating {app.store.name}; Ctrl-C stops.")
        while not stop.is_set():
            try:
                await coordinate()
                await app.store.execute(rq.Prune())
            except StorageError as exc:
                out.note(f"The broker is unreachable, trying again: {exc}")
            await app.clock.wait(stop, _EVERY_S * 1000)
    return 0


@store_command(
    "server",
    run,
    examples="""
windlass server --url amqp://localhost
windlass server --url "amqp://shop:secret@broker.internal/jobs?namespace=shop"
""",
)
def command(**values: Any) -> ServerOptions:
    """Run the coordinator of an AMQP broker: it releases due jobs, keeps dead jobs and answers requests.

    Any Windlass worker can do this too. Run a separate server when all workers are in other languages, or
    to take this load off the workers.
    """
    return ServerOptions(**values)
