"""Counting lines of rules, and the page that shows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.rules import (
    BEGIN,
    END,
    PACKAGES,
    WRITERS,
    RulesError,
    Table,
    Tree,
    code_lines,
    drifted,
    functions,
    load,
    measure,
    render,
    replaced,
    working_tree,
)

PYTHON = '''"""A module."""

LIMIT = 3


def add(job):
    """What it does,
    in two lines.
    """
    # why
    if job:

        return 1
    return 2


class Store:
    """A class."""

    async def add(self):
        return 1

    def lease(self): return 2
'''
LUA = """-- a comment
local limit = 3
local function add(q)
  -- why
  for _, id in ipairs(q) do
    put(id)
  end
end

function adds.create(q)
  return q
end
"""
FILES = {"core/a.py": PYTHON, "core/a.sql": "SELECT 1;\n", "backends/valkey/a.lua": LUA}
TREE = Tree("now", FILES.__getitem__, tuple(FILES))


def verbs(*entries: str, name: str = "create") -> list[dict[str, object]]:
    return [{"name": name, "now": {"core": list(entries)}}]


def test_a_functions_lines_are_its_code_without_blanks_comments_and_docstrings() -> None:
    assert dict(functions("a.py", PYTHON)) == {"add": 4, "Store.add": 2, "Store.lease": 1}
    assert dict(functions("a.lua", LUA)) == {"add": 5, "adds.create": 3}
    assert code_lines("a.py", PYTHON) == 9
    assert code_lines("a.lua", LUA) == 9


@pytest.mark.parametrize(
    ("entry", "lines"),
    [
        ("core/a.py: add", 4),
        ("core/a.py: Store.*", 3),
        ("core/a.py: lease", 1),
        ("core/a.py: *", 7),
        ("backends/valkey/a.lua: create add", 8),
        ("backends/valkey/a.lua", 9),
    ],
)
def test_functions_are_named_with_or_without_their_class_or_by_patterns(entry: str, lines: int) -> None:
    assert measure(verbs(entry), "now", TREE).lines == {"create": {"core": lines}}


@pytest.mark.parametrize(
    ("entries", "complaint"),
    [
        (["core/gone.py: add"], "there is no core/gone.py any more"),
        (["core/a.py: gone"], "core/a.py has no function gone"),
        (["core/a.py: add", "core/a.py: a*"], "add counts for create, now already"),
        (["core/a.py: *", "core/a.py: *"], "has no function"),
    ],
)
def test_a_list_that_does_not_fit_the_sources_is_refused(entries: list[str], complaint: str) -> None:
    with pytest.raises(RulesError, match=complaint):
        measure(verbs(*entries), "now", TREE)


def test_a_star_takes_what_no_other_entry_names() -> None:
    rest, named = verbs("core/a.py: *"), verbs("core/a.py: add", name="lease")
    assert measure(rest + named, "now", TREE).lines == {"create": {"core": 3}, "lease": {"core": 4}}


def test_the_size_of_a_package_is_all_lines_of_its_python_and_sql() -> None:
    assert measure([], "now", TREE).sizes["core"] == PYTHON.count("\n") + 1


def _page(create: int, core: int) -> tuple[str, Table]:
    table = Table({"create": {"core": create}}, dict.fromkeys(PACKAGES, 0) | {"core": core})
    return replaced(f"# A page\n\n{BEGIN}old\n{END}the end\n", render(table, table, "abc")), table


def test_tables_replace_what_stood_between_the_marks() -> None:
    page, _ = _page(1_200, 30)
    assert page.startswith("# A page\n")
    assert page.endswith(f"{END}the end\n")
    assert "| create | 1,200 | 1,200 | 0 |" in page
    assert "old\n" not in page
    with pytest.raises(RulesError, match="marks"):
        replaced("# A page\n", "x")


@pytest.mark.parametrize(
    ("create", "core", "wrong"), [(1_300, 30, []), (1_400, 30, ["create"]), (1_200, 90, ["all"])]
)
def test_a_page_is_wrong_when_its_figures_are_far_from_the_truth(
    create: int, core: int, wrong: list[str]
) -> None:
    page, _ = _page(1_200, 30)
    _, now = _page(create, core)
    assert [line.partition(":")[0] for line in drifted(page, now)] == wrong


def test_the_list_has_every_verb_with_both_sides() -> None:
    _, found = load()
    names = [verb["name"] for verb in found]
    assert names[:5] == ["create", "lease", "settle", "recover", "promote"]
    assert {"flows", "groups and limits", "unique keys", "schedules"} <= set(names)
    for verb in found:
        assert {*verb["before"], *verb["now"]} <= set(WRITERS)


def test_the_working_tree_is_read_below_its_package(tmp_path: Path) -> None:
    file = tmp_path / "src" / "windlass" / "core" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text(PYTHON)
    tree = working_tree(tmp_path)
    assert tree.paths == ("core/a.py",)
    assert tree.read("core/a.py") == PYTHON
