"""Claims of ``docs/reliability.md`` and ``docs/benchmarks.md`` that no other test is about."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from windlass import Windlass

ROOT = Path(__file__).resolve().parents[2]


async def test_the_file_is_in_write_ahead_mode_and_its_threads_end_with_the_app(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with Windlass(f"sqlite:///{path}") as app:
        await app.queue("default").add("work")
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("windlass-sqlite")]


@pytest.mark.feature("Z10")
@pytest.mark.parametrize(
    "claim",
    [
        "100,000 jobs/s on Redis",
        "1,000 jobs/s in files",
        'latency of a dequeue "about 0"',
        "10,000 jobs/s of one instance",
    ],
)
def test_what_a_design_claims_stands_beside_what_was_measured(claim: str) -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith("|") and claim in line]
    figures = re.findall(r"\d[\d,.]+ (?:jobs/s|ms)|\d\d,\d{3}", row.partition(claim)[2])
    assert figures, "no figure beside the claim"
    elsewhere = page.replace(row, "")
    for figure in figures:
        assert figure.split()[0] in elsewhere, f"{figure} is in no table of a run"
