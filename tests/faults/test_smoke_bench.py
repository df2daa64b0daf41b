"""The benchmarks run: tiny, and without any opinion about the figures."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.faults.kit import ROOT


def test_every_part_of_the_sqlite_benchmark_runs() -> None:
    command = [sys.executable, "benchmarks/sqlite.py", "--smoke"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
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
    command = [sys.executable, "benchmarks/upgrade.py", "--jobs", "2000"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "all tables STRICT" in run.stdout


def test_every_part_of_the_file_benchmark_runs() -> None:
    command = [sys.executable, "benchmarks/file.py", "--smoke", "--alone"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((ROOT / ".reports" / "bench-file-smoke.json").read_text())
    figures = {measure["name"]: measure["median"] for measure in report["measures"]}
    for name in ("add, 50 at once", "add_bulk", "drain", "enqueue to start, p99", "opening it afterwards"):
        assert figures[name] > 0
    assert 0 < figures["jobs that it keeps then"] <= 2_000


@pytest.mark.service("valkey")
@pytest.mark.feature("U5")
def test_every_part_of_the_valkey_benchmark_runs_beside_a_peer() -> None:
    command = [sys.executable, "benchmarks/valkey.py", "--smoke", "--peers", "huey"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
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
