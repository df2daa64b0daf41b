"""``python -m tools.branches [STORE ...]``: which branches of engine and stores the conformance suite takes.

It runs the suite on each store under coverage, prints a table by package, and compares the branches that
were not taken with ``tools/branches.toml``, which lists each with its reason. It fails on a branch that is
neither taken nor listed, and on a listed branch that is taken or gone. ``--last`` evaluates the last run
again; ``--only EXPRESSION`` runs some tests (as ``pytest -k``) and adds their coverage to the last run.
Runs on different stores may be under way at the same time; ``WINDLASS_TEST_WORKERS`` is the number of
processes of each, ``--timeout`` the seconds that a test may take on a busy machine.

A branch is identified by its file, its function, the text of its line and the text of its target line, so
that moving lines does not affect the list. A function that is never called counts as one branch, and so does
an ``except`` that is never reached; the branches inside them are not listed.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "branches.toml"
DATA = ROOT / ".reports" / "branches"
SOURCE = "src/windlass"
#: The modules of ``core`` that contain rules of the engine.
RULES = (
    *("transitions", "settle_rules", "change_rules", "flow_rules", "limit_rules"),
    *("unique_rules", "schedule_rules", "stream_rules", "retention", "stubs", "bad_records"),
)
STORES = ("memory", "file", "sqlite", "valkey", "amqp")
#: The store on which the coverage of the engine and the rules is measured.
REFERENCE = "memory"

#: The seconds that a test may take: coverage makes it several times slower.
TIMEOUT = 240

CALLED, RAISED, END = "is called", "is raised", "the end"


class Branch(NamedTuple):
    """A branch of a file, identified by text and not by line numbers."""

    file: str
    function: str
    line: str
    to: str
    #: Distinguishes branches with the same texts, from 1.
    number: int = 1

    def __str__(self) -> str:
        number = f" (number {self.number})" if self.number > 1 else ""
        return f"{self.file}: {self.function}: {self.line!r} to {self.to!r}{number}"


class Listed(NamedTuple):
    """An entry of the list. ``by``: stores that take the branch although it is listed.

    ``sometimes``: whether a run takes it depends on the timing of threads and servers.
    """

    branch: Branch
    reason: str
    by: tuple[str, ...] = ()
    sometimes: bool = False


class Measured(NamedTuple):
    """The coverage of one file."""

    lines: frozenset[int]
    taken: frozenset[tuple[int, int]]
    missing: frozenset[tuple[int, int]]


# --- which branches are open ------------------------------------------------------------------------


def open_branches(file: str, source: str, measured: Measured) -> Iterator[Branch]:
    """The branches of ``file`` that were reached and not taken."""
    return _numbered(file, (one for one in _found(source, measured) if one.is_open))


def all_branches(file: str, source: str, measured: Measured) -> Iterator[Branch]:
    """All branches of ``file``."""
    return _numbered(file, _found(source, measured))


class _Found(NamedTuple):
    """A branch without its number."""

    function: str
    line: str
    to: str
    is_open: bool


def _numbered(file: str, found: Iterable[_Found]) -> Iterator[Branch]:
    seen = Counter[tuple[str, str, str]]()
    for function, line, to, _ in found:
        seen[function, line, to] += 1
        yield Branch(file, function, line, to, seen[function, line, to])


def _found(source: str, measured: Measured) -> Iterator[_Found]:
    texts = source.splitlines()

    def text(number: int) -> str:
        return END if number < 0 else texts[number - 1].strip()

    for name, function in _functions(ast.parse(source)):
        entered, own = _is_entered(function, measured), _own_lines(function)
        yield _Found(name, text(function.lineno), CALLED, not entered)
        for start, end in sorted(measured.taken | measured.missing):
            if start in own:
                reached = entered and start in measured.lines
                yield _Found(name, text(start), text(end), reached and (start, end) in measured.missing)
        for handler in _handlers(function):
            if handler.lineno in own:
                is_open = entered and handler.lineno not in measured.lines
                yield _Found(name, text(handler.lineno), RAISED, is_open)


_Function = ast.FunctionDef | ast.AsyncFunctionDef


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, _Function]]:
    """All functions below ``node`` with their qualified names, except stubs."""
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, _Function | ast.ClassDef):
            inner = f"{prefix}{child.name}"
            if isinstance(child, _Function) and not _is_stub(child):
                yield inner, child
            inner += "."
        yield from _functions(child, inner)


def _is_stub(function: _Function) -> bool:
    """Whether the body of a function is only a docstring, an ellipsis or ``NotImplementedError``."""
    return all(
        (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        or (isinstance(one, ast.Raise) and "NotImplementedError" in ast.dump(one))
        for one in function.body
    )


def _is_entered(function: _Function, measured: Measured) -> bool:
    return any(line in measured.lines for one in function.body for line in _span(one))


def _own_lines(function: _Function) -> set[int]:
    """The lines of a function without those of nested functions."""
    inner = {
        line
        for node in ast.walk(function)
        if node is not function and isinstance(node, _Function)
        for one in node.body
        for line in _span(one)
    }
    return {line for one in function.body for line in _span(one)} - inner


def _handlers(function: _Function) -> Iterator[ast.ExceptHandler]:
    return (node for node in ast.walk(function) if isinstance(node, ast.ExceptHandler))


def _span(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


# --- the list ---------------------------------------------------------------------------------------


def load_list(path: Path = LIST) -> list[Listed]:
    """Read the branches that need not be taken."""
    found = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return [
        Listed(
            Branch(one["file"], one["function"], one["line"], one["to"], one.get("number", 1)),
            one["reason"],
            tuple(one.get("by", ())),
            one.get("sometimes", False),
        )
        for one in found.get("branch", ())
    ]


def compare(
    listed: Iterable[Listed],
    still: set[Branch],
    there: set[Branch],
    stores: Sequence[str],
    judged: set[str],
) -> list[str]:
    """The mistakes of the list for the files in ``judged``, after a run on ``stores``.

    ``still`` are the branches that were not taken, ``there`` all branches of these files.
    """
    known = {one.branch: one for one in listed if one.branch.file in judged}
    wrong = [f"not taken and not listed: {branch}" for branch in sorted(still - {*known})]
    closed = {(branch.file, branch.function) for branch in still if branch.to == CALLED}
    for branch, one in known.items():
        taken_by = [store for store in one.by if store in stores]
        if not one.reason.strip():
            wrong.append(f"listed without a reason: {branch}")
        if taken_by and branch in still:
            wrong.append(f"not taken by {', '.join(taken_by)}, against the list: {branch}")
        may_be_open = branch in still or (branch.file, branch.function) in closed or one.sometimes
        if branch not in there:
            wrong.append(f"listed, but gone: {branch}")
        elif not taken_by and not may_be_open:
            wrong.append(f"listed, but taken: {branch}")
    return wrong


# --- running ----------------------------------------------------------------------------------------


def suite_of(store: str, only: str = "") -> list[str]:
    """The pytest arguments that select the conformance suite on a store, or some of its tests."""
    if store in ("memory", "file", "sqlite"):
        places = [f"tests/backends/test_{part}.py" for part in ("conformance", "variants", "clock_ahead")]
        return [*places, "-k", f"[{store} and ({only})" if only else f"[{store}"]
    folder = f"tests/backends/{store}"
    places = [f"{folder}/test_conformance_{store}.py", f"{folder}/test_variants_{store}.py"]
    if store == "amqp":
        places.append(f"{folder}/test_quorum_conformance_{store}.py")
    return [*places, "-k", only] if only else places


def run_store(store: str, workers: int, only: str = "", timeout: int = TIMEOUT) -> None:
    """Run the suite on a store, or some of its tests, and write the coverage to ``DATA``."""
    folder = DATA / store
    if not only:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "coverage", "run", f"--data-file={folder / 'part'}", "-m", "pytest"]
    command += ["-p", "tools.save_coverage", "-q", f"--timeout={timeout}", f"-n{workers}"]
    if subprocess.run([*command, *suite_of(store, only)], cwd=ROOT, check=False).returncode:
        raise click.ClickException(f"the suite fails on {store}: what it covers says nothing")
    if len([*folder.iterdir()]) <= workers:
        raise click.ClickException(
            "the processes of the suite were not measured: this environment lacks the start-up file of "
            "coverage (a1_coverage.pth in its site-packages), install it again"
        )


def measure(stores: Sequence[str], files: Iterable[str]) -> dict[str, Measured]:
    """The combined coverage of ``files`` by the last runs on these stores."""
    if missing := [store for store in stores if not (DATA / store).exists()]:
        raise click.ClickException(f"not measured yet: {', '.join(missing)}")
    parts = [str(part) for store in stores for part in (DATA / store).iterdir()]
    include = f"--include={','.join(files)}"
    with tempfile.TemporaryDirectory() as folder:  # other stores may be measured at the same time
        whole, report = Path(folder, "whole"), Path(folder, "report.json")
        _coverage("combine", "-q", "--keep", f"--data-file={whole}", *parts)
        _coverage("json", "-q", f"--data-file={whole}", "-o", str(report), include, "--fail-under=0")
        found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))["files"]
    return {
        file: Measured(
            frozenset(one["executed_lines"]),
            frozenset((start, end) for start, end in one["executed_branches"]),
            frozenset((start, end) for start, end in one["missing_branches"]),
        )
        for file, one in found.items()
    }


def _coverage(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, check=True)


def judged_files(stores: Sequence[str]) -> dict[str, list[str]]:
    """The files that a run on these stores must cover, by package."""
    packages = {f"backends/{store}": _files(f"backends/{store}") for store in stores}
    if REFERENCE in stores:
        rules = [f"{SOURCE}/core/{name}.py" for name in RULES]
        if gone := [file for file in rules if not (ROOT / file).exists()]:
            raise click.ClickException(f"rules that are not there: {', '.join(gone)}")
        packages = {"engine": _files("engine"), "core (rules)": rules, **packages}
    return packages


def _files(folder: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / SOURCE / folder).rglob("*.py"))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("stores", nargs=-1, type=click.Choice(STORES))
@click.option("--last", is_flag=True, help="Evaluate the last run on these stores again.")
@click.option("--only", default="", help="Run only these tests (pytest -k), and add them to the last run.")
@click.option("--timeout", default=TIMEOUT, show_default=True, help="The seconds that a test may take.")
@click.option("--toml", "as_toml", is_flag=True, help="Print branches that are not listed as new entries.")
def main(*, stores: tuple[str, ...], last: bool, only: str, timeout: int, as_toml: bool) -> None:
    """Show which branches of the engine and the stores the conformance suite takes.

    The default stores are memory and file.
    """
    stores = stores or ("memory", "file")
    for store in () if last else stores:
        run_store(store, int(os.environ.get("WINDLASS_TEST_WORKERS", "2")), only, timeout)
    packages = judged_files(stores)
    judged = {file for files in packages.values() for file in files}
    measured = measure(stores, judged)
    sources = {file: (ROOT / file).read_text(encoding="utf-8") for file in measured}
    still, there = (
        {branch for file, taken in measured.items() for branch in look(file, sources[file], taken)}
        for look in (open_branches, all_branches)
    )
    listed = load_list()
    _print_table(packages, measured, still)
    if as_toml:
        _print_toml(sorted(still - {one.branch for one in listed}))
    if wrong := compare(listed, still, there, stores, judged):
        raise click.ClickException("\n  ".join(["the list of branches is not true:", *wrong]))


def _print_table(packages: dict[str, list[str]], measured: dict[str, Measured], still: set[Branch]) -> None:
    click.echo(f"{'package':<20} {'branches':>8} {'taken':>8} {'':>7} {'open':>7}")
    for package, files in packages.items():
        parts = [measured[file] for file in files if file in measured]
        taken = sum(len(part.taken) for part in parts)
        total = taken + sum(len(part.missing) for part in parts)
        left = sum(branch.file in files for branch in still)
        click.echo(f"{package:<20} {total:>8,} {taken:>8,} {taken / max(total, 1):>7.1%} {left:>7}")


def _print_toml(branches: Iterable[Branch]) -> None:
    for branch in branches:
        click.echo("[[branch]]")
        for name, value in branch._asdict().items():
            if value != 1:
                click.echo(f"{name} = {json.dumps(value, ensure_ascii=False)}")
        click.echo('reason = ""\n')


if __name__ == "__main__":
    main()
