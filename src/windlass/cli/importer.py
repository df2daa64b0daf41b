"""``windlass import``: moves waiting jobs from another system."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.output import Column, Out
from windlass.cli.store_commands import StoreOptions, store_command

if TYPE_CHECKING:
    from windlass.api.app import Windlass
    from windlass.importing import ImportReport

_SOURCES = ("celery", "rq", "bullmq", "arq", "dramatiq", "saq", "procrastinate")
_COLUMNS = (
    Column("queue"),
    Column("becomes"),
    Column("waiting", right=True),
    Column("scheduled", right=True),
    Column("added", right=True),
    Column("known", right=True),
    Column("gone", right=True),
    Column("refused", right=True),
)


@dataclass(frozen=True, kw_only=True)
class ImportOptions(StoreOptions):
    """``mode`` is dry, copy or move."""

    source: str
    source_url: str
    mode: str = "dry"
    queues: tuple[str, ...] = ()
    prefix: str = ""
    queue_names: dict[str, str] = field(default_factory=dict)
    task_names: dict[str, str] = field(default_factory=dict)

    def target(self) -> Windlass:
        """The app to add to: the named one, or one on the store."""
        return self.app(create=True)


async def run(options: ImportOptions, out: Out) -> int:
    """Inspect, copy or move jobs, and report the result."""
    from windlass.importing import Mode, Mover, open_source

    client, reader = open_source(options.source, options.source_url, options.prefix)
    try:
        async with options.target() as app:
            mover = Mover(
                app,
                client,
                reader,
                queues=options.queues,
                queue_names=options.queue_names,
                task_names=options.task_names,
            )
            mode = Mode(options.mode)
            title = {"dry": "Looking", "copy": "Copying", "move": "Moving"}[mode.value]
            with out.progress(title, await mover.size()) as advance:
                report = await mover.run(mode, advance)
    finally:
        await client.close()
    if out.as_json:
        out.document(_document(report))
    else:
        _draw(report, out)
    return 0


def _document(report: ImportReport) -> dict[str, Any]:
    return {
        "mode": report.mode.value,
        "source": report.source,
        **{
            name: report.total(name) for name in ("waiting", "scheduled", "added", "known", "gone", "refused")
        },
        "resumed": report.resumed,
        "queues": list(report.queues.values()),
        "tasks": dict(report.tasks),
        "refusals": [
            {"task": task, "reason": reason, "count": count}
            for (task, reason), count in report.refusals.most_common()
        ],
        "left": report.left,
    }


def _draw(report: ImportReport, out: Out) -> None:
    rows = [
        [row.queue, row.target, *(f"{getattr(row, column.title):,}" for column in _COLUMNS[2:])]
        for row in report.queues.values()
    ]
    out.table(_COLUMNS, rows)
    out.text()
    for (task, reason), count in report.refusals.most_common(20):
        out.text(f"refused {count:,} of {task or 'an unknown task'}: {reason}", "yellow")
    for what, count in report.left.items():
        out.text(f"left alone: {count:,} {what}", "dim")
    found = report.total("waiting") + report.total("scheduled")
    match report.mode.value:
        case "dry":
            if report.resumed:
                out.text(f"{report.resumed:,} jobs are held by an interrupted run: --confirm finishes it.")
            out.text(f"{found:,} jobs can be moved; nothing was changed. --confirm moves them.", "bold")
        case "copy":
            known = report.total("known")
            out.text(f"Copied {report.total('added'):,} jobs ({known:,} were here already).", "bold")
            out.text("They are still in their old queue as well: --confirm takes them out of it.")
        case _:
            known = report.total("known")
            resumed = f", {report.resumed:,} from an interrupted run" if report.resumed else ""
            out.text(f"Moved {report.total('added'):,} jobs ({known:,} were here already{resumed}).", "bold")


def _pairs(words: tuple[str, ...], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        old, equals, new = word.partition("=")
        if not old or not equals or not new:
            raise click.BadParameter(f"write OLD=NEW, got {word!r}", param_hint=f"'{option}'")
        found[old] = new
    return found


@store_command(
    "import",
    run,
    examples="""
windlass import celery redis://localhost:6379/0             look only: what would be moved
windlass import celery redis://localhost:6379/0 --confirm   move it
windlass import rq redis://localhost --queues default,mail --rename shop.send=shop.jobs.send
windlass import procrastinate postgresql://localhost/shop --confirm
windlass import bullmq redis://localhost --map-queue emails=mail --app shop.jobs:app
""",
)
@click.argument("source", type=click.Choice(_SOURCES))
@click.argument("source_url", metavar="SOURCE_URL")
@click.option("--queues", "-q", metavar="A,B", help="Only these queues of the other system.")
@click.option("--copy", is_flag=True, help="Add the jobs here and keep them there too.")
@click.option("--confirm", is_flag=True, help="Take the jobs out of their old queue and add them here.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Rename a task (repeatable).")
@click.option("--map-queue", multiple=True, metavar="OLD=NEW", help="Rename a queue (repeatable).")
@click.option(
    "--app",
    "app_name",
    metavar="MODULE:APP",
    help="Use the codec of this app and the options of its tasks.",
)
@click.option(
    "--prefix",
    default="",
    help="Prefix of the other system's keys, if not its default; on PostgreSQL, the schema of its tables.",
)
def command(
    queues: str | None,
    copy: bool,
    confirm: bool,
    rename: tuple[str, ...],
    map_queue: tuple[str, ...],
    **values: Any,
) -> ImportOptions:
    """Move waiting and scheduled jobs from another system.

    SOURCE is celery, rq, bullmq, arq, dramatiq or saq, each on Redis or Valkey, or procrastinate on
    PostgreSQL; SOURCE_URL is the URL of that server. Without --copy or --confirm the command changes
    nothing and reports what it found. With --confirm it takes each job from its old queue, adds it here
    under an id derived from the old one, and only then deletes it there. The next run finishes an
    interrupted one.

    Messages are never executed: pickles are read only when they contain plain data. Jobs that cannot be
    moved (other pickles, canvases, flows, jobs of schedulers) stay; they are counted, with the reason.
    """
    if copy and confirm:
        raise click.UsageError("Choose one of --copy and --confirm.")
    return ImportOptions(
        mode="copy" if copy else "move" if confirm else "dry",
        queues=tuple(filter(None, (queues or "").split(","))),
        queue_names=_pairs(map_queue, "--map-queue"),
        task_names=_pairs(rename, "--rename"),
        **values,
    )
