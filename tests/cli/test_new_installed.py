"""The project of ``windlass new`` as its README and its Containerfile have it: installed, from our own wheel.

The environments are empty but for what the project asks for. Its distributions are copied from the one that
runs this test, so that nothing is fetched; pip resolves and builds as it always does.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.browser.test_wheel import sources

pytestmark = [pytest.mark.feature("X3"), pytest.mark.slow, pytest.mark.timeout(600)]


class Environment:
    """A new virtual environment with copies of some distributions, and of all that they require."""

    def __init__(self, folder: Path, *distributions: str) -> None:
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        self._bin = folder / "bin"
        (self._packages,) = folder.glob("lib/python*/site-packages")
        for name in _with_requirements(distributions):
            self._copy(name)

    def _copy(self, name: str) -> None:
        for file in importlib.metadata.files(name) or ():
            target = self._packages / file
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), target)

    def run(self, *words: str, cwd: Path, **more: str) -> str:
        """Run a command of the environment; its output, once it succeeded."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("PYTHON", "WINDLASS", "PIP"))
        }
        env = {**kept, "PATH": f"{self._bin}{os.pathsep}{kept['PATH']}", **more}
        done = subprocess.run(
            [str(self._bin / words[0]), *words[1:]],
            cwd=cwd,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def install(self, *what: str, cwd: Path) -> None:
        """``pip install`` that fetches nothing: what is required must be there."""
        offline = ("--no-index", "--no-build-isolation", "--disable-pip-version-check")
        self.run("python", "-m", "pip", "install", "--quiet", *offline, *what, cwd=cwd)


def _with_requirements(names: tuple[str, ...]) -> list[str]:
    found: dict[str, None] = {}
    ahead = list(names)
    while ahead:
        name = ahead.pop()
        if name not in found:
            found[name] = None
            required = map(Requirement, importlib.metadata.requires(name) or ())
            ahead += [
                one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})
            ]
    return list(found)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, with an empty page for the dashboard: its pages have a test of their own."""
    tree = sources(tmp_path_factory.mktemp("tree"))
    spec = importlib.util.spec_from_file_location("pages_of_the_copy", tree / "ui" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    pages.STATIC.mkdir(parents=True)
    (pages.STATIC / "index.html").write_text("<title>Windlass</title>")
    (pages.STATIC / pages._STAMP).write_text(pages.sources_stamp())
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel"], cwd=tree, check=True, capture_output=True
    )
    (built,) = (tree / "dist").glob("windlass-*.whl")
    return built


NEEDED = ("msgspec", "cronsim", "click", "rich", "hatchling")


def test_the_steps_of_its_readme_from_the_install_to_its_tests(wheel: Path, tmp_path: Path) -> None:
    env = Environment(tmp_path / "venv", *NEEDED, "pytest", "anyio")
    env.install(str(wheel), cwd=tmp_path)
    assert "pip install -e '.[dev]'" in env.run("windlass", "new", "mail-service", cwd=tmp_path)
    project = tmp_path / "mail-service"
    env.install("-e", ".[dev]", cwd=project)
    assert "4 passed" in env.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project)
    env.run("python", "-m", "mail_service.demo", cwd=project)
    log = env.run("windlass", "worker", "mail_service.jobs:app", "--burst", cwd=project)
    assert "(mail_service.jobs.send_mail) completed" in log
    counts = json.loads(env.run("windlass", "queues", "--json", cwd=project))
    assert {queue["name"] for queue in counts} >= {"mail"}


def test_the_steps_of_its_container_file(wheel: Path, tmp_path: Path) -> None:
    env = Environment(tmp_path / "venv", *NEEDED, "redis", "hiredis", "uvloop")
    env.install(str(wheel), cwd=tmp_path)
    env.run("windlass", "new", "shop", cwd=tmp_path)
    lines = (tmp_path / "shop" / "Containerfile").read_text().splitlines()
    (install,) = [line for line in lines if "pip install" in line]
    env.install(*re.findall(r"'([^']+)'", install), cwd=tmp_path / "shop")
    (start,) = [json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD ")]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    words = ["0" if word == "8081" else word for word in start]
    log = env.run(*words, "--burst", cwd=elsewhere)
    assert {json.loads(line)["message"] for line in log.splitlines()} >= {"stopped"}
