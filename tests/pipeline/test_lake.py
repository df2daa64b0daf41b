"""The lake's protocol: every table has a batch wholly and once, whatever line the writer dies at."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.pipeline.support import attempt, make_table
from windlass.errors import ConfigError
from windlass.pipeline import schemas
from windlass.pipeline.compact import Retention, compact, prune, vacuum
from windlass.pipeline.digest import digest, rows_of
from windlass.pipeline.files import FileEntry, TableWriter, place, read_entries
from windlass.pipeline.lake import Conflict, Lake, LakeError
from windlass.pipeline.lake_batch import write_literal
from windlass.testing.faults import probing

TABLE = schemas.GOLD_BACKLOG
BRONZE = schemas.BRONZE_ATTEMPTS


class Crash(BaseException):
    """The process dies here: nothing may catch it."""


def crash(point: str, facts: dict[str, Any]) -> None:
    raise Crash(point)


@pytest.fixture(params=["folder", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty place for a lake."""
    if request.param == "folder":
        yield str(tmp_path / "lake")
    else:
        yield f"{request.getfixturevalue('bucket')}/lake"


def row(value: int, day: str = "2026-01-01") -> dict[str, Any]:
    facts = {"source": "s", "queue": "q", "ready": 1, "departed": 0, "wait_sum_ms": 0}
    return {**facts, "window_start": value, "date": date.fromisoformat(day)}


def files(lake: Lake, value: int, day: str = "2026-01-01") -> list[FileEntry]:
    return write_literal(lake.place, TABLE, [row(value, day)])


def change(lake: Lake, number: int, *, replace: bool = True, day: str = "2026-01-01") -> None:
    """A batch that replaces everything by one row."""
    old = lake.entries(TABLE) if replace else []
    lake.commit(TABLE, files(lake, number, day), old, batches={"s": number})


def values(root: str) -> list[int]:
    rows = Lake(root).open().delta(TABLE).to_pyarrow_dataset().to_table(columns=["window_start"])
    return sorted(rows.column(0).to_pylist())


def test_a_commit_adds_replaces_and_names_its_batch(root: str) -> None:
    lake = Lake(root).create()
    change(lake, 1)
    change(lake, 2)
    assert values(root) == [2]
    (entry,) = lake.entries(TABLE)
    assert (entry.rows, entry.date, entry.ranges) == (1, "2026-01-01", {"window_start": (2, 2)})
    again = Lake(root).open()
    assert (again.done(TABLE, "s"), again.done(TABLE, "other"), again.done(BRONZE, "s")) == (2, 0, 0)
    assert again.lake_id == lake.lake_id == Lake(root).create().lake_id
    assert again.entries(TABLE) == [entry]
    assert again.entries(TABLE, ["2026-01-02"]) == []


@pytest.mark.parametrize("point", ["lake.commit", "lake.committed"])
def test_after_a_crash_a_commit_is_whole_or_absent(tmp_path: Path, point: str) -> None:
    root = str(tmp_path / "lake")
    lake = Lake(root).create()
    change(lake, 1)
    with probing() as probe, pytest.raises(Crash):
        probe.arm(point, crash)
        change(lake, 2)
    want = 1 if point == "lake.commit" else 2
    assert values(root) == [want]
    again = Lake(root).open()
    assert again.done(TABLE, "s") == want
    change(again, 3)
    assert values(root) == [3]


def test_of_two_writers_of_one_batch_one_is_refused(root: str) -> None:
    first, second = Lake(root).create(), Lake(root).create()
    change(first, 1, replace=False)
    with pytest.raises(Conflict):
        change(second, 1, replace=False)
    assert values(root) == [1]
    second.refresh()
    change(second, 2, replace=False)
    with pytest.raises(Conflict):
        change(first, 2, replace=False)
    assert values(root) == [1, 2]


def test_a_file_that_was_compacted_is_not_replaced_again(root: str) -> None:
    """Delta would let this pass and keep the row twice."""
    lake = Lake(root).create()
    for number in (1, 2, 3):
        change(lake, number, replace=False)
    stale = Lake(root).open()
    assert compact(lake, slack=1) == 2
    with pytest.raises(Conflict):
        change(stale, 4)
    assert values(root) == [1, 2, 3]
    stale.refresh()
    change(stale, 4)
    assert values(root) == [4]


