"""Claims of ``docs/reliability.md`` and ``docs/benchmarks.md`` that no other test is about."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from windlass import Windlass
from windlass.core.options import OPTION_NAMES
from windlass.worker import WorkerOptions

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


def test_the_guide_lists_every_option_of_a_job_and_every_setting_of_a_worker() -> None:
    page = (ROOT / "docs" / "guide.md").read_text()
    cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert (OPTION_NAMES | set(WorkerOptions.__struct_fields__)) - listed == set()


def test_every_figure_of_the_readme_is_one_of_the_benchmarks() -> None:
    """The figures of the README are those of the page of benchmarks: change them there first."""
    table = (ROOT / "README.md").read_text().partition("\n## Performance\n")[2].partition("\n## ")[0]
    figures = re.findall(r"\d[\d,]*\d{3}|\d+\.\d+|\b\d{3}\b", table)
    assert len(figures) > 15
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert [figure for figure in figures if not re.search(rf"(?<![\d,.]){figure}(?![\d,])", page)] == []


#: The columns of the table of targets; a store that is not there has no figure of its own.
_COLUMNS = ("memory", "file", "sqlite", "valkey", "amqp")


def _target(name: str, store: str) -> tuple[str, str]:
    """The figure of a store in the table of targets, and the page without that table's row."""
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
    return row.split("|")[2 + _COLUMNS.index(store)].strip(), page.replace(row, "")


@pytest.mark.feature("Z8")
@pytest.mark.parametrize("backend_name", ["file", "sqlite", "valkey", "amqp"])
def test_the_recorded_run_of_a_store_met_the_targets(backend_name: str) -> None:
    rate, elsewhere = _target("10,000 jobs/s of one instance", backend_name)
    assert float(rate.replace(",", "")) >= 10_000
    assert rate in elsewhere, "in no table of a run"
    enqueue, _ = _target("enqueue below 10 ms", backend_name)
    assert float(enqueue.split(" ms")[0]) < 10
