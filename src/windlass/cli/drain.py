"""``windlass drain``: another word for ``windlass clear``, which says better what it does."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.clear import Options, run
from windlass.cli.store import store_command


@store_command(
    "drain",
    run,
    asks=True,
    examples="""
windlass drain mail
windlass drain mail --delayed --yes                 scheduled and retrying ones too
windlass clear mail                                 the same
""",
)
@click.argument("queue")
@click.option("--delayed", is_flag=True, help="Also jobs that are scheduled or wait for a retry.")
def command(**values: Any) -> Options:
    """Delete all waiting jobs of QUEUE, as ``windlass clear`` does. Running and finished ones stay."""
    return Options(**values)
