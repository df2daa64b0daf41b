"""Erased rows are in no table, stay away, and count as before."""

from __future__ import annotations

import hashlib
import json
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.pipeline.support import Bench, attempt, busy_day, fill_lake
from tests.pipeline.test_run import contents, run, totals
from windlass.cli.pipeline import command
from windlass.errors import ConfigError
from windlass.pipeline import schemas
from windlass.pipeline.backfill import rebuild
from windlass.pipeline.compact import vacuum
from windlass.pipeline.erase import Erased, erase
from windlass.pipeline.gold import Gold
from windlass.pipeline.lake import Lake, LakeError
from windlass.pipeline.lake_batch import plan_batch, run_batch
from windlass.pipeline.report import build_report
from windlass.pipeline.sqlquery import connect, query
from windlass.pipeline.transforms import job_rows
from windlass.testing.faults import probing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A job that failed in the first turn, as the fixture's day goes.
WHERE = "queue = 'mail' and job_id in ('m0-8', 'm0-5')"


def gold_of(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {path: rows for path, rows in found.items() if path.startswith("gold/") and path != "gold/errors"}


def holds(lake: Path, *words: str) -> list[str]:
    """Files of the lake that hold one of the words, by any reader."""
    import pyarrow.parquet as pq

    found = []
    for path in lake.rglob("*"):
        if path.is_file():
            text = (
                str(pq.ParquetFile(path).read().to_pylist())
                if path.suffix == ".parquet"
                else path.read_text()
            )
            found += [str(path) for word in words if f"'{word}'" in text or f'"{word}"' in text]
    return found


@pytest.mark.feature("Q11")
def test_erased_jobs_leave_every_table_and_never_come_back(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    busy_day(bench, rounds=1)
    root = tmp_path / "lake"
    pipeline = run(spark, bench, root)
    before, want = contents(root), totals(root, "day")
    with connect(str(root)) as connection:
        ids = connection.execute(f"SELECT run_id, job_id FROM attempts WHERE {WHERE}").fetchall()
        shown = connection.execute("SELECT last_job_id FROM errors").fetchall()
    words = {word for pair in ids for word in pair}
    assert len(ids) >= 2 and set(shown) & {(job_id,) for _, job_id in ids}
    gone = erase(Lake(str(root)).open(), WHERE)
    assert gone == Erased(2, len(ids))
    after = contents(root)
    assert gold_of(after) == gold_of(before)
    for table in (schemas.BRONZE_ATTEMPTS, schemas.SILVER_ATTEMPTS, schemas.SILVER_JOBS):
        rows = [row for row in before[table.path] if not words & {str(cell) for cell in row}]
        assert after[table.path] == rows, table.path
    assert not [row for row in after["gold/errors"] if words & {str(cell) for cell in row}]
    assert [row[5:9] for row in after["gold/errors"]] == [row[5:9] for row in before["gold/errors"]]
    assert totals(root, "attempts") + totals(root, "erased") == totals(root, "day") == want
    vacuum(Lake(str(root)).open(), 0)
    assert holds(root, *words) == []
    # A backfill and records that come again.
    pipeline.lake.refresh()
    rebuild(spark, pipeline.lake)
    assert gold_of(contents(root)) == gold_of(before)
    run_batch(spark, pipeline.lake, pipeline.url, "default", plan_batch(pipeline.url, {}, 1_000))
    again = contents(root)
    assert again["silver/attempts"] == after["silver/attempts"]
    assert again["silver/jobs"] == after["silver/jobs"]
    assert gold_of(again) == gold_of(before)
    report = build_report(Gold(str(root)), None, None)
    assert (report.erased, report.total["attempts"]) == (len(ids), sum(want.values()))


def test_an_erasure_that_dies_is_started_again(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    busy_day(bench, rounds=1)
    root = tmp_path / "lake"
    run(spark, bench, root)
    want = totals(root, "day")

    class Crash(BaseException):
        pass

    def crash(point: str, facts: dict[str, Any]) -> None:
        raise Crash

    for _ in range(3):  # each goes on from the table after the one that was done
        with probing() as probe, pytest.raises(Crash):
            probe.arm("lake.committed", crash)
            erase(Lake(str(root)).open(), WHERE)
    assert erase(Lake(str(root)).open(), WHERE).jobs == 2
    assert erase(Lake(str(root)).open(), WHERE) == Erased(0, 0)
    assert totals(root, "attempts") + totals(root, "erased") == totals(root, "day") == want


def test_the_command_says_what_went(spark: SparkSession, bench: Bench, tmp_path: Path) -> None:
    busy_day(bench, rounds=1)
    root = str(tmp_path / "lake")
    run(spark, bench, root)

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(command, [*arguments, "--lake", root, "--json"])

    assert json.loads(invoke("erase", "--where", WHERE, "--dry-run").stdout) == {"jobs": 2}
    assert json.loads(invoke("erase", "--where", WHERE).stdout)["jobs"] == 2
    assert json.loads(invoke("vacuum", "--hours", "0").stdout)["files"] > 0
    with pytest.raises(ConfigError, match="attempts, jobs"):
        erase(Lake(root).open(), "no_such_column = 1")


# --- without Spark ----------------------------------------------------------------------------------------


def literal_lake(root: str) -> Lake:
    """Four jobs of two attempts each; the last job is the example of their error."""
    day, error = date(2023, 11, 14), {"error_class": "E", "error_fingerprint": "f"}
    story = {**error, "error_message": "no such customer", "parent": "mail/p", "root": "mail/r"}
    rows = [{**attempt(job_id=f"j{n // 2}", tags=["t"], **story), "date": day} for n in range(8)]
    attempts = pa.Table.from_pylist(rows, schema=schemas.SILVER_ATTEMPTS.arrow)
    shown = {
        "occurrences": 8,
        "failed": 0,
        "first_ms": 1,
        "last_ms": 2,
        "last_job_id": "j3",
        "last_run_id": "r",
        "last_message": "no such customer",
    }
    names = {"source": "default", "queue": "mail", "task": "send", "schema_version": 2, "date": day}
    errors = pa.Table.from_pylist([{**names, **error, **shown}], schema=schemas.GOLD_ERRORS.arrow)
    filled = {
        schemas.BRONZE_ATTEMPTS: attempts,
        schemas.SILVER_ATTEMPTS: attempts,
        schemas.SILVER_JOBS: job_rows.job_parts(attempts).take([0, 2, 4, 6]),
        schemas.GOLD_ERRORS: errors,
    }
    return fill_lake(root, filled, {"mail": 8})


def test_only_what_was_chosen_goes_and_its_hash_stays(tmp_path: Path) -> None:
    root = str(tmp_path)
    literal_lake(root)
    before = query(root, "SELECT run_id FROM attempts WHERE job_id = 'j3'").rows
    assert erase(Lake(root).open(), "job_id IN ('j1', 'j3')") == Erased(2, 4)
    for view, count in (("bronze_attempts", 4), ("attempts", 4), ("jobs", 2)):
        found = query(root, f"SELECT job_id, count(*) FROM {view} GROUP BY 1 ORDER BY 1").rows
        assert found == [("j0", count // 2), ("j2", count // 2)], view
    shown = query(root, "SELECT occurrences, last_job_id, last_run_id, last_message FROM errors").rows
    assert shown == [(8, "", "", None)]
    names = 'job_id, "group", tags, error_message, parent, root, outcome'
    erased = query(root, f"SELECT run_id, {names} FROM erased").rows
    assert {row[1:] for row in erased} == {("", None, None, None, None, None, "completed")}
    hashes = {hashlib.sha256(run_id.encode()).hexdigest() for (run_id,) in before}
    assert hashes < {row[0] for row in erased}
    assert Lake(root).open().offsets() == {"default": {"mail": 8}}


def test_the_log_holds_no_ids(tmp_path: Path) -> None:
    """It outlives the files that it names."""
    literal_lake(str(tmp_path))
    erase(Lake(str(tmp_path)).open(), "job_id = 'j3'")
    texts = [path.read_text() for path in tmp_path.rglob("_delta_log/*.json")]
    assert texts and not any("j3" in text or "run-" in text for text in texts)


def test_nothing_is_erased_while_a_batch_is_on_its_way(tmp_path: Path) -> None:
    lake = literal_lake(str(tmp_path))
    note = {"source": "default", "batch": 2, "offsets": {"default": {"mail": 9}}, "gaps": []}
    lake.commit(schemas.BRONZE_ATTEMPTS, [], batches={"default": 2}, note=note)
    with pytest.raises(LakeError, match="pipeline run"):
        erase(Lake(str(tmp_path)).open(), "job_id = 'j3'")
