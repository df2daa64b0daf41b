"""Runs the example projects as their users would: in their own folder, by their own pytest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.nested import LEAN

ROOT = Path(__file__).resolve().parents[2]


def run_pytest(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``pytest`` in ``folder``, with the plugin of Windlass."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(("WINDLASS_", "PYTEST_"))}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *LEAN, "-p", "pytest_windlass", *arguments],
        cwd=folder,
        env={**env, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )


def passed(done: subprocess.CompletedProcess[str]) -> int:
    """How many tests passed; nothing else may have happened to any."""
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = re.search(r"^(\d+) passed", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert not re.search(r"\d+ (?:failed|error|skipped|xfailed)", done.stdout), done.stdout
    return int(found[1])


def run_example(name: str, folder: Path) -> int:
    """Run the tests of ``examples/NAME`` in a copy; returns how many passed."""
    copy = folder / name
    shutil.copytree(ROOT / "examples" / name, copy, ignore=shutil.ignore_patterns("__pycache__", "*.db*"))
    return passed(run_pytest(copy))
