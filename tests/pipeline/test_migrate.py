"""A lake of the first format, carried over: every row equal."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.pipeline.support import Bench
from tests.pipeline.test_run import contents, run
from windlass.errors import ConfigError
from windlass.pipeline import migrate as migrate_module
from windlass.pipeline import schemas
from windlass.pipeline.gold import Gold, add_up
from windlass.pipeline.lake import Lake, LakeError
from windlass.pipeline.migrate import SEVERAL, OldLake, migrate, steps
from windlass.testing.faults import probing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = Path(__file__).with_name("old_lake.tar.gz")
Rows = list[dict[str, Any]]


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The old lake, and beside it what its release read from it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "lake"


def carry(spark: SparkSession, old: Path, new: Path | str, progress: Any = lambda table: None) -> Lake:
    @contextmanager
    def session() -> Iterator[SparkSession]:
        yield spark

    lake = Lake(str(new))
    migrate(OldLake.load(str(old)), lake, session, progress)
    return Lake(str(new)).open().level()


def rows_of(lake: Lake, table: schemas.TableSchema) -> Rows:
    rows: Rows = lake.delta(table).to_pyarrow_dataset().to_table().to_pylist()
    return [{**row, "date": str(row["date"])} for row in rows]


def ordered(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True, default=str))


@pytest.mark.feature("Q11")
def test_every_row_of_an_old_lake_is_carried_over(spark: SparkSession, old: Path, tmp_path: Path) -> None:
    told: list[str] = []
    lake = carry(spark, old, tmp_path / "new", told.append)
    want: dict[str, Rows] = json.loads((old.parent / "rows.json").read_text())
    for table in schemas.BATCHED:
        before, after = want[table.path], rows_of(lake, table)
        names = list(before[0]) if before else []
        if not table.path.startswith("gold/"):
            assert ordered([{name: row[name] for name in names} for row in after]) == ordered(before)
            continue
        assert {row["source"] for row in after} == {"default", "shop"}, table.path
        assert len(after) >= len(before)
        if len(after) == len(before):  # no row belonged to both
            kept = [name for name in names if name not in ("source", "schema_version")]
            assert ordered([{name: row[name] for name in kept} for row in after]) == ordered(
                [{name: row[name] for name in kept} for row in before]
            ), table.path
    gold = Gold(str(tmp_path / "new"))
    keys = ("window_start", "queue", "task")
    for grain, table in schemas.ROLLUPS.items():  # both sources together are what one row was
        before = [{**row, **_pairs(row)} for row in want[table.path]]
        assert add_up(gold.rollups(grain), keys) == add_up(before, keys), grain
    assert len(told) == steps()
    identity = json.loads((old / "_windlass/lake.json").read_text())
    assert lake.lake_id == identity["lake_id"]  # the store goes on holding its log for it
    assert set(lake.offsets()) == {"default", "shop"}
    assert {entry.ranges["batch"] for entry in lake.entries(schemas.SILVER_ATTEMPTS)} == {(0, 0)}


def _pairs(row: dict[str, Any]) -> dict[str, Any]:
    return {f"{m}_hist": row[f"{m}_hist"] for m in schemas.MEASURES}


def test_a_run_goes_on_in_a_migrated_lake(
    spark: SparkSession, bench: Bench, old: Path, tmp_path: Path
) -> None:
    root = tmp_path / "new"
    before = contents(carry(spark, old, root).url)
    bench.add("mail", ["a", "b"])
    bench.work("mail")
    pipeline = run(spark, bench, root, source="fresh")
    assert pipeline.lake.sources()["fresh"] == 1
    after = contents(root)
    assert len(after["silver/attempts"]) == len(before["silver/attempts"]) + 2
    gold = [row for row in after["gold/day"] if row[0] != "fresh"]
    assert _without_version(gold) == _without_version(before["gold/day"])


def _without_version(rows: list[Any]) -> list[Any]:
    """Rows of gold without ``schema_version``, the last but one: a row that is written again has today's."""
    return [(*row[:-2], row[-1]) for row in rows]


def test_the_old_lake_stays_as_it_was(spark: SparkSession, old: Path, tmp_path: Path) -> None:
    def tree() -> list[tuple[str, int]]:
        return [(str(path), path.stat().st_mtime_ns) for path in sorted(old.rglob("*"))]

    before = tree()
    carry(spark, old, tmp_path / "new")
    assert tree() == before
    with pytest.raises(ConfigError, match="new place"):
        carry(spark, old, tmp_path / "new")
    with pytest.raises(ConfigError, match="first format"):
        OldLake.load(str(tmp_path / "new"))


def test_a_migration_that_dies_goes_on_where_it_was(spark: SparkSession, old: Path, tmp_path: Path) -> None:
    undisturbed = carry(spark, old, tmp_path / "undisturbed")

    class Crash(BaseException):
        pass

    def crash(point: str, facts: dict[str, Any]) -> None:
        raise Crash

    for commits in (2, 3):
        with probing() as probe, pytest.raises(Crash):
            for _ in range(commits):
                probe.arm("lake.commit", lambda point, facts: None)
            probe.arm("lake.commit", crash)
            carry(spark, old, tmp_path / "new")
        with pytest.raises(LakeError, match="interrupted"):
            Lake(str(tmp_path / "new")).open().level()
    lake = carry(spark, old, tmp_path / "new")
    for table in schemas.BATCHED:
        assert ordered(rows_of(lake, table)) == ordered(rows_of(undisturbed, table)), table.path


def test_days_that_silver_has_forgotten_keep_their_figures(
    spark: SparkSession, old: Path, tmp_path: Path
) -> None:
    found = OldLake.load(str(old))
    forgotten = [path for path, entry in found.files.items() if entry.table == "silver/attempts"]
    prune = {"version": 9, "kind": "prune", "txn": "x", "at_ms": 0, "remove": forgotten}
    (old / "_windlass/commits/0000000009.json").write_text(json.dumps(prune))
    lake = carry(spark, old, tmp_path / "new")
    rows = rows_of(lake, schemas.GOLD_DAY)
    assert {row["source"] for row in rows} == {SEVERAL}
    want = json.loads((old.parent / "rows.json").read_text())["gold/day"]
    assert sum(row["attempts"] for row in rows) == sum(row["attempts"] for row in want)


def test_the_tables_that_are_copied_are_all_but_gold() -> None:
    copied = {table.path for table in migrate_module._COPIED} | {schemas.BRONZE_ATTEMPTS.path}
    assert copied | {table.path for table in schemas.GOLD} == {table.path for table in schemas.BATCHED}
