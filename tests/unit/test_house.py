"""The measuring script, on a small tree of known figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.house import cycles, imports, measure, pairs, read_modules

_STRETCH = """
def {name}({value}: int) -> list[int]:
    found = []
    for number in range({value}):
        if number % {divisor} == 0:
            found.append(number)
            continue
        found.append(-number)
    return found
"""


def _tree(folder: Path, **files: str) -> Path:
    package = folder / "src" / "windlass"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[tool.hatch.build.targets.wheel]\npackages = ["src/windlass"]\n', encoding="utf-8"
    )
    for name, text in {"__init__": '__all__ = ["a", "b"]\n', **files}.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def test_imports_for_type_checkers_and_in_functions_make_cycles(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        one="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from windlass.two import Two\n",
        two="def late() -> None:\n    from windlass import three\nclass Two: ...\n",
        three="from windlass import one\n",
        four="from windlass import one\n",
    )
    found = cycles(imports(read_modules(root)))
    assert found == [["windlass.one", "windlass.three", "windlass.two"]]


@pytest.mark.parametrize(
    ("second", "by_text", "by_shape"),
    [
        (_STRETCH.format(name="evens", value="most", divisor=2), 1, 0),
        (_STRETCH.format(name="odds", value="limit", divisor=3), 0, 1),
        ("def other() -> None:\n    return None\n", 0, 0),
    ],
    ids=["the same text", "the same shape", "neither"],
)
def test_a_stretch_that_stands_twice_is_one_pair(
    tmp_path: Path, second: str, by_text: int, by_shape: int
) -> None:
    root = _tree(tmp_path, one=_STRETCH.format(name="evens", value="most", divisor=2), two=second)
    modules = read_modules(root)
    assert (len(pairs(modules, shape=False)), len(pairs(modules, shape=True))) == (by_text, by_shape)


def test_the_figures_of_a_small_tree(tmp_path: Path) -> None:
    figures = measure(
        _tree(tmp_path, one='"""Doc."""\n\nclass Same:\n    x = 1\n', two="class Same: ...\n"), run=False
    )
    assert figures["public_names"] == 2
    assert figures["class_names_used_twice"] == 1
    assert figures["classes_twice"] == ["Same: windlass.one, windlass.two"]
    assert figures["cycles"] == 0
    assert figures["prose_percent"] == 20.0
    assert figures["wheel_python_lines"] == 6
