"""What a whole run measures of the library: 90 percent is the least, and what is left out is named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = ROOT / "tools" / "coverage.toml"
LEAST = 90


def coverage(*arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    """One command of coverage, by the settings of a whole run; the run around this test does not count it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    command = [sys.executable, "-m", "coverage", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"COVERAGE_FILE": str(data)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.feature("U4")
def test_a_whole_run_that_covers_less_of_the_library_fails(tmp_path: Path) -> None:
    script, data = tmp_path / "little.py", tmp_path / "data"
    script.write_text("import windlass\n")
    settings = f"--rcfile={SETTINGS}"
    assert coverage("run", settings, str(script), data=data).returncode == 0
    assert coverage("combine", settings, "--quiet", data=data).returncode == 0
    report = coverage("report", settings, data=data)
    assert report.returncode == 2
    assert re.search(rf"total of [\d.]+ is less than fail-under={LEAST}", report.stdout), report.stdout


@pytest.mark.feature("U4")
def test_a_whole_run_measures_the_parts_that_its_settings_name() -> None:
    script = (ROOT / "scripts" / "test").read_text()
    (parts,) = re.findall(r"apart=\((tests/.*)\)", script)
    assert [part for part in parts.split() if part not in SETTINGS.read_text()] == []
    assert 'python -m coverage report --rcfile="$gate" || {' in script
    assert "scripts/test\n" in (ROOT / ".ci" / "run").read_text()


@pytest.mark.feature("U4")
def test_what_is_left_out_of_the_measurement_is_there_and_tested_elsewhere() -> None:
    named = re.findall(r'"\*/(windlass/[\w/]+?)(?:/\*|\.py)"', SETTINGS.read_text())
    omitted = tomllib.loads(SETTINGS.read_text())["tool"]["coverage"]["report"]["omit"]
    assert len(named) == len(omitted)
    assert [name for name in named if not list((ROOT / "src").glob(f"{name}*"))] == []
    tests = re.findall(r"tests/\w+(?:/\w+)?", SETTINGS.read_text().partition("omit = [")[2])
    assert [path for path in tests if not (ROOT / path).is_dir()] == []
