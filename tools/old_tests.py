"""Run the tests of an older revision against this tree, and compare what fails with ``tools/old_tests.toml``.

    python -m tools.old_tests                         run them; further arguments go to pytest
    python -m tools.old_tests --output pytest.log     compare the output of an earlier run instead

It answers one question: does a program that was written for that revision still work? Deprecated names count
as working. Each test that fails is listed with the change of behaviour that is the cause. The command fails
on a failing test that is not listed and, after a complete run, on a listed test that passes. It also fails if
pytest could not run the tests: wrong arguments, no tests, a crash.

Tests: ``tests/unit/test_old_tests.py``.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "old_tests.toml"
#: What pytest prints for a failed test: its file and name, here without parameters. For a file that cannot be
#: imported, it is only the file.
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?\.py(?:(?:::\w+)+|\b))", re.MULTILINE)
#: The exit codes of pytest if all tests passed, and if some failed.
_RAN = (0, 1)


def expected(listed: dict[str, object]) -> dict[str, str]:
    """The listed tests, with the reason why each fails."""
    causes: dict[str, str] = {}
    groups = listed.get("cause", [])
    assert isinstance(groups, list)
    for group in groups:
        causes.update(dict.fromkeys(group["tests"], group["why"]))
    return causes


def failed(output: str) -> set[str]:
    """The tests, and the files that could not be imported, that pytest's summary names."""
    return set(_FAILED.findall(output))


def complaints(found: set[str], causes: dict[str, str], *, whole: bool) -> list[str]:
    """The differences between the failed tests and the list."""
    lines = [f"fails, and no cause is listed: {test}" for test in sorted(found - causes.keys())]
    if whole:
        lines += [f"listed, but passes: {test}" for test in sorted(causes.keys() - found)]
    return lines


def unpack(revision: str, folders: Iterable[str], place: Path) -> None:
    """Copy this tree to ``place``, with the ``folders`` of ``revision``."""
    for name in ("src", "tests", "tools", "examples", "docs", "scripts", "pyproject.toml", "README.md"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place / name)
    packed = subprocess.run(
        ["git", "archive", revision, *folders], cwd=ROOT, check=True, capture_output=True
    ).stdout
    for folder in folders:
        shutil.rmtree(place / folder)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(place, filter="data")


def run(revision: str, folders: list[str], words: list[str]) -> tuple[str, int]:
    """Run pytest; returns its output and its exit code."""
    with tempfile.TemporaryDirectory(prefix="windlass-old-tests-") as name:
        place = Path(name)
        unpack(revision, folders, place)
        # A file that cannot be imported must not hide other failures.
        options = ["-q", "-W", "ignore::DeprecationWarning", "--continue-on-collection-errors"]
        command = [sys.executable, "-m", "pytest", *folders, *options, *words]
        environment = {**os.environ, "PYTHONPATH": str(place / "src")}
        done = subprocess.run(
            command, cwd=place, env=environment, text=True, stdout=subprocess.PIPE, check=False
        )
    print(done.stdout)
    return done.stdout, done.returncode


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.old_tests", description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="the output of an earlier run")
    asked, rest = parser.parse_known_args(words)
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))
    if asked.output is not None:
        output, code = asked.output.read_text(encoding="utf-8"), 0
    else:
        output, code = run(listed["revision"], listed["folders"], rest)
    found, causes = failed(output), expected(listed)
    for why in dict.fromkeys(causes[test] for test in sorted(found & causes.keys())):
        count = sum(causes.get(test) == why for test in found)
        print(f"{count} tests: {why}")
    wrong = complaints(found, causes, whole=not rest)
    if code not in _RAN:
        wrong.append(f"pytest could not run the tests: it ended with code {code}")
    elif code == 1 and not found:
        wrong.append("pytest says that tests failed, and names none")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
