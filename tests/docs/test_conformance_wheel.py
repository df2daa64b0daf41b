"""The conformance suite as people get it who write a store: two wheels in an empty environment."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from tests.docs.runner import blocks_of
from windlass import __version__

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own_backend.py"

pytestmark = [pytest.mark.slow, pytest.mark.service("packages"), pytest.mark.timeout(600)]


def wheel(source: Path, into: Path) -> Path:
    """A wheel of what the folder describes, built with what this environment has."""
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(into), str(source)]
    subprocess.run([sys.executable, *command], check=True)
    (found,) = into.glob("*.whl")
    return found


def recipe(folder: Path) -> None:
    """The files of a project that tests the example's store, as docs/own-backend.md shows them."""
    page = (ROOT / "docs" / "own-backend.md").read_text(encoding="utf-8").replace("<!-- not run -->", "")
    (code,) = [block.code for block in blocks_of(page) if block.code.startswith("# conftest.py")]
    conftest, tests = code.split("# test_conformance.py\n")
    (folder / "conftest.py").write_text(conftest, encoding="utf-8")
    (folder / "test_conformance.py").write_text(tests, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nanyio_mode = auto\naddopts = --strict-markers\n")
    shutil.copy(EXAMPLE, folder)


def test_a_store_of_ones_own_is_tested_with_the_two_wheels_alone(tmp_path: Path) -> None:
    library = wheel(ROOT, tmp_path / "library")
    suite = wheel(ROOT / "conformance", tmp_path / "suite")
    with zipfile.ZipFile(suite) as archive, zipfile.ZipFile(library) as shipped:
        assert not [name for name in shipped.namelist() if "conformance" in name]
        (notes,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        needs = message_from_bytes(archive.read(notes)).get_all("Requires-Dist") or []
    assert f"windlass[crypto,otel,prometheus]=={__version__}" in needs
    project = tmp_path / "project"
    project.mkdir()
    subprocess.run([sys.executable, "-m", "venv", ".venv"], cwd=project, check=True)
    python = project / ".venv" / "bin" / "python"
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYTEST", "WINDLASS", "COVERAGE"))
    }
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", library, suite], env=environment, cwd=project, check=True
    )
    recipe(project)
    promised = (ast.get_docstring(ast.parse(EXAMPLE.read_text(encoding="utf-8"))) or "").partition(
        "Prints::"
    )[2]
    printed = subprocess.run(
        [python, EXAMPLE.name], env=environment, cwd=project, check=True, capture_output=True, text=True
    ).stdout
    assert printed.split("\n") == [line.strip() for line in promised.strip().splitlines()] + [""]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-k", "test_a_settled or test_a_claim or codec"],
        env=environment,
        cwd=project,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 10, done.stdout
