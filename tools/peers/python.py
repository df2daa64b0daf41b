"""Runs small Python programs that use the packages of ``requirements.txt``.

They are installed once into ``.reports/python``, which is not part of the repository, and are seen by these
programs alone: they want other releases of packages that we use.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / ".reports" / "python"


@cache
def install() -> Path:
    """The folder with the packages; made when it is not there or other packages are wanted."""
    wanted = (HERE / "requirements.txt").read_bytes()
    stamp = HOME / "installed.txt"
    if stamp.exists() and stamp.read_bytes() == wanted:
        return HOME
    shutil.rmtree(HOME, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--target", str(HOME), "-r", str(HERE / "requirements.txt")]
    subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    stamp.write_bytes(wanted)
    return HOME


def run(program: str, *arguments: str, timeout: float = 50) -> str:
    """Run a program, given as its text; returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(install())},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    if done.returncode != 0:
        raise RuntimeError(f"it ended with {done.returncode}: {done.stderr}")
    return done.stdout