def test_two_compactions_at_once_leave_every_row_once(root: str) -> None:
    """Delta would let this pass too."""
    lake = Lake(root).create()
    for number in (1, 2, 3):
        change(lake, number, replace=False)
    stale = Lake(root).open()
    assert compact(lake, slack=1) == 2
    assert compact(stale, slack=1) == 0
    assert values(root) == [1, 2, 3]
    assert len(stale.entries(TABLE)) == 1


def test_adding_goes_on_while_another_compacts(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    lake = Lake(root).create()
    for number in (1, 2):
        change(lake, number, replace=False)
    writer = Lake(root).open()
    compact(lake, slack=1)
    change(writer, 3, replace=False)
    assert values(root) == [1, 2, 3]
    assert len(writer.entries(TABLE)) == 2


def seen_by(lake: Lake) -> tuple[list[FileEntry], list[FileEntry], int, dict[str, Any]]:
    """What a lake knows of the table and of bronze."""
    days = ["2026-01-01", "2026-01-02"]
    return lake.entries(TABLE), lake.entries(TABLE, days[1:]), lake.done(TABLE, "s"), lake.note()


def test_a_writer_knows_the_batches_and_notes_of_its_own_commits_without_reading_them(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has to read is the list of files, once for each version."""
    lake, asked = Lake(root).create(), []
    change(lake, 1)
    lake.commit(BRONZE, [], batches={"s": 1}, note={"offsets": {"s": {"q": 1}}})
    seen_by(lake)
    for name in ("transaction_version", "history"):
        real = getattr(DeltaTable, name)

        def ask(self: DeltaTable, *given: Any, real: Any = real, name: str = name, **named: Any) -> Any:
            asked.append(name)
            return real(self, *given, **named)

        monkeypatch.setattr(DeltaTable, name, ask)
    for number in (2, 3, 4):
        change(lake, number, replace=number != 3, day=f"2026-01-0{number % 2 + 1}")
        note = {"offsets": {"s": {"q": number}}}
        lake.commit(BRONZE, [], batches={"s": number}, note=note)
        known = seen_by(lake)
        assert (asked, known[2], known[3]) == ([], number, note)
        assert known == seen_by(Lake(root).open())
        asked.clear()


def test_a_writer_sees_the_commits_of_others(root: str) -> None:
    lake, other = Lake(root).create(), Lake(root).create()
    change(lake, 1, replace=False)
    seen_by(lake)
    other.refresh()
    other.commit(TABLE, files(other, 5, "2026-01-02"), batches={"t": 1})
    change(lake, 2, replace=False)  # the version before it is not the one that this writer knew
    assert seen_by(lake) == seen_by(Lake(root).open())
    assert (len(lake.entries(TABLE)), lake.done(TABLE, "t")) == (3, 1)
    compact(other, slack=1)
    lake.refresh()
    assert seen_by(lake) == seen_by(Lake(root).open())


def test_runs_that_make_a_lake_at_once_make_one(root: str) -> None:
    with ThreadPoolExecutor(3) as pool:
        ids = {lake.lake_id for lake in pool.map(lambda _: Lake(root).create(), range(3))}
    assert len(ids) == 1


def test_a_new_lake_is_for_its_user_alone_and_an_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2770)
    before = os.umask(0o022)
    try:
        Lake(f"{tmp_path}/new/lake").create()
        Lake(f"{shared}").create()
    finally:
        os.umask(before)
    modes = [oct((tmp_path / name).stat().st_mode & 0o7777) for name in ("new/lake", "shared")]
    assert modes == ["0o700", "0o2770"]


def test_readers_take_the_newest_batch_that_all_tables_hold(root: str) -> None:
    lake = Lake(root).create()

    def note(number: int) -> dict[str, Any]:
        return {"source": "s", "batch": number, "offsets": {"s": {"q": number}}, "gaps": []}

    def batch(number: int, tables: list[schemas.TableSchema]) -> None:
        lake.commit(BRONZE, [], batches={"s": number}, note=note(number))
        for table in tables:
            if table is TABLE:
                change(lake, number)
            else:
                lake.commit(table, [], batches={"s": number})

    batch(1, list(schemas.BATCHED[1:]))
    batch(2, [TABLE])
    reader = Lake(root).open().level()
    assert {reader.done(table, "s") for table in schemas.BATCHED} == {1}
    rows = reader.delta(TABLE).to_pyarrow_dataset().to_table()
    assert rows.column("window_start").to_pylist() == [1]
    assert reader.versions()[TABLE.path] == Lake(root).open().versions()[TABLE.path] - 1
    with pytest.raises(LakeError, match="pipeline run"):
        Lake(root).open().require_level()
    for table in schemas.BATCHED[1:]:
        if table is not TABLE:
            lake.commit(table, [], batches={"s": 2})
    reader.level()
    assert {reader.done(table, "s") for table in schemas.BATCHED} == {2}
    assert reader.delta(TABLE).to_pyarrow_dataset().to_table().column("window_start").to_pylist() == [2]


def test_offsets_stand_in_the_newest_note(tmp_path: Path) -> None:
    root = str(tmp_path / "lake")
    lake = Lake(root).create()
    assert lake.offsets() == {}
    lake.commit(BRONZE, [], batches={"s": 1}, note={"source": "s", "batch": 1, "offsets": {"s": {"q": 7}}})
    lake.commit(BRONZE, [], batches={"t": 1})  # a commit that says nothing
    assert Lake(root).open().offsets() == {"s": {"q": 7}}
    assert lake.sources() == {"s": 1}


def test_a_note_is_for_the_version_that_it_was_made_from(tmp_path: Path) -> None:
    """Two sources at once: the second must not write down the first's old position."""
    first, second = Lake(str(tmp_path)).create(), Lake(str(tmp_path)).create()
    first.commit(BRONZE, [], batches={"a": 1}, note={"offsets": {"a": {"q": 7}}})
    with pytest.raises(Conflict):
        second.commit(BRONZE, [], batches={"b": 1}, note={"offsets": {"b": {"q": 1}}})


# --- the log ----------------------------------------------------------------------------------------------


def commit_many(lake: Lake, tables: Sequence[schemas.TableSchema], numbers: Iterable[int]) -> None:
    """Batches without rows."""
    for number in numbers:
        for table in tables:
            note = {"offsets": {"s": {"q": number}}, "latest": {"s": {"batch": number, "gaps": [number]}}}
            lake.commit(table, [], batches={"s": number}, note=note if table is BRONZE else None)


def age_logs(lake: Lake, hours: int = 8) -> None:
    then = time.time() - hours * 3_600
    for path in Path(lake.url).glob("*/*/_delta_log/*"):
        os.utime(path, (then, then))


def log_of(lake: Lake, table: schemas.TableSchema) -> list[str]:
    return sorted(path.name for path in (Path(lake.url) / table.path / "_delta_log").glob("*.json"))


def test_a_log_is_cut_to_what_readers_may_need(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path)).create()
    commit_many(lake, schemas.BATCHED, range(1, 4))
    commit_many(lake, [BRONZE], range(4, 60))  # as if a run died here
    age_logs(lake)
    lake.trim_logs()
    assert len(log_of(lake, BRONZE)) == 60  # readers still look at what all tables hold
    for table in schemas.BATCHED[1:]:
        lake.commit(table, [], batches={"s": 59})
    age_logs(lake)
    lake.trim_logs()
    assert len(log_of(lake, BRONZE)) < 20
    opened = Lake(str(tmp_path)).open().level()
    assert opened.offsets() == {"s": {"q": 59}}
    assert opened.sources() == {"s": 59}


def test_a_young_log_is_not_cut(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path)).create()
    commit_many(lake, [BRONZE], range(1, 60))
    for table in schemas.BATCHED[1:]:
        lake.commit(table, [], batches={"s": 59})
    lake.trim_logs()
    assert len(log_of(lake, BRONZE)) == 60


