"""Which branches of a file a run left open, and how the list of those that may stay so is checked."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import coverage
import pytest

from tools import save_coverage
from tools.branches import (
    CALLED,
    END,
    RAISED,
    ROOT,
    Branch,
    Listed,
    Measured,
    all_branches,
    compare,
    judged_files,
    load_list,
    open_branches,
    suite_of,
)

SOURCE = """\
def find(rows, key):
    for row in rows:
        if row == key:
            return row
    try:
        return rows[0]
    except IndexError:
        return None


def never(rows):
    if rows:
        return 1
    return 2


class Port:
    def load(self, reads):
        ...
"""
FOUND = Branch("f.py", "find", "if row == key:", "for row in rows:")


def measured(
    lines: set[int], missing: set[tuple[int, int]], taken: set[tuple[int, int]] | None = None
) -> Measured:
    return Measured(frozenset(lines), frozenset(taken or ()), frozenset(missing))


def test_open_branches_are_named_by_what_they_say() -> None:
    run = measured({1, 2, 3, 4, 5, 6, 11}, {(3, 2), (2, 5), (12, 13), (12, 14)})
    assert set(open_branches("f.py", SOURCE, run)) == {
        FOUND,
        Branch("f.py", "find", "for row in rows:", "try:"),
        Branch("f.py", "find", "except IndexError:", RAISED),
        Branch("f.py", "never", "def never(rows):", CALLED),
    }


def test_moved_lines_are_the_same_branches() -> None:
    run = measured({1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14}, {(3, 2)})
    moved = measured({line + 2 for line in run.lines}, {(5, 4)})
    assert set(open_branches("f.py", SOURCE, run)) == {FOUND}
    assert set(open_branches("f.py", f"# one\n# two\n{SOURCE}", moved)) == {FOUND}


def test_branches_that_look_the_same_are_counted() -> None:
    source = "def two(a, b):\n    if a:\n        b()\n    if a:\n        b()\n"
    run = measured({1, 2, 4}, {(2, 3), (4, 5), (4, -1)})
    assert set(open_branches("f.py", source, run)) == {
        Branch("f.py", "two", "if a:", "b()"),
        Branch("f.py", "two", "if a:", "b()", 2),
        Branch("f.py", "two", "if a:", END),
    }


def test_all_branches_are_those_that_were_taken_too() -> None:
    run = measured({1, 2, 3, 4, 5, 6, 11}, {(3, 2), (2, 5), (12, 13), (12, 14)}, {(2, 3), (3, 4)})
    assert set(all_branches("f.py", SOURCE, run)) == {
        *open_branches("f.py", SOURCE, run),
        FOUND._replace(to="return row"),
        Branch("f.py", "find", "for row in rows:", "if row == key:"),
        Branch("f.py", "find", "def find(rows, key):", CALLED),
        Branch("f.py", "never", "if rows:", "return 1"),
        Branch("f.py", "never", "if rows:", "return 2"),
    }


def test_a_branch_that_is_only_sometimes_taken_must_still_be_there() -> None:
    listed = [Listed(FOUND, "as threads happen to run", sometimes=True)]
    assert compare(listed, set(), {FOUND}, ["amqp"], {"f.py"}) == []
    moved = {FOUND._replace(function="search")}
    assert compare(listed, set(), moved, ["amqp"], {"f.py"}) == [f"listed, but gone: {FOUND}"]
    by = [Listed(FOUND, "only there", ("amqp",))]
    assert compare(by, set(), moved, ["amqp"], {"f.py"}) == [f"listed, but gone: {FOUND}"]


def test_the_list_must_be_true() -> None:
    other, covered, elsewhere = (FOUND._replace(function=name) for name in ("other", "covered", "elsewhere"))
    listed = [
        Listed(covered, "nothing reaches it"),
        Listed(elsewhere, "only there", ("amqp",)),
        Listed(FOUND._replace(file="g.py"), "not looked at"),
    ]
    still, there = {FOUND, elsewhere}, {FOUND, other, covered, elsewhere}
    assert compare(listed, still, there, ["memory"], {"f.py"}) == [
        f"not taken and not listed: {FOUND}",
        f"listed, but taken: {covered}",
    ]
    assert compare(
        [Listed(FOUND, "why"), Listed(elsewhere, "why", ("amqp",))], still, there, ["amqp"], {"f.py"}
    ) == [f"not taken by amqp, against the list: {elsewhere}"]
    sometimes = [Listed(covered, "why", sometimes=True), Listed(FOUND, "why")]
    assert compare(sometimes, {FOUND}, there, ["amqp"], {"f.py"}) == []
    assert compare([Listed(other, " ")], {other}, there, ["memory"], {"f.py"}) == [
        f"listed without a reason: {other}"
    ]


def test_every_entry_of_the_list_is_a_line_of_its_function() -> None:
    for one in load_list():
        texts = _functions_of(ROOT / one.branch.file).get(one.branch.function, set())
        assert one.branch.line in texts, one.branch
        assert one.branch.to in (*texts, CALLED, RAISED, END), one.branch


@functools.cache
def _functions_of(path: Path) -> dict[str, set[str]]:
    """The lines of every function of a file, by its qualified name."""
    source = path.read_text(encoding="utf-8")
    texts = [line.strip() for line in source.splitlines()]
    found: dict[str, set[str]] = {}

    def walk(node: ast.AST, outer: str) -> None:
        for inner in ast.iter_child_nodes(node):
            name = outer
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = f"{outer}.{inner.name}".lstrip(".")
                found.setdefault(name, set()).update(texts[inner.lineno - 1 : inner.end_lineno])
            walk(inner, name)

    walk(ast.parse(source), "")
    return found


def test_the_engine_is_judged_where_the_reference_runs() -> None:
    assert list(judged_files(["memory", "file"])) == [
        "engine",
        "core (rules)",
        "backends/memory",
        "backends/file",
    ]
    assert list(judged_files(["amqp"])) == ["backends/amqp"]
    assert "src/windlass/engine/flows.py" in judged_files(["memory"])["engine"]


def test_a_store_runs_its_own_part_of_the_suite() -> None:
    assert suite_of("file")[-1] == "[file"
    assert suite_of("file", "retry or delay")[-1] == "[file and (retry or delay)"
    assert suite_of("amqp", "retry")[-2:] == ["-k", "retry"]
    for place in (*suite_of("memory")[:3], *suite_of("valkey"), *suite_of("amqp")):
        assert (Path(__file__).resolve().parents[2] / place).is_file()


def test_the_modules_of_rules_that_are_judged_are_there() -> None:
    """A module that was renamed would pass as covered."""
    (rules,) = [files for package, files in judged_files(["memory"]).items() if package == "core (rules)"]
    assert [file for file in rules if not (ROOT / file).exists()] == []
    assert {f"src/windlass/core/{name}.py" for name in ("transitions", "flow_rules", "limit_rules")} <= {
        *rules
    }


def test_a_process_saves_its_coverage_before_it_may_be_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[str] = []

    class Measuring:
        def save(self) -> None:
            saved.append("saved")

    monkeypatch.setattr(coverage.Coverage, "current", Measuring)
    save_coverage.pytest_sessionfinish()
    monkeypatch.setattr(coverage.Coverage, "current", lambda: None)
    save_coverage.pytest_sessionfinish()
    assert saved == ["saved"]
