"""Settings of a worker by environment and ``pyproject.toml``, and ``windlass config``, which shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Cli
from windlass import Windlass
from windlass.cli import worker as worker_module
from windlass.cli.worker import WorkerCommandOptions, make_worker
from windlass.cli.worker_settings import settings_of, variable_of
from windlass.worker import WorkerOptions


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[WorkerCommandOptions]:
    """What workers would have been started with."""
    monkeypatch.chdir(tmp_path)
    found: list[WorkerCommandOptions] = []

    def launch(options: WorkerCommandOptions, out: Any) -> int:
        found.append(options)
        return 0

    monkeypatch.setattr(worker_module, "launch", launch)
    return found


def _project(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(f"[tool.windlass]\n{text}\n")


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(
    cli: Cli, launched: list[WorkerCommandOptions], tmp_path: Path
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


#: Every setting: as a variable says it, as a file says it, and what the worker is then started with.
EVERY: dict[str, tuple[str, str, Any]] = {
    "app": ("shop:app", '"shop:app"', "shop:app"),
    "queues": ("mail:3,images", "{ mail = 3, images = 1 }", {"mail": 3.0, "images": 1.0}),
    "concurrency": ("50", "50", 50),
    "processes": ("3", "3", 3),
    "order": ("strict", '"strict"', "strict"),
    "cap": ("mail=5 images=2", "{ mail = 5, images = 2 }", {"mail": 5, "images": 2}),
    "reserve": ("mail=1", "{ mail = 1 }", {"mail": 1}),
    "burst": ("1", "true", True),
    "reload": ("yes", "true", True),
    "grace": ("1m", '"1m"', 60.0),
    "cancel_wait": ("250ms", "0.25", 0.25),
    "lease": ("2m", "120", 120.0),
    "tag": ("blue", '"blue"', "blue"),
    "health_port": ("8081", "8081", 8081),
    "health_host": ("0.0.0.0", '"0.0.0.0"', "0.0.0.0"),
    "log_level": ("warning,windlass.attempt=info", '"warning,windlass.attempt=info"', None),
    "log_format": ("json", '"json"', "json"),
    "limiter": ("100/60s", "{ max = 100, duration = 60 }", None),
    "global_concurrency": ("7", "7", 7),
    "process_slots": ("1000", "1000", 1000),
    "max_jobs_per_child": ("100", "100", 100),
    "poll": ("5s", "5", 5.0),
    "heartbeat": ("20s", "20", 20.0),
    "recover_every": ("4s", "4", 4.0),
    "prune_every": ("1h", '"1h"', 3_600.0),
    "duties": ("false", "false", False),
    "debug": ("1", "true", True),
    "url": ("valkey://store", '"valkey://store"', "valkey://store"),
}
#: What a setting is called among the options of a command that was read.
_ATTRIBUTE = {"queues": "weights", "cap": "caps", "reserve": "reserves"}


@pytest.mark.parametrize("source", ["environment", "file"])
@pytest.mark.parametrize("name", EVERY)
def test_every_setting_can_be_set_by_the_environment_and_by_the_file(
    cli: Cli, launched: list[WorkerCommandOptions], tmp_path: Path, name: str, source: str
) -> None:
    as_variable, as_toml, expected = EVERY[name]
    env: dict[str, Any] = {"WINDLASS_URL": None}
    if source == "environment":
        env[variable_of(name)] = as_variable
    else:
        _project(tmp_path, f"{name.replace('_', '-')} = {as_toml}")
    cli("worker", *([] if name == "app" else ["shop:app"]), env=env)
    (options,) = launched
    if expected is not None:
        assert getattr(options, _ATTRIBUTE.get(name, name)) == expected
    elif name == "limiter":
        assert options.settings()["limiter"] == (100, 60.0)
    else:
        assert getattr(options, name) == as_variable
    shown = {one["setting"]: one for one in cli.json("config", env=env)["settings"]}
    assert shown[name]["source"] == ("environment" if source == "environment" else "pyproject.toml")


def test_every_option_of_a_worker_is_a_setting_and_reaches_it_and_its_children(
    cli: Cli, launched: list[WorkerCommandOptions]
) -> None:
    settings = settings_of(worker_module.command)
    assert settings.keys() == EVERY.keys()
    assert set(WorkerOptions.__struct_fields__) - {"id"} <= settings.keys()
    env = {variable_of(name): EVERY[name][0] for name in settings if name not in ("reload", "processes")}
    cli("worker", env=env)
    options = launched.pop()
    made = make_worker(Windlass("memory://"), options).options
    cli(*options.child_command(0, 3)[3:])
    child = launched.pop()
    cli("worker", "shop:app", "--duties", env={"WINDLASS_WORKER_DUTIES": "false"})
    cli(*launched.pop().child_command(0, 3)[3:], env={"WINDLASS_WORKER_DUTIES": "false"})
    assert launched.pop().duties
    assert (child.lifeline, child.settings()) == (3, options.settings())
    for name in set(WorkerOptions.__struct_fields__) - {"id", "limiter"}:
        assert getattr(made, name) == getattr(options, name), name
        assert getattr(made, name) != getattr(WorkerOptions(), name), name


def test_a_variable_that_is_nearly_a_setting_is_warned_about(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"WINDLASS_WORKER_CONCURENCY": "5", "WINDLASS_WORKER_PORT_8081_TCP_ADDR": "10.0.0.1"}
    said = cli("config", env=env).stderr
    assert "WINDLASS_WORKER_CONCURENCY is not a setting" in said
    assert "did you mean WINDLASS_WORKER_CONCURRENCY?" in said
    assert "TCP_ADDR" not in said  # of a service of Kubernetes


@pytest.mark.parametrize("text", ["fast", "100", "0/1s", "5/soon"])
def test_a_rate_that_is_none_is_refused(cli: Cli, launched: list[WorkerCommandOptions], text: str) -> None:
    assert "'--limiter'" in cli("worker", "shop:app", "--limiter", text, code=2).output
    assert launched == []


def test_the_store_of_the_file_is_that_of_every_command(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _project(tmp_path, f'url = "sqlite:///{tmp_path}/named.db"')
    env: dict[str, Any] = {"WINDLASS_URL": None}
    cli("enqueue", "mail", "send", env=env)
    assert (tmp_path / "named.db").exists()
    assert [queue["name"] for queue in cli.json("queues", env=env)] == ["mail"]
    for text in ("= broken", "tool = 3", '[tool]\nwindlass = "1.0"'):
        (tmp_path / "pyproject.toml").write_text(text)
        assert "there is no database at windlass.db" in cli("queues", env=env, code=1).output


def test_queues_may_be_a_table_a_list_or_a_text(
    cli: Cli, launched: list[WorkerCommandOptions], tmp_path: Path
) -> None:
    for text in ("{ mail = 3, images = 1 }", '["mail:3", "images"]', '"mail:3,images"'):
        _project(tmp_path, f"queues = {text}")
        cli("worker", "shop:app")
        assert launched.pop().weights == {"mail": 3.0, "images": 1.0}


def test_a_child_does_not_start_children_of_its_own(
    cli: Cli, launched: list[WorkerCommandOptions], tmp_path: Path
) -> None:
    _project(tmp_path, "processes = 4\nreload = true")
    cli("worker", "shop:app", "--lifeline", "3")
    assert (launched[0].processes, launched[0].reload) == (1, False)


def test_a_misspelt_setting_is_refused_with_the_near_one(
    cli: Cli, launched: list[WorkerCommandOptions], tmp_path: Path
) -> None:
    _project(tmp_path, "concurency = 5")
    said = " ".join(cli("worker", "shop:app", code=2).output.split())
    assert "did you mean 'concurrency'?" in said
    (tmp_path / "pyproject.toml").write_text("= broken")
    said = " ".join(cli("worker", "shop:app", code=2).output.split())
    assert "cannot read" in said and "pyproject.toml" in said
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
    assert (shown["log_format"]["value"], shown["log_format"]["source"]) == ("text", "default")
    assert shown["url"]["value"] == "valkey://***@store"
    assert "WINDLASS_WORKER_CONCURRENCY" in cli("config", env={**env, "COLUMNS": "200"}).output
