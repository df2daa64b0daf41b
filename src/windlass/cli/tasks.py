"""``windlass tasks``: revokes and restores tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.output import Column, Out
from windlass.cli.store_commands import StoreOptions, find_queue, store_command
from windlass.cli.values import DURATION, show_time

if TYPE_CHECKING:
    from windlass.api.queue import Queue

COLUMNS = [Column("task", cut=True), Column("revoked until"), Column("once")]


@dataclass(frozen=True, kw_only=True)
class TasksOptions(StoreOptions):
    """The action, the task and its queue. ``seconds`` None: revoked until it is restored."""

    action: str
    queue: str
    task: str | None = None
    seconds: float | None = None
    once: bool = False


async def run(options: TasksOptions, out: Out) -> int:
    """List revoked tasks, revoke one or restore one."""
    async with options.app() as app:
        queue = await find_queue(app, options.queue)
        task = options.task or ""
        if options.action == "list":
            await _list(queue, out)
        elif options.action == "revoke":
            await queue.revoke_task(task, options.seconds, once=options.once)
            what = "the next job" if options.once else "jobs"
            out.done(
                f"Revoked {task} of {queue.name}: {what} that would start will be cancelled.",
                {"revoked": task},
            )
        else:
            found = await queue.restore_task(task)
            text = f"Restored {task} of {queue.name}." if found else f"{task} of {queue.name} is not revoked."
            out.done(text, {"restored": found})
    return 0


async def _list(queue: Queue, out: Out) -> None:
    revoked = await queue.revoked_tasks()
    if out.as_json:
        out.document(
            [{"task": name, "until_ms": one.until_ms, "once": one.once} for name, one in revoked.items()]
        )
    elif not revoked:
        out.text(f"No task of {queue.name} is revoked.")
    else:
        out.table(
            COLUMNS,
            [
                [name, show_time(one.until_ms) or "restored", "yes" if one.once else ""]
                for name, one in revoked.items()
            ],
        )


@store_command(
    "tasks",
    run,
    examples="""
windlass tasks revoke mail mail.send_mail --for 1h
windlass tasks revoke mail mail.send_mail --once    only the next job
windlass tasks list mail
windlass tasks restore mail mail.send_mail
""",
)
@click.argument("action", type=click.Choice(["list", "revoke", "restore"]), metavar="list|revoke|restore")
@click.argument("queue")
@click.argument("task", required=False)
@click.option("--for", "seconds", type=DURATION, help="Restore the task after this time, for example 30m.")
@click.option("--once", is_flag=True, help="Cancel only the next job that would start.")
def command(**values: Any) -> TasksOptions:
    """List the revoked tasks of QUEUE, revoke TASK, or restore it.

    A job of a revoked task that would start is cancelled instead, on every worker. Running jobs continue.
    """
    if values["action"] != "list" and values["task"] is None:
        raise click.UsageError(f"Say which: windlass tasks {values['action']} QUEUE TASK")
    return TasksOptions(**values)
