"""Types from end to end: mypy accepts the samples, and refuses what they say must be refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).with_name("samples.py")


pytestmark = pytest.mark.timeout(240)  # the first run, without a cache


def _mypy(target: Path) -> subprocess.CompletedProcess[str]:
    """Check ``target`` with the cache of the repository, which ``scripts/check`` fills."""
    return subprocess.run(
        [sys.executable, "-m", "mypy", str(target)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.feature("Y1", "Y3")
def test_a_strict_type_checker_sees_arguments_and_results_of_tasks() -> None:
    done = _mypy(SAMPLES)
    assert done.returncode == 0, done.stdout


@pytest.mark.feature("Y1")
def test_wrong_calls_are_refused_by_the_type_checker(tmp_path: Path) -> None:
    bare = tmp_path / "bare.py"
    lines = SAMPLES.read_text().splitlines()
    bare.write_text("\n".join(line.split("  # type: ignore")[0] for line in lines) + "\n")
    expected = [number for number, line in enumerate(lines, 1) if "# type: ignore" in line]
    done = _mypy(bare)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert sorted({int(line.split(":")[1]) for line in errors}) == expected, done.stdout
