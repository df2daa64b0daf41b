"""``windlass flow``: shows a job and all jobs that it waits for as a tree; cancels or removes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.output import Out, state_text
from windlass.cli.store_commands import StoreOptions, find_queue, store_command
from windlass.core.edges import EdgeStatus

if TYPE_CHECKING:
    from rich.tree import Tree

    from windlass.flows.tree import JobNode


@dataclass(frozen=True, kw_only=True)
class FlowOptions(StoreOptions):
    """The job at the top of the flow, and what to do with it."""

    queue: str
    job_id: str
    cancel: bool = False
    remove: bool = False
    force: bool = False
    reason: str = ""
    depth: int = 100


async def run(options: FlowOptions, out: Out) -> int:
    """Show a flow, or change all of it."""
    async with options.app() as app:
        queue = await find_queue(app, options.queue)
        if options.cancel or options.remove:
            top = await queue.get_flow(options.job_id)
            size = sum(1 for _ in top.walk())
            verb, done = ("Cancel", "Cancelled") if options.cancel else ("Remove", "Removed")
            if not out.confirm(f"{verb} {top.job.name} and the {size - 1:,} jobs below it?"):
                return 1
            if options.cancel:
                count = await queue.cancel_flow(options.job_id, options.reason)
            else:
                count = await queue.remove_flow(options.job_id, force=options.force)
            out.done(f"{done} {count:,} jobs.", {done.lower(): count})
            return 0
        top = await queue.get_flow(options.job_id, depth=options.depth)
    if out.as_json:
        out.document(node_view(top))
    else:
        _draw(top, out)
    return 0


def node_view(node: JobNode) -> dict[str, Any]:
    """A node and all nodes below it, for JSON."""
    view: dict[str, Any] = {
        "queue": node.queue_name,
        "id": node.id,
        "name": node.job.name,
        "state": node.state.value,
        "children": [node_view(child) for child in node.children],
    }
    if node.edge is not None:
        view["on_failure"] = node.edge.on_failure.value
        view["edge"] = node.edge.status.value
    for mark in ("truncated", "gone"):
        if getattr(node, mark):
            view[mark] = True
    return view


def _draw(top: JobNode, out: Out) -> None:
    from rich.tree import Tree

    root = Tree(_label(top), guide_style="dim")
    ahead: list[tuple[JobNode, Tree]] = [(top, root)]
    while ahead:
        node, branch = ahead.pop()
        ahead += [(child, branch.add(_label(child))) for child in node.children]
        if node.truncated:
            branch.add("...")
    out.console.print(root)
    counts: dict[str, int] = {}
    for node in top.walk():
        counts[node.state.value] = counts.get(node.state.value, 0) + 1
    out.text()
    out.text(", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())), "dim")


def _label(node: JobNode) -> Any:
    label = state_text(node.state.value)
    label.append(f"  {node.job.name}", style="bold")
    label.append(f"  {node.queue_name}/{node.id}", style="dim")
    if node.edge is not None and node.edge.status is EdgeStatus.FAILED:
        label.append(f"  (on failure: {node.edge.on_failure.value})", style="yellow")
    if node.gone:
        label.append("  (its record is gone)", style="dim")
    return label


@store_command(
    "flow",
    run,
    asks=True,
    examples="""
windlass flow reports 01a1e253401271a4b93925054a8821bc
windlass flow reports nightly-2026-07-01 --json
windlass flow reports nightly-2026-07-01 --cancel --reason 'wrong numbers'
windlass flow reports nightly-2026-07-01 --remove --yes
""",
)
@click.argument("queue")
@click.argument("job_id", metavar="ID")
@click.option("--cancel", is_flag=True, help="Cancel the job and every job it waits for.")
@click.option("--remove", is_flag=True, help="Delete the job and every job it waits for.")
@click.option("--force", is_flag=True, help="With --remove: also when one of them is running.")
@click.option("--reason", default="", help="With --cancel: a reason, stored with the jobs.")
@click.option(
    "--depth", type=click.IntRange(0, 1_000), default=100, show_default=True, help="Levels to show."
)
def command(**values: Any) -> FlowOptions:
    """Show a job of QUEUE and every job it waits for, as a tree with states.

    ID is the job at the top: the one that waits for all others. --cancel and --remove leave alone the jobs
    that a job outside the flow waits for.
    """
    options = FlowOptions(**values)
    if options.cancel and options.remove:
        raise click.UsageError("Choose one of --cancel and --remove.")
    return options
