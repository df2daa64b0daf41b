"""The benchmarks run: tiny, and without any opinion about the figures."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from tests.faults.kit import ROOT


def test_every_part_of_the_sqlite_benchmark_runs() -> None:
    command = [sys.executable, "benchmarks/sqlite.py", "--smoke"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((ROOT / ".reports" / "bench-sqlite-smoke.json").read_text())
    figures = {measure["name"]: measure["median"] for measure in report["measures"]}
    names = ["raw bulk insert", "add_bulk", "raw drain", "drain", "enqueue to start, p99"]
    if importlib.util.find_spec("huey"):  # scripts/bench installs it, the tests do without
        names += ["huey thread-1 drain", "huey thread-10 drain", "huey process-2 drain"]
    for name in names:
        assert figures[name] > 0
    assert {verdict["what"] for verdict in report["verdicts"]} >= {"add_bulk", "drain", "add, one by one"}
    assert report["machine"]["cores"]