def test_a_cut_log_still_says_how_far_it_goes(tmp_path: Path) -> None:
    """Upkeep writes commits without a note, also where a checkpoint falls."""
    lake = Lake(str(tmp_path)).create()
    commit_many(lake, schemas.BATCHED, [1])
    for _ in range(60):
        lake.commit(BRONZE, [])
    for _ in range(2):
        age_logs(lake)
        lake.trim_logs()
    assert len(log_of(lake, BRONZE)) < 20
    assert Lake(str(tmp_path)).open().offsets() == {"s": {"q": 1}}
    assert lake.note("s", 1)["gaps"] == [1]


def test_a_lake_of_an_earlier_release_gets_the_settings_of_its_log(tmp_path: Path) -> None:
    name, other = "delta.logRetentionDuration", "delta.checkpointInterval"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("windlass.pipeline.lake._LOG_SETTINGS", {name: "interval 9 days"})
        Lake(str(tmp_path)).create()
    settings = Lake(str(tmp_path)).create().delta(TABLE).metadata().configuration
    assert settings[name] == "interval 9 days"  # someone's own choice
    assert int(settings[other]) > 0


def test_a_missing_lake_and_an_old_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pipeline run"):
        Lake(str(tmp_path)).open()
    (tmp_path / "_windlass").mkdir()
    (tmp_path / "_windlass/lake.json").write_text('{"lake_id":"x","format":1}')
    for opening in (Lake(str(tmp_path)).open, Lake(str(tmp_path)).create):
        with pytest.raises(ConfigError, match="windlass pipeline migrate --from"):
            opening()


