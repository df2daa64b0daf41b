"""The benchmarks run: tiny, and without any opinion about the figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.against import Row, markdown
from tests.faults.kit import ROOT

#: A part of a benchmark starts a dozen processes one after the other: on a busy machine that takes its time.
PATIENCE_S = 220
pytestmark = pytest.mark.timeout(PATIENCE_S + 20)


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def test_every_part_of_the_sqlite_benchmark_runs() -> None:
    run = _run("benchmarks/sqlite.py", "--smoke")
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((ROOT / ".reports" / "bench-sqlite-smoke.json").read_text())
    figures = {measure["name"]: measure["median"] for measure in report["measures"]}
    names = ["raw bulk insert", "add_bulk", "raw drain", "drain", "enqueue to start, p99"]
    names += ["huey thread-1 drain", "huey thread-10 drain", "huey process-2 drain"]
    for name in names:
        assert figures[name] > 0
    assert {verdict["what"] for verdict in report["verdicts"]} >= {"add_bulk", "drain", "add, one by one"}
    assert report["machine"]["cores"]


def test_the_benchmark_of_an_upgrade_runs() -> None:
    run = _run("benchmarks/upgrade.py", "--jobs", "2000")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "all tables STRICT" in run.stdout


def test_every_part_of_the_file_benchmark_runs() -> None:
    run = _run("benchmarks/file.py", "--smoke", "--alone")
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((ROOT / ".reports" / "bench-file-smoke.json").read_text())
    figures = {measure["name"]: measure["median"] for measure in report["measures"]}
    for name in ("add, 50 at once", "add_bulk", "drain", "enqueue to start, p99", "opening it afterwards"):
        assert figures[name] > 0
    assert 0 < figures["jobs that it keeps then"] <= 2_000


def test_the_benchmark_of_one_call_runs_beside_another_tree() -> None:
    some = ["memory: add", "memory: settle and claim 1", "file: worker, 10 slots"]
    run = _run("benchmarks/engine.py", "--smoke", "--against", ".", "--only", *some)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((ROOT / ".reports" / "bench-engine-smoke.json").read_text())
    assert all(measure["median"] > 0 for measure in report["measures"])
    assert len(report["verdicts"]) == 3


@pytest.mark.service("valkey")
@pytest.mark.feature("U5")
def test_every_part_of_the_valkey_benchmark_runs_beside_a_peer() -> None:
    run = _run("benchmarks/valkey.py", "--smoke", "--peers", "huey")
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((ROOT / ".reports" / "bench-valkey-smoke.json").read_text())
    figures = {measure["name"]: measure["median"] for measure in report["measures"]}
    for row in ("W1 one by one", "W2 bulk", "W3 drain", "W4 p50", "W4 p99", "W5 request and response"):
        assert figures[f"{row}: Windlass"] > 0
        assert figures[f"{row}: Huey"] > 0
    assert figures["W3 drain: bare FCALLs"] > 0
    assert figures["W6 waiting job: Windlass"] > 0
    assert figures["W6 waiting job: Huey"] > 0
    assert (ROOT / ".reports" / "bench-valkey-smoke.svg").read_text().startswith("<svg")


@pytest.mark.service("rabbitmq")
def test_the_benchmark_of_the_hops_on_rabbitmq_finds_and_draws_every_hop_of_a_call(tmp_path: Path) -> None:
    picture = tmp_path / "hops.svg"
    run = _run("benchmarks/amqp_hops.py", "--smoke", "--picture", str(picture))
    assert run.returncode == 0, run.stdout + run.stderr
    hops = [
        "producer: the broker confirms",
        "worker: the job's message comes",
        "worker: the handler starts",
        "worker: tells the end",
        "worker: the broker confirms",
        "producer: hears done",
        "producer: the result is there",
        "coordinator: reads Born",
        "coordinator: reads Ended",
    ]
    for hop in hops:
        assert f"  {hop}  (" in run.stdout, run.stdout + run.stderr
    assert "the result is there</text>" in picture.read_text()


def _against(*arguments: str) -> subprocess.CompletedProcess[str]:
    return _run("benchmarks/against.py", *arguments)


@pytest.mark.parametrize(
    ("store", "figures"),
    [
        ("sqlite", 2 * 9 + 1 + 4 * 2),  # with classes and with tasks, the hop between threads, the floors
        ("memory", 3),
        ("file", 2 * 2),
        pytest.param("valkey", 2 * 9, marks=pytest.mark.service("valkey")),
        pytest.param("amqp", 2 * 8, marks=pytest.mark.service("rabbitmq")),
    ],
)
def test_two_trees_are_measured_in_turn_with_and_without_speed_ups(store: str, figures: int) -> None:
    name = f"bench-against-smoke-{store}"
    run = _against("HEAD", "--smoke", "--stores", store, "--report", name)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((ROOT / ".reports" / f"{name}.json").read_text())
    assert len(report["rows"]) == figures
    for row in report["rows"]:
        columns = ["old", "new"] if row["floor"] else ["old", "new", "off"]
        assert {column: len(runs) for column, runs in row["runs"].items()} == dict.fromkeys(columns, 1)
        assert all(value > 0 for values in row["ratios"].values() for value in values)
    table = (ROOT / ".reports" / f"{name}.md").read_text().splitlines()
    assert len(table) == figures + 2


def test_a_revision_that_is_none_is_refused() -> None:
    run = _against("no-such-revision", "--smoke")
    assert run.returncode == 1
    assert "'no-such-revision' is no revision of this repository" in run.stderr


def test_times_and_sizes_count_the_other_way_round_in_a_ratio() -> None:
    fast = Row("sqlite", "class", "rate", "jobs/s", runs={"old": {0: 10, 1: 10}, "new": {0: 20, 1: 5, 2: 1}})
    small = Row("sqlite", "class", "wait", "ms", less=True, runs={"old": {0: 10}, "new": {0: 20}})
    assert fast.ratios("new") == [2, 0.5]
    assert small.ratios("new") == [0.5]
    assert "| 0.50 missed |" in markdown([small], "abc")


def test_a_floor_below_the_target_is_no_missed_target() -> None:
    runs: dict[str, dict[int, float]] = {"old": {0: 10}, "new": {0: 5}}
    floor = Row("sqlite", "bare SQL", "W3 drain at 1, flushed", "jobs/s", floor=True, runs=runs)
    assert "| 0.50 |" in markdown([floor], "abc")
