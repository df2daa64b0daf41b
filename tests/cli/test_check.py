"""Commands that check: doctor, bench; and what all commands have in common."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.support import Cli
from windlass import Windlass
from windlass.backend import requests as rq
from windlass.cli import enqueue, queues
from windlass.cli.main import COMMANDS, tree
from windlass.cli.output import Out
from windlass.cli.store_commands import StoreOptions, shown_url
from windlass.core.job import WorkerInfo

pytestmark = pytest.mark.feature("X3")
backend_name = "sqlite"


def findings(cli: Cli, level: str, *args: str, code: int = 0) -> list[str]:
    report = cli.json("doctor", *args, code=code)
    assert report["healthy"] == (code == 0)
    return [found["text"] for found in report["findings"] if found["level"] == level]


def beat(cli: Cli, name: str, *queues: str, version: str = "0.1.0") -> None:
    """Let a worker seem alive."""
    info = WorkerInfo(id=name, queues=queues, concurrency=4, version=version, leader=True)
    cli.app(lambda app: app.store.execute(rq.Beat(worker=info)))


def test_doctor_finds_nothing_in_a_healthy_store(cli: Cli) -> None:
    cli.add("mail", "send", delay=60)
    text = cli("doctor", "--deep").output
    assert "All is well." in text
    assert "journal wal, synchronous full" in text
    assert "passed its integrity check" in text


def test_doctor_sees_jobs_without_a_worker(cli: Cli) -> None:
    cli.add("mail", "send")
    (problem,) = findings(cli, "problem", code=1)
    assert problem == "mail: 1 job to run and no worker serves the queue"
    assert "windlass worker MODULE:APP --queues mail" in cli("doctor", code=1).output
    beat(cli, "w", "mail")
    assert findings(cli, "problem") == []


def test_doctor_sees_leases_that_nobody_takes_back(cli: Cli) -> None:
    cli.add("mail", "send")

    async def claim_and_vanish(app: Windlass) -> None:
        queues = [rq.ClaimQueue("mail", 1, 1)]
        claim = rq.Claim(worker="gone", queues=queues, limit=1, claim_id="c1", lease_ms=1)
        assert (await app.store.execute(claim)).jobs

    cli.app(claim_and_vanish)
    (problem,) = findings(cli, "problem", code=1)
    assert "1 running job lost the worker" in problem
    assert "no worker is alive to take them back" in problem


def test_doctor_warns_without_failing_unless_strict(cli: Cli) -> None:
    async def arrange(app: Windlass) -> None:
        queue = app.queue("mail")
        await queue.add("send")
        await queue.pause()
        other = app.queue("images")
        job = await other.add("resize", expires_in=60)
        claim = rq.Claim(worker="w", queues=[rq.ClaimQueue("images", 1, 1)], limit=1, claim_id="c1")
        claim.now_ms = job.enqueued_ms + 61_000  # too late for it
        assert not (await app.store.execute(claim)).jobs

    cli.app(arrange)
    beat(cli, "old", "mail", version="0.0.9")
    beat(cli, "new", "mail")
    warnings = findings(cli, "warning")
    assert any("mail: paused with 1 job waiting" in text for text in warnings)
    assert any("images: 1 failed job kept (expired 1)" in text for text in warnings)
    assert any("workers run different versions: 0.0.9, 0.1.0" in text for text in warnings)
    assert len(findings(cli, "warning", "--strict", code=1)) == 3


def test_doctor_reports_a_store_that_cannot_be_used(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("this is not a database, but it is long enough to be read as one" * 20)
    (problem,) = findings(cli, "problem", "--url", f"sqlite:///{path}", code=1)
    assert "the store cannot be used" in problem


def test_bench_measures_and_leaves_nothing_behind(cli: Cli, tmp_path: Path) -> None:
    cli.add("mail", "send")
    before = cli.json("queues")[0]["counts"]
    files = set(tmp_path.iterdir())
    measures = cli.json("bench", "--jobs", "50", "--concurrency", "4")
    assert [m["step"] for m in measures] == [
        "add, one by one",
        "add, 64 at once",
        "add in bulk",
        "drain, 4 slots",
        "add to start, idle",
    ]
    assert all(measure["per_second"] > 0 for measure in measures)
    assert set(tmp_path.iterdir()) == files
    assert cli.json("queues")[0]["counts"] == before
    assert "Figures depend on this machine" in cli("bench", "--jobs", "10").stderr
    assert "Measure adding, draining and latency" in cli("bench", "--help").output


# --- in common --------------------------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    context = click.Context(tree)
    found = {name: tree.get_command(context, name) for name in COMMANDS}
    return {name: command for name, command in found.items() if command is not None}


def pages() -> list[str]:
    """Every command that does something: of the pipeline each part, since the group itself does nothing."""
    parts = commands()["pipeline"]
    assert isinstance(parts, click.Group)
    return [name for name in COMMANDS if name != "pipeline"] + [f"pipeline {part}" for part in parts.commands]


@pytest.mark.parametrize("name", pages())
def test_every_command_explains_itself(cli: Cli, name: str) -> None:
    text = cli(*name.split(), "--help").output
    assert "Examples:" in text
    enough = 2 if " " in name else 3
    assert text.count(f"windlass {name}") >= enough or name in ("pause", "resume", "workers")
    assert "--url" in text or " " in name or name in ("completion", "config", "new")  # they have no store
    assert "--json" in text
    assert "--debug" in text


def test_every_command_is_listed_and_has_its_module(cli: Cli) -> None:
    text = cli("--help").output
    for name, command in commands().items():
        assert f"  {name}  " in text
        assert command.name == name


def test_a_misspelt_command_gets_a_guess(cli: Cli) -> None:
    assert "Did you mean 'queues'?" in cli("queuse", code=2).stderr
    assert "windlass --help" in cli("xyzzy", code=2).stderr


def test_errors_are_one_line_and_tracebacks_are_for_debugging(cli: Cli) -> None:
    result = cli("queues", "--url", "nonsense", code=1)
    assert result.stderr.startswith("error: url must begin with the kind of store, as in sqlite:///jobs.db")
    assert len(result.stderr.splitlines()) == 1
    assert cli("queues", "--url", "nonsense", "--debug", code=1).exc_info


def test_version(cli: Cli) -> None:
    assert cli("--version").output.startswith("windlass 0.")


def test_a_password_is_not_shown() -> None:
    assert shown_url("valkey://ada:secret@example.org/0") == "valkey://***@example.org/0"
    assert shown_url("sqlite:///jobs.db") == "sqlite:///jobs.db"


def test_colours_only_where_wanted(cli: Cli) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[1-7]m")
    cli.add("mail", "send")
    assert "\x1b[" not in cli("queues", env={"NO_COLOR": ""}).output  # not a terminal
    assert colour.search(cli("queues", env={"NO_COLOR": "", "FORCE_COLOR": "1"}).output)
    assert not colour.search(cli("queues", env={"NO_COLOR": "1", "FORCE_COLOR": "1"}).output)


@pytest.mark.parametrize("args", [["--help"], ["--version"]])
def test_help_draws_nothing_and_loads_no_command(args: list[str]) -> None:
    """What makes ``--help`` quick: neither rich nor any command is imported for it."""
    script = (
        "import sys; from windlass.cli.main import tree\n"
        f"try: tree({args!r})\n"
        "except SystemExit: pass\n"
        "loaded = [m for m in sys.modules if m.split('.')[0] == 'rich' or m.startswith('windlass.cli.')]\n"
        "print(sorted(loaded), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "['windlass.cli.main', 'windlass.cli.standard_streams']"


def test_python_dash_m(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "windlass", "queues", "--json"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert '"code":"storage"' in result.stderr


def test_options_reach_run_without_click(tmp_path: Path) -> None:
    """Commands are plain coroutines with an options class: usable from code."""
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    printed: list[Any] = []

    class Recorder(Out):
        def document(self, value: Any) -> None:
            printed.append(value)

    out = Recorder(as_json=True)
    assert asyncio.run(enqueue.run(enqueue.EnqueueOptions(url=url, queue="mail", name="send"), out)) == 0
    assert asyncio.run(queues.run(StoreOptions(url=url), out)) == 0
    assert printed[1][0]["counts"]["waiting"] == 1
