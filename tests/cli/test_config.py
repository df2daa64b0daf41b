"""Settings of a worker by environment and ``pyproject.toml``, and ``windlass config``, which shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Cli
from windlass.cli import worker as worker_module
from windlass.cli.settings import settings_of
from windlass.cli.worker import Options


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Options]:
    """What workers would have been started with."""
    monkeypatch.chdir(tmp_path)
    found: list[Options] = []

    def launch(options: Options, out: Any) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr(worker_module, "launch", launch)
    return found


def _project(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.windlass]\n{text}\n")


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    cli: Cli, launched: list[Options], tmp_path: Path
) -> None:
    _project(
        tmp_path, 'app = "shop:app"\nconcurrency = 5\ngrace = "7s"\nlog-format = "json"\ncap = { mail = 3 }'
    )
    env = {
        "WINDLASS_WORKER_GRACE": "8s",
        "WINDLASS_WORKER_TAG": "blue",
        "WINDLASS_WORKER_RESERVES": "mail=1 a=2",
    }
    cli("worker", "--tag", "green", env=env)
    (options,) = launched
    assert (options.app, options.concurrency, options.grace, options.tag) == ("shop:app", 5, 8.0, "green")
    assert (options.log_format, options.caps, options.reserves) == ("json", {"mail": 3}, {"mail": 1, "a": 2})


def test_queues_may_be_a_table_a_list_or_a_text(cli: Cli, launched: list[Options], tmp_path: Path) -> None:
    for text in ("{ mail = 3, images = 1 }", '["mail:3", "images"]', '"mail:3,images"'):
        _project(tmp_path, f"queues = {text}")
        cli("worker", "shop:app")
        assert launched.pop().weights == {"mail": 3.0, "images": 1.0}


def test_a_child_does_not_start_children_of_its_own(
    cli: Cli, launched: list[Options], tmp_path: Path
) -> None:
    _project(tmp_path, "processes = 4\nreload = true")
    cli("worker", "shop:app", "--lifeline", "3")
    assert (launched[0].processes, launched[0].reload) == (1, False)


def test_a_misspelt_setting_is_refused_with_the_near_one(
    cli: Cli, launched: list[Options], tmp_path: Path
) -> None:
    _project(tmp_path, "concurency = 5")
    said = " ".join(cli("worker", "shop:app", code=2).output.split())
    assert "did you mean 'concurrency'?" in said
    (tmp_path / "pyproject.toml").write_text("= broken")
    assert "proper TOML" in " ".join(cli("worker", "shop:app", code=2).output.split())
    assert launched == []


def test_config_shows_every_setting_and_where_it_comes_from(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _project(tmp_path, "concurrency = 5")
    env = {"WINDLASS_URL": "valkey://ada:secret@store", "WINDLASS_WORKER_TAG": "blue"}
    shown = {one["setting"]: one for one in cli.json("config", env=env)["settings"]}
    assert shown.keys() == settings_of(worker_module.command).keys()
    assert (shown["concurrency"]["value"], shown["concurrency"]["source"]) == (5, "pyproject.toml")
    assert (shown["tag"]["value"], shown["tag"]["source"]) == ("blue", "environment")
    assert (shown["grace"]["value"], shown["grace"]["source"]) == ("20s", "default")
    assert shown["url"]["value"] == "valkey://***@store"
    assert "WINDLASS_WORKER_CONCURRENCY" in cli("config", env={**env, "COLUMNS": "200"}).output
