"""Options that select jobs: by id, or ``--all`` in some states that match a search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from windlass.api.search import SearchOptions
from windlass.cli.store_commands import StoreOptions
from windlass.cli.values import parse_pairs

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class Selection(StoreOptions):
    """The selected jobs of a queue: ``ids``, or ``all`` in ``states`` that match."""

    queue: str
    ids: tuple[str, ...] = ()
    all: bool = False
    states: tuple[str, ...] = ()
    name: str | None = None
    tag: str | None = None
    error: str | None = None
    data: dict[str, Any] | None = None
    query: str = ""

    @property
    def search(self) -> SearchOptions:
        """The search conditions besides the state."""
        return {
            "name": self.name,
            "tag": self.tag,
            "error": self.error,
            "data": self.data or None,
            "query": self.query,
        }


def selects(states: Sequence[str], default: Sequence[str] = ()) -> Callable[[CommandT], CommandT]:
    """Add the arguments and options for a ``Selection`` of jobs in ``states``."""
    options = [
        click.argument("queue"),
        click.argument("ids", nargs=-1, metavar="[ID]..."),
        click.option("--all", is_flag=True, help="Every job in the given states, instead of jobs by id."),
        click.option(
            "--state",
            "-s",
            "states",
            multiple=True,
            type=click.Choice(list(states)),
            default=tuple(default),
            show_default=bool(default),
            help="With --all: in these states (repeatable).",
        ),
        click.option("--name", "-n", metavar="GLOB", help="With --all: only tasks whose name matches."),
        click.option("--tag", "-t", help="With --all: only jobs with this tag."),
        click.option("--error", metavar="CLASS", help="With --all: only if the last error is of this class."),
        click.option(
            "--data", "-d", multiple=True, metavar="KEY=VALUE", help="With --all: only with this argument."
        ),
        click.option(
            "--search",
            "-q",
            "query",
            default="",
            metavar="QUERY",
            help="With --all: only jobs that match a query, as in 'windlass jobs --search'.",
        ),
    ]

    def decorate(command: CommandT) -> CommandT:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def check_selection(values: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a ``Selection``. Requires either ids or ``--all``."""
    if bool(values["ids"]) == values["all"]:
        raise click.UsageError("Name the jobs, or pass --all.")
    if values["all"] and not values["states"]:
        raise click.UsageError("Say which: --all needs --state.")
    filters = [name for name in ("name", "tag", "error", "data", "query") if values[name]]
    if filters and not values["all"]:
        raise click.UsageError(f"--{filters[0].replace('query', 'search')} goes with --all.")
    return {**values, "data": parse_pairs(values["data"], "--data")}
