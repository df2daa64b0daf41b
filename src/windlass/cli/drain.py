"""``windlass drain``: the old name of ``windlass clear``."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.clear import ClearOptions
from windlass.cli.clear import run as clear
from windlass.cli.output import Out
from windlass.cli.store_commands import store_command


async def run(options: ClearOptions, out: Out) -> int:
    """Clear a queue, and print the new name of the command."""
    out.note(
        "'windlass drain' is the old name of 'windlass clear': it deletes jobs. "
        "To run them, use 'windlass worker --burst'."
    )
    return await clear(options, out)


@store_command(
    "drain",
    run,
    asks=True,
    examples="""
windlass drain mail                                 asks, then deletes the waiting jobs
windlass drain mail --delayed --yes                 scheduled and retrying jobs too
windlass clear mail                                 the same command by its new name
windlass worker mail_app --burst                    runs the waiting jobs, then stops
""",
)
@click.argument("queue")
@click.option(
    "--delayed", is_flag=True, help="Also delete jobs that are scheduled, suspended or waiting for a retry."
)
def command(**values: Any) -> ClearOptions:
    """Old name of 'windlass clear': delete all waiting jobs of QUEUE.

    To run the waiting jobs and then stop, use 'windlass worker --burst'.
    """
    return ClearOptions(**values)
