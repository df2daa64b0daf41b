"""Runs small Node programs that use the packages of ``package.json``.

They are installed once into ``.reports/node``, which is not part of the repository.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / ".reports" / "node"


@cache
def install() -> Path:
    """The folder with ``node_modules``; made when it is not there or other packages are wanted."""
    wanted = (HERE / "package.json").read_bytes()
    stamp = HOME / "installed.json"
    if stamp.exists() and stamp.read_bytes() == wanted:
        return HOME
    npm = shutil.which("npm")
    if npm is None:
        raise RuntimeError("npm is missing (Debian: apt-get install nodejs npm)")
    HOME.mkdir(parents=True, exist_ok=True)
    (HOME / "package.json").write_bytes(wanted)
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    subprocess.run(command, cwd=HOME, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    stamp.write_bytes(wanted)
    return HOME


def run(program: Path, *arguments: str, timeout: float = 50) -> str:
    """Run a program; returns what it printed."""
    copy = install() / program.name
    if not copy.exists() or copy.read_bytes() != program.read_bytes():
        copy.write_bytes(program.read_bytes())
    done = subprocess.run(
        ["node", str(copy), *arguments], capture_output=True, text=True, check=False, timeout=timeout
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program.name} ended with {done.returncode}: {done.stderr}")
    return done.stdout
