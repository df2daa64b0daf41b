"""``windlass remove``: delete jobs and all that is known of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from windlass.cli.changes import Answers, each
from windlass.cli.output import Out
from windlass.cli.store import StoreOptions, store_command


@dataclass(frozen=True, kw_only=True)
class Options(StoreOptions):
    """Which jobs. ``force``: running ones too."""

    queue: str
    ids: tuple[str, ...]
    force: bool = False


async def run(options: Options, out: Out) -> int:
    """Remove jobs."""
    count = len(options.ids)
    what = f"job {options.ids[0]}" if count == 1 else f"{count:,} jobs"
    if not out.confirm(f"Remove {what} of {options.queue} for good?"):
        return 1
    answers = Answers("removed")
    async with options.app() as app:
        remove = partial(app.queue(options.queue).remove, force=options.force)
        await each(options.ids, remove, answers, out)
    return answers.report(out)


@store_command(
    "remove",
    run,
    asks=True,
    examples="""
windlass remove mail order-17
windlass remove mail order-17 order-18 --yes
windlass remove mail order-17 --force               even while it runs
""",
)
@click.argument("queue")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--force", is_flag=True, help="Also a job that runs; its result is lost.")
def command(**values: Any) -> Options:
    """Delete jobs of QUEUE with their arguments, results, errors and logs."""
    return Options(**values)
