"""Count the lines of rules, by verb and by package, at an earlier revision and now.

A *line of a rule* is a line of code (no blank line, comment or docstring) in a function that makes a
decision: which job, which state, place, time, key or group, which answer. Functions that only load, store,
encode or list records or forward requests do not count, and neither do SQL statements. ``tools/rules.toml``
lists the functions by verb; a function counts once. The *size* of a package is all lines of its Python and
SQL files.

    python -m tools.rules            print the tables
    python -m tools.rules --update   write them into docs/internals/engine.md
    python -m tools.rules --check    fail if a listed function is gone, or the page is out of date

The check needs no history, and tolerates small differences.

Tests: ``tests/unit/test_rules_tool.py``.
"""

from __future__ import annotations

import ast
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
MAP = ROOT / "tools" / "rules.toml"
PAGE = ROOT / "docs" / "internals" / "engine.md"
HOME = "src/windlass"
BEGIN, END = "<!-- written by python -m tools.rules --update -->\n", "<!-- end of what it wrote -->\n"
#: Packages that contain rules, in the order of the columns.
WRITERS = ("core", "engine", "memory", "sqlite", "amqp", "valkey")
PACKAGES = ("core", "backend", "engine", "backends/memory", "backends/sqlite", "backends/file")
#: How much a figure of the page may differ: in lines, and as a fraction.
SLACK_LINES, SLACK = 25, 0.1


class RulesError(ValueError):
    """The list of functions does not fit the sources."""


@dataclass(frozen=True, slots=True)
class Tree:
    """The sources of one revision."""

    name: str
    read: Callable[[str], str]
    paths: tuple[str, ...]


