"""What a worker prints when it starts: a few lines in a terminal, one line in a log."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from windlass._version import __version__
from windlass.cli.output import Out, styled
from windlass.cli.store_commands import shown_url
from windlass.cli.values import show_span

if TYPE_CHECKING:
    from rich.table import Table

    from windlass.worker import QueueSpec, Worker

log = logging.getLogger("windlass.cli")

_TASKS_SHOWN = 8


def announce(worker: Worker, specs: dict[str, QueueSpec], out: Out | None) -> None:
    """Print what the worker runs. ``out`` None: there is no terminal, so log it."""
    options, store = worker.options, shown_url(worker.app.url)
    tasks, others = worker.registry.names(), worker.registry.others
    queues = ", ".join(_queue_text(name, spec) for name, spec in specs.items())
    slots = f"{options.concurrency}, {options.order}"
    if out is None:
        line = "worker %s serves %s on %s (slots: %s; tasks: %s)"
        known = [*([str(len(tasks))] if tasks or not others else []), *others]
        log.info(line, worker.id, queues, store, slots, " and ".join(known))
        log.debug("tasks: %s", ", ".join(tasks))
        return
    head = styled(f"windlass {__version__}", "bold")
    head.append(f"  worker {worker.id}", style="dim")
    out.notes.print(head, highlight=False)
    facts = {"store": store, "queues": queues, "slots": slots, "tasks": _some([*tasks, *others])}
    out.notes.print(_grid(facts))
    out.notes.print(styled(f"  {_ending(worker)}", "dim"), highlight=False)


def _grid(facts: dict[str, str]) -> Table:
    from rich.table import Table

    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in facts.items():
        grid.add_row("", styled(name, "dim"), styled(value, ""))
    return grid


def _ending(worker: Worker) -> str:
    if worker.options.burst:
        return "stops when all jobs are done"
    grace = show_span(worker.options.ms("grace"))
    return f"Ctrl-C waits up to {grace} for running jobs; twice stops at once"


def _some(names: list[str]) -> str:
    more = len(names) - _TASKS_SHOWN
    return ", ".join(names[:_TASKS_SHOWN]) + (f" and {more} more" if more > 0 else "") or "none"


def _queue_text(name: str, spec: QueueSpec) -> str:
    facts = [f"weight {spec.weight:g}"] if spec.weight != 1 else []
    facts += [f"at most {spec.cap}"] if spec.cap is not None else []
    facts += [f"{spec.reserve} reserved"] if spec.reserve else []
    return f"{name} ({', '.join(facts)})" if facts else name
