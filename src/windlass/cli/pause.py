"""``windlass pause``: stop handing out jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from windlass.cli.output import Out
from windlass.cli.store import StoreOptions, store_command


@dataclass(frozen=True, kw_only=True)
class Options(StoreOptions):
    """Which queues."""

    queues: tuple[str, ...]


async def run(options: Options, out: Out) -> int:
    """Pause queues."""
    async with options.app() as app:
        for name in options.queues:
            await app.queue(name).pause()
    names = ", ".join(options.queues)
    out.done(f"Paused {names}. Running jobs go on; nothing new is handed out.", {"paused": options.queues})
    return 0


@store_command(
    "pause",
    run,
    examples="""
windlass pause mail
windlass pause mail images && windlass queues
windlass resume mail                                goes on
""",
)
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
def command(**values: Any) -> Options:
    """Stop handing out jobs of QUEUE, on every worker. Jobs can still be added."""
    return Options(**values)
