"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.support import SHOP, Cli, WorkerProcess

WorkerStarter = Callable[..., WorkerProcess]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands against a database in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WINDLASS_URL", raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    return Cli(f"sqlite:///{tmp_path / 'jobs.db'}")


@pytest.fixture
def worker(tmp_path: Path, cli: Cli) -> Iterator[WorkerStarter]:
    """Starts workers of ``shop.py``; ends them when the test is over."""
    (tmp_path / "shop.py").write_text(SHOP)
    started: list[WorkerProcess] = []

    def start(*args: str, app: str = "shop:app") -> WorkerProcess:
        process = WorkerProcess(tmp_path, cli.url, app, *args)
        started.append(process)
        return process

    yield start
    for process in started:
        process.clean_up()
