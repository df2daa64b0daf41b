"""mypy and pyright report every wrong use of options, ``map``, ``Depends`` and results, and no right one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.typing.test_verifytypes import readable_msgspec
from windlass.core.options import (
    OPTION_NAMES,
    AddOptionsDict,
    CallOptionsDict,
    ChildOptionsDict,
    JobOptionsDict,
)
from windlass.worker.options import WorkerOptions, WorkerOptionsDict

ROOT = Path(__file__).resolve().parents[2]
USES = Path(__file__).with_name("uses.py")
_LINES = USES.read_text().splitlines()
WRONG = [number for number, line in enumerate(_LINES, 1) if "  # wrong" in line]


def _run(*words: str, python_path: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": python_path, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout


def test_there_are_thirty_of_each() -> None:
    right = [line for line in _LINES if line.rpartition("  # ")[2].isdecimal()]
    assert (len(right), len(WRONG)) == (30, 30)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_mypy_refuses_the_wrong_uses_and_no_right_one() -> None:
    said = _run("mypy", "--strict", str(USES))
    errors = [line for line in said.splitlines() if ": error: " in line]
    assert sorted({int(line.split(":")[1]) for line in errors}) == WRONG, said


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_pyright_refuses_the_wrong_uses_and_no_right_one(tmp_path: Path) -> None:
    path = os.pathsep.join([str(readable_msgspec(tmp_path)), str(ROOT / "src")])
    said = _run("pyright", "--pythonpath", sys.executable, "--outputjson", str(USES), python_path=path)
    found = json.loads(said)["generalDiagnostics"]
    lines = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    assert sorted(lines) == WRONG, said


def test_the_names_that_type_checkers_know_are_those_of_the_options() -> None:
    assert JobOptionsDict.__annotations__.keys() == OPTION_NAMES
    assert AddOptionsDict.__annotations__.keys() == OPTION_NAMES | {"children", "then"}
    assert CallOptionsDict.__annotations__.keys() == OPTION_NAMES - {"timeout"}
    assert ChildOptionsDict.__annotations__.keys() == OPTION_NAMES - {"parent", "on_failure"}
    assert WorkerOptionsDict.__annotations__.keys() == set(WorkerOptions.__struct_fields__)