def test_reading_does_not_write(tmp_path: Path) -> None:
    change(Lake(str(tmp_path)).create(), 1)
    before = sorted(tmp_path.rglob("*"))
    Lake(str(tmp_path)).open().level()
    assert sorted(tmp_path.rglob("*")) == before


def test_columns_of_a_newer_release_are_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = schemas.TABLES[TABLE.path]
    fewer = schemas.TableSchema(
        TABLE.path, tuple(c for c in whole.columns if c.name != "wait_max_ms"), whole.keys, whole.ranged
    )
    monkeypatch.setitem(schemas.TABLES, TABLE.path, fewer)
    lake = Lake(str(tmp_path)).create()
    writer = TableWriter(lake.place, fewer)
    writer.write(pa.Table.from_pylist([{**row(1), "schema_version": 1}], schema=fewer.arrow))
    lake.commit(fewer, writer.close(), batches={"s": 1})
    monkeypatch.setitem(schemas.TABLES, TABLE.path, whole)
    newer = Lake(str(tmp_path)).create()
    change(newer, 2, replace=False)
    rows = newer.delta(TABLE).to_pyarrow_dataset().to_table().to_pylist()
    assert sorted((found["window_start"], found["wait_max_ms"]) for found in rows) == [(1, None), (2, None)]


def test_prune_drops_dates_past_their_keep_and_vacuum_their_files(root: str) -> None:
    lake = Lake(root).create()
    for number, day in enumerate(("2020-01-01", "2026-01-01", "2026-06-01"), 1):
        change(lake, number, replace=False, day=day)
    gone = prune(lake, Retention(gold_days=200), date(2026, 7, 1))
    assert [entry.date for entry in gone] == ["2020-01-01"]
    assert values(root) == [2, 3]
    assert prune(lake, Retention(gold_days=200), date(2026, 7, 1)) == []
    there = lake.place.files(TABLE)
    assert there.get_file_info(gone[0].path).is_file
    assert vacuum(lake) == 0
    assert vacuum(lake, 0) == 1
    assert not there.get_file_info(gone[0].path).is_file
    assert values(root) == [2, 3]


def test_ids_and_times_are_written_without_a_dictionary_and_all_else_with_one(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path)).create()
    attempts = make_table(schemas.SILVER_ATTEMPTS, [attempt(tags=["x"], source="s")])
    minutes = [part for part in digest(attempts).parts if part.table == schemas.GOLD_MINUTE.path]
    found: dict[str, bool] = {}
    for table, rows in ((schemas.SILVER_ATTEMPTS, attempts), (schemas.GOLD_MINUTE, *rows_of(minutes))):
        writer = TableWriter(lake.place, table)
        writer.write(rows)
        columns = pq.read_metadata(lake.uris(writer.close())[0]).row_group(0)
        for at in range(columns.num_columns):
            found[columns.column(at).path_in_schema] = "RLE_DICTIONARY" in columns.column(at).encodings
    assert not any(found[name] for name in ("run_id", "job_id", "enqueued_ms", "finished_ms"))
    nested = ("tags.list.element", "wait_hist.list.element.bucket")
    assert all(found[name] for name in ("queue", "task", "window_start", *nested))


