"""The list of code that stands twice, on a small tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.house import read_modules
from tools.pairs import Listed, Pair, compare, find, load

_CODE = """
class {kind}:
    def evens(self, most: int) -> list[int]:
        found = []
        for number in range(most):
            if number % 2 == 0:
                found.append(number)
                continue
            found.append(-number)
        return found
"""
ONE, TWO = "src/windlass/one.py One", "src/windlass/two.py Two"


@pytest.fixture
def found(tmp_path: Path) -> list[Pair]:
    package = tmp_path / "src" / "windlass"
    package.mkdir(parents=True)
    for name in ("one", "two"):
        (package / f"{name}.py").write_text(_CODE.format(kind=name.title()), encoding="utf-8")
    return find(read_modules(tmp_path))


def test_a_pair_is_two_files_with_their_functions(found: list[Pair]) -> None:
    assert found
    assert all(pair.one.startswith(ONE) and pair.other.startswith(TWO) for pair in found)


def test_a_new_pair_and_one_that_is_gone_are_named(found: list[Pair]) -> None:
    gone = Listed(Pair("src/windlass/three.py -", ONE), "it was there before")
    assert compare(found, [gone]) == (found, [gone])


@pytest.mark.parametrize("both", [(f"{ONE}*", f"{TWO}*"), (f"{TWO}*", f"{ONE}*"), ("src/*", "src/*")])
def test_a_listed_pair_is_known_in_either_order(found: list[Pair], both: tuple[str, str]) -> None:
    assert compare(found, [Listed(Pair(*both), "a reason of some words")]) == ([], [])


def test_a_pair_needs_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "pairs.toml"
    path.write_text('[[group]]\nwhy = "so"\npairs = [["a", "b"]]\n', encoding="utf-8")
    with pytest.raises(ValueError, match="say why these pairs stay"):
        load(path)