@dataclass(slots=True)
class Table:
    """Lines by verb and writer, and the sizes of packages."""

    lines: dict[str, dict[str, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def total(self, verb: str) -> int:
        return sum(self.lines[verb].values())


# --- the sources ----------------------------------------------------------------------------------


def working_tree(root: Path = ROOT) -> Tree:
    home = root / HOME
    paths = (str(path.relative_to(home)) for path in sorted(home.rglob("*")) if path.is_file())
    return Tree("now", lambda path: (home / path).read_text(encoding="utf-8"), tuple(paths))


def revision(name: str) -> Tree:
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RulesError(f"revision {name} cannot be read: {done.stderr.strip()}")
        return done.stdout

    listed = git("ls-tree", "-r", "--name-only", name, f"{HOME}/").splitlines()
    return Tree(
        name,
        cache(lambda path: git("show", f"{name}:{HOME}/{path}")),
        tuple(path.removeprefix(f"{HOME}/") for path in listed),
    )


def functions(path: str, text: str) -> Iterator[tuple[str, int]]:
    """The functions of a file, by their names (``Class.method``), with their lines of code."""
    yield from _lua(text) if path.endswith(".lua") else _python(text)


def code_lines(path: str, text: str) -> int:
    """Lines of a whole file that are neither blank nor comments (nor docstrings)."""
    if path.endswith(".lua"):
        return sum(map(_is_lua, text.splitlines()))
    return _count(ast.parse(text), text.splitlines(), 1, len(text.splitlines()))


def _python(text: str) -> Iterator[tuple[str, int]]:
    lines = text.splitlines()

    def walk(body: list[ast.stmt], owner: str) -> Iterator[tuple[str, int]]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{node.name}.")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield owner + node.name, _count(node, lines, node.lineno, node.end_lineno or node.lineno)

    yield from walk(ast.parse(text).body, "")


def _count(node: ast.AST, lines: list[str], first: int, last: int) -> int:
    said: set[int] = set()
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and (
            ast.get_docstring(inner, clean=False) is not None
        ):
            said.update(range(inner.body[0].lineno, (inner.body[0].end_lineno or 0) + 1))
    numbers = (number for number in range(first, last + 1) if number not in said)
    return sum(1 for number in numbers if (line := lines[number - 1].strip()) and not line.startswith("#"))


def _lua(text: str) -> Iterator[tuple[str, int]]:
    name, count = "", 0
    for line in text.splitlines():
        words = line.removeprefix("local ").split("(")[0].split()
        if words[:1] == ["function"] and not line.startswith(" "):
            name, count = words[1], 0
        if name:
            count += _is_lua(line)
            if line.rstrip() == "end":
                yield name, count
                name = ""


def _is_lua(line: str) -> bool:
    return bool(line.strip()) and not line.strip().startswith("--")


# --- counting -------------------------------------------------------------------------------------


def measure(verbs: list[dict[str, Any]], side: str, tree: Tree) -> Table:
    """Count one side (``before`` or ``now``) of the list. Raises ``RulesError`` if the list is wrong."""
    table, seen = Table(), dict[tuple[str, str], str]()
    entries = [
        (verb["name"], writer, entry)
        for verb in verbs
        for writer, named in verb[side].items()
        for entry in named
    ]
    for verb in verbs:
        if strange := verb[side].keys() - set(WRITERS):
            raise RulesError(f"{verb['name']}, {side}: {', '.join(strange)} is none of {', '.join(WRITERS)}")
        table.lines[verb["name"]] = dict.fromkeys(verb[side], 0)
    for verb_name, writer, entry in sorted(entries, key=lambda one: one[2].endswith(": *")):
        table.lines[verb_name][writer] += _entry(f"{verb_name}, {side}", tree, entry, seen)
    for package in PACKAGES:
        mine = [
            path for path in tree.paths if path.startswith(f"{package}/") and path.endswith((".py", ".sql"))
        ]
        table.sizes[package] = sum(tree.read(path).count("\n") for path in mine)
    return table


def _entry(where: str, tree: Tree, entry: str, seen: dict[tuple[str, str], str]) -> int:
    """The lines of one entry. Each function counts once: ``*`` comes last and takes the remaining ones."""
    path, _, names = entry.partition(":")
    if path not in tree.paths:
        raise RulesError(f"{where}: there is no {path} any more: say in tools/rules.toml where its rules are")
    there = dict(functions(path, tree.read(path))) if names else {"": code_lines(path, tree.read(path))}
    total = 0
    for pattern in names.split() or [""]:
        found = [name for name in there if fnmatchcase(name, pattern)]
        found = found or [name for name in there if fnmatchcase(name.rpartition(".")[2], pattern)]
        if pattern == "*":
            found = [name for name in found if (path, name) not in seen]
        if not found:
            raise RulesError(
                f"{where}: {path} has no function {pattern}: say in tools/rules.toml what it is now"
            )
        for name in found:
            if (path, name) in seen:
                raise RulesError(f"{where}: {path}: {name} counts for {seen[path, name]} already")
            seen[path, name] = where
            total += there[name]
    return total


def load(path: Path = MAP) -> tuple[str, list[dict[str, Any]]]:
    """The earlier revision, and the verbs with their functions."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    return raw["revision"], raw["verb"]


# --- the page -------------------------------------------------------------------------------------


def render(before: Table, now: Table, name: str) -> str:
    """The tables for the page."""
    old = _verb_table(f"at `{name}`", before)
    new = _verb_table("now", now)
    sizes = [
        ["package", f"at `{name}`", "now"],
        *([one, _number(before.sizes[one]), _number(now.sizes[one])] for one in PACKAGES),
        ["all", _number(sum(before.sizes.values())), _number(sum(now.sizes.values()))],
    ]
    return "\n".join(map(_markdown, (old, new, sizes)))


def _verb_table(title: str, table: Table) -> list[list[str]]:
    writers = [one for one in WRITERS if any(row.get(one) for row in table.lines.values())]
    rows = [[title, *writers, "all", "written by"]]
    for verb, row in table.lines.items():
        authors = [one for one in writers if row.get(one) and one != "core"]
        cells = [_number(row.get(one, 0)) if row.get(one) else "" for one in writers]
        rows.append([verb, *cells, _number(table.total(verb)), str(len(authors))])
    sums = [sum(row.get(one, 0) for row in table.lines.values()) for one in writers]
    return [*rows, ["all", *map(_number, sums), _number(sum(sums)), ""]]


def _number(value: int) -> str:
    return f"{value:,}"


def _markdown(rows: list[list[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def replaced(page: str, text: str) -> str:
    """The page with new tables between its marks."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise RulesError("the page has lost the marks between which the tables stand")
    return f"{head}{BEGIN}{text}{END}{tail}"


def drifted(page: str, now: Table) -> list[str]:
    """Figures of the page that are out of date."""
    _, _, block = page.partition(BEGIN)
    tables = [part.splitlines() for part in block.partition(END)[0].split("\n\n")]
    if len(tables) != 3:
        return ["the tables are not there"]
    says = {cells[1].strip(): cells[-3] for line in tables[1] if (cells := line.split("|"))}
    truth = {verb: now.total(verb) for verb in now.lines}
    sizes = {cells[1].strip(): cells[-2] for line in tables[2] if (cells := line.split("|"))}
    wrong = _far(says, truth, "lines of rules")
    return wrong + _far(sizes, {"all": sum(now.sizes.values())}, "lines in the packages")


def _far(page: dict[str, str], truth: dict[str, int], what: str) -> list[str]:
    found = []
    for name, value in truth.items():
        said = page.get(name, "").strip().replace(",", "")
        if not said.isdigit() or abs(int(said) - value) > max(SLACK_LINES, SLACK * value):
            found.append(f"{name}: {value} {what}, the page says {said or 'nothing'}")
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--update", is_flag=True, help="Write the tables into docs/internals/engine.md.")
@click.option("--check", is_flag=True, help="Fail if the list or the page is out of date.")
def main(*, update: bool, check: bool) -> None:
    """Count lines of rules by verb and by package, at an earlier revision and now."""
    name, verbs = load()
    try:
        now = measure(verbs, "now", working_tree())
        page = PAGE.read_text(encoding="utf-8")
        if check:
            if wrong := drifted(page, now):
                raise RulesError("; ".join(wrong) + ". Run python -m tools.rules --update")
            return
        text = render(measure(verbs, "before", revision(name)), now, name)
        if update:
            PAGE.write_text(replaced(page, text), encoding="utf-8")
        else:
            click.echo(text, nl=False)
    except RulesError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
