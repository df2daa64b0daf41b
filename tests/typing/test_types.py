"""Types from end to end: mypy accepts the samples, and refuses what they say must be refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).with_name("samples.py")


def _mypy(target: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(cache), str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.feature("Y1", "Y3")
def test_a_strict_type_checker_sees_arguments_and_results_of_tasks(tmp_path: Path) -> None:
    done = _mypy(SAMPLES, tmp_path / "cache")
    assert done.returncode == 0, done.stdout


@pytest.mark.feature("Y1")
def test_wrong_calls_are_refused_by_the_type_checker(tmp_path: Path) -> None:
    bare = tmp_path / "bare.py"
    lines = SAMPLES.read_text().splitlines()
    bare.write_text("\n".join(line.split("  # type: ignore")[0] for line in lines) + "\n")
    expected = [number for number, line in enumerate(lines, 1) if "# type: ignore" in line]
    done = _mypy(bare, tmp_path / "cache")
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert sorted({int(line.split(":")[1]) for line in errors}) == expected, done.stdout
