"""``windlass pause``: stops starting jobs of a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import click

from windlass.cli.output import Out
from windlass.cli.store_commands import StoreOptions, find_queue, store_command


@dataclass(frozen=True, kw_only=True)
class PauseOptions(StoreOptions):
    """The queues. ``new``: also queues that have no job yet."""

    queues: tuple[str, ...]
    new: bool = False


async def run(options: PauseOptions, out: Out) -> int:
    """Pause queues."""
    async with options.app() as app:
        found = [app.queue(name) if options.new else await find_queue(app, name) for name in options.queues]
        for queue in found:
            await queue.pause()
    names = ", ".join(options.queues)
    out.done(f"Paused {names}. Running jobs continue; no new ones start.", {"paused": options.queues})
    return 0


@store_command(
    "pause",
    run,
    examples="""
windlass pause mail
windlass pause mail images && windlass queues
windlass resume mail                                start its jobs again
""",
)
@click.argument("queues", nargs=-1, required=True, metavar="QUEUE...")
@click.option("--new", is_flag=True, help="Also pause a queue that has no jobs yet.")
def command(**values: Any) -> PauseOptions:
    """Stop starting jobs of QUEUE, on every worker. You can still add jobs."""
    return PauseOptions(**values)
