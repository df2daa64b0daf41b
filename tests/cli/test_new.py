"""``windlass new``: the project that it writes passes its own tests, and its worker runs its jobs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.support import Cli
from tests.integrations.support import passed, run_pytest

pytestmark = pytest.mark.feature("X3")


def test_the_project_passes_its_own_tests(cli: Cli, tmp_path: Path) -> None:
    text = cli("new", "mail-service").output
    assert "windlass worker mail_service.jobs:app" in text
    folder = tmp_path / "mail-service"
    assert passed(run_pytest(folder)) == 4
    assert not list(folder.glob("*.db"))


def test_its_worker_runs_what_its_demo_adds(cli: Cli, tmp_path: Path) -> None:
    made = cli.json("new", "shop", "--into", str(tmp_path / "projects"))
    folder = Path(made["folder"])
    assert {Path(path).relative_to(folder).as_posix() for path in made["files"]} == {
        *(".gitignore", "Containerfile", "README.md", "pyproject.toml", "deploy/shop-worker.service"),
        *("shop/__init__.py", "shop/demo.py", "shop/jobs.py", "tests/test_jobs.py"),
    }
    env = {key: value for key, value in os.environ.items() if key != "WINDLASS_URL"}
    for words in (["-m", "shop.demo"], ["-m", "windlass", "worker", "shop.jobs:app", "--burst"]):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
        )
        assert done.returncode == 0, done.stderr
    counts = cli.json("queues", "--url", f"sqlite:///{folder / 'windlass.db'}")
    mail = next(queue for queue in counts if queue["name"] == "mail")["counts"]
    assert (mail["completed"], mail["scheduled"]) == (2, 1)


def test_nothing_of_the_templates_is_left_open(cli: Cli, tmp_path: Path) -> None:
    cli("new", "shop")
    for path in (tmp_path / "shop").rglob("*"):
        if path.is_file():
            assert not re.search(r"\$(?:name|module|version|\{)", path.read_text()), path
    assert tomllib.loads((tmp_path / "shop" / "pyproject.toml").read_text())["project"]["name"] == "shop"
    unit = (tmp_path / "shop" / "deploy" / "shop-worker.service").read_text()
    assert "windlass worker shop.jobs:app" in unit
    assert "TimeoutStopSec=30" in unit


def test_what_is_there_is_left_alone_and_bad_names_are_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine.txt").write_text("mine")
    assert "is there already and not empty" in cli("new", "shop", code=2).stderr
    assert [path.name for path in (tmp_path / "shop").iterdir()] == ["mine.txt"]
    for name in ("1st", "class", "a/b", "tests", "windlass", "email"):
        assert "Choose" in (text := cli("new", name, code=2).stderr) or "cannot name a Python package" in text
