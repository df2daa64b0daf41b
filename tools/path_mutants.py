"""``python -m tools.path_mutants [PATH ...]``: does the conformance suite notice defects on special paths?

For each path of ``windlass.core.paths`` a few tests run twice: as the code is (they must pass, and take the
path), and with the defect of ``tests/backends/path_mutants.py`` (one must fail). Prints a table; fails when
a defect was not noticed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.backends.path_mutants import MUTANTS, Mutant, missing, path_of
from tools.paths import load_report

ROOT = Path(__file__).resolve().parents[1]
_NOTICED, _PASSED = 1, 0


def run(mutant: Mutant, name: str, report: Path) -> int:
    """The exit code of pytest over the tests of a mutant; ``name`` is empty for a run without the defect."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.backends.path_mutants"]
    command += [mutant.file, "-k", mutant.select, f"--path-report={report}"]
    if name:
        command.append("-x")
    environment = os.environ | {"WINDLASS_PATH_MUTANT": name}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode


def verdict(name: str, mutant: Mutant) -> str:
    """Whether the suite catches one mutant, or why that is unknown."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "paths.json"
        if run(mutant, "", report) != _PASSED:
            return "the tests fail without the defect"
        if not any(taken[path_of(name)] for taken in load_report(report).values()):
            return "the tests do not take the path"
        code = run(mutant, name, Path(folder) / "broken.json")
    return {_NOTICED: "caught", _PASSED: "NOT CAUGHT"}.get(code, f"pytest ended with {code}")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1)
def main(paths: tuple[str, ...]) -> None:
    """Insert a defect into each special path (or the named ones), and check that tests fail."""
    if missing():
        raise click.ClickException(f"no mutant, or no path, for {', '.join(missing())}")
    chosen = [name for name in MUTANTS if not paths or any(name.startswith(path) for path in paths)]
    found: dict[str, str] = {}
    for name in chosen:
        began = time.monotonic()
        found[name] = verdict(name, MUTANTS[name])
        seconds = time.monotonic() - began
        click.echo(f"{name:<22} {MUTANTS[name].what:<42} {found[name]}  ({seconds:.0f} s)")
    if any(answer != "caught" for answer in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
