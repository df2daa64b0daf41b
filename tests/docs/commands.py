"""Command lines and variables that texts name, compared with those that there are."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from windlass.cli.main import tree
from windlass.cli.worker import command as worker
from windlass.cli.worker_settings import settings_of, variable_of

ROOT = Path(__file__).resolve().parents[2]
#: The name of a variable as code reads it: a whole text, or the beginning of one.
_LITERAL = re.compile(r"""["'](WINDLASS_[A-Z_]+)["'{]""")


def check_command(words: Sequence[str], *, whole: bool = True) -> None:
    """Refuse a ``windlass`` command line that click would refuse; nothing is run.

    Unless it is ``whole``, placeholders may stand for values, and arguments may be left out: then only the
    names of the command and of its options are looked at.
    """
    program, name, *rest = words
    assert program == "windlass", words
    group: click.Group = tree
    context = click.Context(tree, info_name="windlass")
    while True:
        command = group.get_command(context, name)
        assert command is not None, f"there is no command {name!r}: {' '.join(words)}"
        if not isinstance(command, click.Group) or not rest:
            break
        group, (name, *rest) = command, rest
    try:
        command.make_context(name, list(rest), parent=context).close()
    except click.exceptions.Exit:  # --help
        pass
    except click.UsageError as exc:
        if whole or isinstance(exc, click.NoSuchOption):
            raise AssertionError(f"{' '.join(words)}: {exc.format_message()}") from exc


def all_commands(group: click.Group = tree) -> Iterator[click.Command]:
    """Every command, and those below it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield command
        if isinstance(command, click.Group):
            yield from all_commands(command)


@functools.cache
def known_variables() -> frozenset[str]:
    """Variables of the environment that some code reads; those that end in ``_`` have more to their name."""
    found = {variable_of(name) for name in settings_of(worker)} | {"WINDLASS_WORKER_"}
    for command in all_commands():
        for param in command.params:
            given = param.envvar or ()
            found |= {given} if isinstance(given, str) else set(given)
    for folder in ("src", "tests"):  # those of the tests are for people who repeat what a page says
        for file in (ROOT / folder).rglob("*.py"):
            found |= set(_LITERAL.findall(file.read_text()))
    return frozenset(found)


def is_known_variable(name: str) -> bool:
    """Whether the package reads it, or all variables that begin so."""
    return name in known_variables() or any(
        name.startswith(one) for one in known_variables() if one.endswith("_") and one != "WINDLASS_WORKER_"
    )
