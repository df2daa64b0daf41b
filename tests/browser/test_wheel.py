"""A wheel carries the pages, and is built without any Node on the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.browser.site import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.service("packages"), pytest.mark.timeout(300)]


def sources(folder: Path) -> Path:
    """A copy of what the repository holds: no built pages, no installed packages of Node."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listing.split("\0")):
        if name.startswith(("src/", "ui/")) or name in (
            "pyproject.toml",
            "hatch_build.py",
            "README.md",
            "LICENSE",
        ):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def without_node() -> dict[str, str]:
    """The environment, with a PATH that leads to no Node."""
    folders = [
        folder
        for folder in os.environ["PATH"].split(os.pathsep)
        if not any(Path(folder, name).exists() for name in ("node", "npm"))
    ]
    return {**os.environ, "PATH": os.pathsep.join(folders)}


def test_a_wheel_built_without_node_shows_the_dashboard(tmp_path: Path) -> None:
    tree = sources(tmp_path / "tree")
    environment = without_node()
    assert shutil.which("node", path=environment["PATH"]) is None
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(tree),
    ]
    subprocess.run(build, env=environment, check=True)
    (wheel,) = tmp_path.glob("windlass-*.whl")
    home = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(home)
    static = [name for name in names if name.startswith("windlass/dashboard/static/")]
    assert any(name.endswith(".js") for name in static)
    assert any(name.endswith(".css") for name in static)
    assert not any("node_modules" in name for name in names)
    show = (
        "import asyncio, windlass, windlass.dashboard.static as static\n"
        "print(windlass.__file__)\n"
        "print(static.Static().page('/jobs').decode())"
    )
    done = subprocess.run(
        [sys.executable, "-c", show],
        env={**environment, "PYTHONPATH": str(home)},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(home))
    assert '<base href="/jobs/">' in done.stdout
