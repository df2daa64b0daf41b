"""``windlass remove``: deletes jobs with everything that is stored about them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from windlass.cli.job_changes import Answers, each
from windlass.cli.output import Out
from windlass.cli.selecting import Selection, check_selection, selects
from windlass.cli.store_commands import find_queue, store_command
from windlass.core.states import JobState


@dataclass(frozen=True, kw_only=True)
class RemoveOptions(Selection):
    """The jobs. ``force``: running ones too."""

    force: bool = False


async def run(options: RemoveOptions, out: Out) -> int:
    """Remove jobs."""
    if not out.confirm(f"Remove {_what(options)} of {options.queue} for good?"):
        return 1
    answers = Answers("removed")
    async with options.app() as app:
        queue = await find_queue(app, options.queue)
        if options.all:
            with out.waiting(f"Removing jobs of {options.queue}"):
                count = await queue.remove_jobs(state=options.states, **options.search)
            out.done(f"Removed {count:,} jobs of {options.queue}.", {"removed": count})
            return 0
        await each(options.ids, partial(queue.remove, force=options.force), answers, out)
    return answers.report(out)


def _what(options: RemoveOptions) -> str:
    if options.all:
        return f"all {' and '.join(options.states)} jobs that match"
    return f"job {options.ids[0]}" if len(options.ids) == 1 else f"{len(options.ids):,} jobs"


@store_command(
    "remove",
    run,
    asks=True,
    examples="""
windlass remove mail order-17
windlass remove mail order-17 order-18 --yes
windlass remove mail order-17 --force               even while it runs
windlass remove mail --all --state failed --error SMTPError
""",
)
@selects([state.value for state in JobState if state is not JobState.ACTIVE])
@click.option("--force", is_flag=True, help="Also delete a running job; its result is lost.")
def command(**values: Any) -> RemoveOptions:
    """Delete jobs of QUEUE with their arguments, results, errors and logs."""
    return RemoveOptions(**check_selection(values))
