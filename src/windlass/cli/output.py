"""Output of commands: tables and colours for people, JSON for programs.

All text for people is escaped here, because names, errors and logs of jobs may contain anything. Results go
to stdout; questions, notes, errors and progress bars go to stderr. Rich is imported only when it is needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
import msgspec

from windlass.core.text import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

#: The width for pipes: lines are neither cut nor wrapped.
_PIPE_WIDTH = 4_000
#: The minimum width of a column that may be shortened, as long as other columns can be dropped.
_CUT_WIDTH = 16

STATE_STYLES = {
    "waiting": "cyan",
    "scheduled": "blue",
    "retrying": "yellow",
    "blocked": "blue",
    "parked": "blue",
    "active": "bold green",
    "completed": "green",
    "failed": "bold red",
    "cancelled": "magenta",
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. ``cut``: may be shortened. ``drop``: may be left out if space is short or if it is
    empty, the highest number first (0: never)."""

    title: str
    right: bool = False
    cut: bool = False
    drop: int = 0
    style: str = ""


def styled(text: str, style: str) -> Text:
    """Escaped text in a style. It is never parsed as markup, so that data cannot control the terminal."""
    from windlass.cli.safetext import SafeText

    return SafeText(text, style)


def has_terminal() -> bool:
    """Whether a user can answer questions."""
    return sys.stdin.isatty()


def state_text(state: str) -> Text:
    """The name of a state in its colour."""
    return styled(state, STATE_STYLES.get(state, ""))


class Out:
    """The output of a command. ``as_json``: for programs; only JSON goes to stdout."""

    def __init__(self, *, as_json: bool = False, debug: bool = False, yes: bool = False) -> None:
        self.as_json = as_json
        self.debug = debug
        self.yes = yes

    @cached_property
    def console(self) -> Console:
        """The console for results."""
        return _console(sys.stdout)

    @cached_property
    def notes(self) -> Console:
        """The console for everything else."""
        return _console(sys.stderr)

    @property
    def is_terminal(self) -> bool:
        return sys.stdout.isatty()

    # --- for programs --------------------------------------------------------------------------------

    def document(self, value: Any) -> None:
        """One JSON document."""
        print(
            printable_json(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())
        )

    def line(self, value: Any) -> None:
        """Write one line of JSON Lines and flush it."""
        print(printable_json(msgspec.json.encode(value, enc_hook=str).decode()), flush=True)

    # --- for people ------------------------------------------------------------------------------------

    def text(self, text: str | Text = "", style: str = "") -> None:
        """Print one line. It is wrapped only in a terminal, and never parsed as markup."""
        whole = self.console.width >= _PIPE_WIDTH
        line = styled(text, style) if isinstance(text, str) else text
        self.console.print(line, highlight=False, soft_wrap=whole)

    def done(self, text: str, value: Any) -> None:
        """Print the outcome of a change: a sentence for people, ``value`` for programs."""
        if self.as_json:
            self.document(value)
        else:
            self.text(text)

    def note(self, text: str) -> None:
        """Print a remark to stderr."""
        if not self.as_json:
            self.notes.print(styled(text, "dim"), highlight=False, soft_wrap=True)

    def table(self, columns: Sequence[Column], rows: Iterable[Sequence[str | Text]]) -> None:
        """Print a table of cells."""
        self.console.print(make_table(columns, rows, self.console.width))

    def error(self, message: str, code: str = "error") -> None:
        """Print an error, in one line."""
        if self.as_json:
            error = {"error": {"code": code, "message": message}}
            print(printable_json(msgspec.json.encode(error).decode()), file=sys.stderr)
            return
        line = styled("error: ", "bold red")
        line.append(" ".join(message.split()), style="red")
        self.notes.print(line, highlight=False, soft_wrap=True)

    def confirm(self, question: str) -> bool:
        """Ask before data is deleted. ``--yes`` answers yes. Without a terminal this is a usage error."""
        question = printable(question)
        if self.yes:
            return True
        if not has_terminal():
            raise click.UsageError(f"{question} There is no terminal to ask on: pass --yes.")
        if click.confirm(question, err=True):
            return True
        self.note("Nothing was changed.")
        return False

    @contextmanager
    def progress(self, title: str, total: float | None) -> Iterator[Callable[[float], None]]:
        """Show a progress bar on stderr; yields the function that advances it."""
        if self.as_json or not sys.stderr.isatty():
            yield lambda step: None
            return
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.notes, transient=True) as progress:
            task = progress.add_task(title, total=total)
            yield lambda step: progress.advance(task, step)

    @contextmanager
    def waiting(self, title: str) -> Iterator[None]:
        """Show a spinner on stderr while the store works."""
        if self.as_json or not sys.stderr.isatty():
            yield
            return
        with self.notes.status(title):
            yield


def make_table(columns: Sequence[Column], rows: Iterable[Sequence[str | Text]], width: int) -> Table:
    """A table that fits ``width``."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[cell if isinstance(cell, Text) else styled(cell, "") for cell in row] for row in rows]
    shown = _choose(columns, [[len(cell) for cell in row] for row in cells], width)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for n in shown:
        column = columns[n]
        table.add_column(
            column.title,
            justify="right" if column.right else "left",
            no_wrap=not column.cut,  # rich narrows the columns that it may wrap
            overflow="ellipsis",
            style=column.style,
        )
    for row in cells:
        for cell in row:
            cell.no_wrap, cell.overflow = True, "ellipsis"  # ... but we shorten their text instead
        table.add_row(*(row[n] for n in shown))
    return table


def _choose(columns: Sequence[Column], lengths: list[list[int]], width: int) -> list[int]:
    """Which columns to show: without empty ones that may be dropped, and as many as fit."""
    natural = [max([len(column.title), *(row[n] for row in lengths)]) for n, column in enumerate(columns)]
    need = [
        min(size, _CUT_WIDTH) if column.cut else size for column, size in zip(columns, natural, strict=True)
    ]
    shown = [n for n, column in enumerate(columns) if not column.drop or any(row[n] for row in lengths)]
    while sum(need[n] + 2 for n in shown) - 2 > width:
        last = max(shown, key=lambda n: columns[n].drop)
        if not columns[last].drop:
            break
        shown.remove(last)
    return shown


def _console(stream: Any) -> Console:
    from rich.console import Console

    follow_terminal = stream.isatty() or "COLUMNS" in os.environ
    return Console(file=stream, width=None if follow_terminal else _PIPE_WIDTH)
