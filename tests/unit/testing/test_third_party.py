"""A backend of somebody else runs the conformance suite as its documentation says."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import windlass_conformance as conformance
from tests.nested import LEAN

if TYPE_CHECKING:
    from pathlib import Path

_BACKEND = '''
"""A store of one's own: here simply the memory store under another name."""
from windlass.backends.memory import MemoryBackend

class MyBackend(MemoryBackend):
    name = "mystore"
    def clone(self):
        return MyBackend(self._shared)

_stores = {}

def from_url(url):
    backend = _stores.setdefault(url.namespace, MyBackend())
    return backend.clone()
'''


def recipe() -> tuple[str, str]:
    """The two files that the module's documentation shows."""
    text = conformance.__doc__ or ""
    found = re.search(r"# conftest.py\n(.*?)# test_conformance.py\n(.*?)\n\nEach test gets", text, re.DOTALL)
    assert found is not None
    first, second = (re.sub(r"(?m)^    ", "", part) for part in found.groups())
    return first, second


def run_recipe(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    conftest, tests = recipe()
    (directory / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\naddopts = --strict-markers\n")
    (directory / "conftest.py").write_text(conftest)
    (directory / "test_conformance.py").write_text(tests)
    (directory / "mypackage").mkdir()
    (directory / "mypackage" / "__init__.py").touch()
    (directory / "mypackage" / "backend.py").write_text(_BACKEND)
    environment = {"PYTHONPATH": ":".join([str(directory), *sys.path]), "PATH": ""}
    command = [sys.executable, "-m", "pytest", "-q", *LEAN, "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.feature("L13", "L16")
def test_the_documented_recipe_runs_the_suite_on_ones_own_backend(tmp_path: Path) -> None:
    done = run_recipe(
        tmp_path, "-k", "test_an_added_job or test_a_task_is_enqueued or test_a_backend_has_the_name"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b[3-9] passed", done.stdout), done.stdout


@pytest.mark.feature("L16")
def test_a_backend_that_breaks_the_contract_is_told_so(tmp_path: Path) -> None:
    broken = _BACKEND + (
        "\nfrom itertools import count\nfrom windlass.backends.memory.store import MemoryStore\n"
        "places = count(1_000_000, -1)\nMemoryStore.fresh_place = lambda self: next(places)\n"
    )
    run_recipe(tmp_path, "--collect-only")
    (tmp_path / "mypackage" / "backend.py").write_text(broken)
    command = [sys.executable, "-m", "pytest", "-q", *LEAN, "-k", "test_equal_priorities_run_in_order"]
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path]), "PATH": ""}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 1, done.stdout
    assert "assert [" in done.stdout, (
        "asserts of the suite must be rewritten, so that failures explain themselves"
    )


@pytest.mark.feature("L16")
def test_the_suite_is_large_and_every_test_has_a_name_of_its_own() -> None:
    contract, behaviour = conformance.contract_tests(), conformance.behaviour_tests()
    assert len(contract) >= 250 and len(behaviour) >= 100
    assert not set(contract) & set(behaviour)
    assert conformance.all_tests().keys() == contract.keys() | behaviour.keys()
