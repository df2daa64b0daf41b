"""``windlass drain``: the old name of ``windlass clear``, which says better what it does."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.clear import Options
from windlass.cli.clear import run as clear
from windlass.cli.output import Out
from windlass.cli.store import store_command


async def run(options: Options, out: Out) -> int:
    """Clear a queue, and say what the command is called now."""
    out.note("windlass drain deletes jobs; it is the old name of windlass clear. Workers drain by --burst.")
    return await clear(options, out)


@store_command(
    "drain",
    run,
    asks=True,
    examples="""
windlass drain mail
windlass drain mail --delayed --yes                 scheduled and retrying ones too
windlass clear mail                                 the same, by its name
windlass worker mail_app --burst                    runs what waits, then stops
""",
)
@click.argument("queue")
@click.option("--delayed", is_flag=True, help="Also jobs that are scheduled, suspended or wait for a retry.")
def command(**values: Any) -> Options:
    """Old name of 'windlass clear': delete all waiting jobs of QUEUE.

    To run what waits and then stop, use 'windlass worker --burst'.
    """
    return Options(**values)
