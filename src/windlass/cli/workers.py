"""``windlass workers``: lists live workers, and sends commands to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast, get_args

import click
import msgspec

from windlass.cli.job_changes import Answers
from windlass.cli.job_views import now_ms
from windlass.cli.output import Column, Out, styled
from windlass.cli.store_commands import StoreOptions, store_command
from windlass.cli.values import show_age, show_bytes
from windlass.core.job import Action

if TYPE_CHECKING:
    from windlass.api.app import Windlass
    from windlass.core.job import WorkerInfo

COLUMNS = [
    Column("worker", cut=True),
    Column("tag", cut=True, drop=2),
    Column("queues", cut=True),
    Column("busy", right=True),
    Column("memory", right=True),
    Column("up", right=True),
    Column("seen", right=True),
    Column("version", drop=3),
    Column("", style="yellow", drop=1),
]


@dataclass(frozen=True, kw_only=True)
class WorkersOptions(StoreOptions):
    """``list``, or a command for the workers ``ids``."""

    action: str = "list"
    ids: tuple[str, ...] = ()


async def run(options: WorkersOptions, out: Out) -> int:
    """List the workers, or send a command to some of them."""
    async with options.app() as app:
        if options.action != "list":
            return await _send(app, options, out)
        workers = await app.workers()
    if out.as_json:
        out.document([worker_view(info) for info in workers])
        return 0
    if not workers:
        out.text("No worker was alive in the last 45 seconds. Start one with: windlass worker MODULE:APP")
        return 0
    now = now_ms()
    out.table(COLUMNS, [_row(info, now) for info in workers])
    busy, slots = sum(info.busy for info in workers), sum(info.concurrency for info in workers)
    out.note(f"{len(workers)} workers, {busy} of {slots} slots busy")
    return 0


async def _send(app: Windlass, options: WorkersOptions, out: Out) -> int:
    answers = Answers("notified")
    for worker_id in options.ids:
        if await app.command_worker(worker_id, cast("Action", options.action)):
            answers.ok(worker_id, f"sent {options.action} to")
        else:
            answers.failed(worker_id, "worker_not_found", f"there is no worker {worker_id}")
    return answers.report(out)


def worker_view(info: WorkerInfo) -> dict[str, Any]:
    """All fields of a worker, as a JSON value."""
    return msgspec.structs.asdict(info)


def _row(info: WorkerInfo, now: int) -> list[Any]:
    return [
        info.id,
        info.tag,
        ", ".join(info.queues),
        styled(f"{info.busy}/{info.concurrency}", "bold green" if info.busy else ""),
        show_bytes(info.rss_kb * 1024),
        show_age(now - info.started_ms),
        show_age(now - info.beat_ms),
        info.version,
        ", ".join(["quiet"] * info.quiet + ["leader"] * info.leader),
    ]


@store_command(
    "workers",
    run,
    examples="""
windlass workers
windlass workers --json | jq '.[] | {id, busy, queues}'
windlass workers quiet web1:4711:0c8f5b6f           take no new jobs
windlass workers stop web1:4711:0c8f5b6f            finish what runs, then exit
""",
)
@click.argument(
    "action",
    type=click.Choice(["list", *get_args(Action)]),
    default="list",
    metavar=f"[list|{'|'.join(get_args(Action))}]",
)
@click.argument("ids", nargs=-1, metavar="[WORKER]...")
def command(**values: Any) -> WorkersOptions:
    """List the workers that were alive in the last 45 seconds, or send some of them a command.

    'quiet' workers take no new jobs: they are paused or stopping. 'dump' writes the stacks of what runs
    into the worker's own log.
    """
    if (values["action"] == "list") == bool(values["ids"]):
        raise click.UsageError("Name the workers that get the command: windlass workers stop WORKER")
    return WorkersOptions(**values)