def test_a_file_holds_one_day_and_says_what_is_in_it(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path)).create()
    writer = TableWriter(lake.place, TABLE)
    rows = [{**row(n, f"2026-01-0{1 + n % 2}"), "schema_version": 1} for n in range(6)]
    writer.write(pa.Table.from_pylist(rows, schema=TABLE.arrow))
    written = sorted(writer.close(), key=lambda entry: entry.date)
    assert [(entry.date, entry.rows, entry.ranges["window_start"]) for entry in written] == [
        ("2026-01-01", 3, (0, 4)),
        ("2026-01-02", 3, (1, 5)),
    ]
    assert json.loads(written[0].statistics)["numRecords"] == 3
    assert [(tmp_path / TABLE.path / entry.path).stat().st_size for entry in written] == [
        entry.bytes for entry in written
    ]


def test_secrets_are_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "swordfish")
    where = place("s3://bucket/lake/")
    assert where.options["AWS_SECRET_ACCESS_KEY"] == "swordfish"
    assert where.url == "s3://bucket/lake"
    assert "swordfish" not in repr(where) + str(where)
    with pytest.raises(ConfigError) as refused:
        place("s3://name:swordfish@bucket/lake")
    assert "swordfish" not in str(refused.value)


def test_a_lake_that_cannot_be_reached_names_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "halibut")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "swordfish")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_MAX_RETRIES", "0")
    with pytest.raises(LakeError) as refused:
        Lake("s3://bucket/lake").open()
    assert "swordfish" not in str(refused.value) and "halibut" not in str(refused.value)


def test_a_file_is_copied_to_another_table(root: str) -> None:
    lake = Lake(root).create()
    (entry,) = files(lake, 5)
    other = lake.place.copy(entry, schemas.GOLD_MINUTE)
    assert (other.table, other.rows, other.date) == ("gold/minute", 1, entry.date)
    with lake.place.files(schemas.GOLD_MINUTE).open_input_file(other.path) as file:
        assert file.size() == entry.bytes


def test_bronze_and_silver_attempts_have_the_same_columns() -> None:
    assert schemas.BRONZE_ATTEMPTS.stored == schemas.SILVER_ATTEMPTS.stored


def test_files_without_a_newer_column_are_read_with_null(root: str) -> None:
    lake = Lake(root).create()
    whole = schemas.TABLES[TABLE.path]
    fewer = schemas.TableSchema(
        TABLE.path, tuple(c for c in whole.columns if c.name != "wait_max_ms"), whole.keys, whole.ranged
    )
    writer = TableWriter(lake.place, fewer)
    writer.write(pa.Table.from_pylist([{**row(1), "schema_version": 1}], schema=fewer.arrow))
    names = ["date", "wait_max_ms", "window_start"]
    (entry,) = writer.close()
    (batch,) = read_entries(lake.place, [entry], names)
    assert batch.to_pylist() == [{"date": date(2026, 1, 1), "wait_max_ms": None, "window_start": 1}]


def test_rows_of_a_day_are_cut_by_the_hour_where_the_table_says_so(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path)).create()
    hour = 3_600_000
    assert TABLE.chunk_ms == hour
    written = write_literal(lake.place, TABLE, [row(n * hour // 2) for n in range(6)])
    assert sorted(entry.ranges["window_start"] for entry in written) == [
        (n * hour, n * hour + hour // 2) for n in range(3)
    ]


def test_erased_jobs_are_remembered_however_few_days_silver_is_kept(tmp_path: Path) -> None:
    lake, table = Lake(str(tmp_path)).create(), schemas.SILVER_ERASED_JOBS
    facts = {"source": "s", "job_hash": "h", "erased_ms": 1, "date": date(2020, 1, 1)}
    lake.commit(table, write_literal(lake.place, table, [facts]))
    assert prune(lake, Retention(silver_days=1), date(2026, 7, 1)) == []
    assert len(lake.entries(table)) == 1
