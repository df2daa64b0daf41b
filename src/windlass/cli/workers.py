"""``windlass workers``: who is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from windlass.cli.output import Column, Out, styled
from windlass.cli.store import StoreOptions, store_command
from windlass.cli.values import show_age, show_bytes
from windlass.cli.views import now_ms

if TYPE_CHECKING:
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


async def run(options: StoreOptions, out: Out) -> int:
    """List the workers."""
    async with options.app() as app:
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


def worker_view(info: WorkerInfo) -> dict[str, Any]:
    """A worker for programs, with every field."""
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
        "quiet" if info.quiet else "",
    ]


@store_command(
    "workers",
    run,
    examples="""
windlass workers
windlass workers --json | jq '.[] | {id, busy, queues}'
""",
)
def command(url: str | None) -> StoreOptions:
    """List the workers that were alive in the last 45 seconds.

    'quiet' workers take no new jobs: they are paused or stopping.
    """
    return StoreOptions(url=url)
