"""The lake's protocol: all of a change or nothing, whatever line the writer dies at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windlass.errors import ConfigError
from windlass.pipeline import lake as lake_module
from windlass.pipeline import schemas
from windlass.pipeline.compact import Retention, prune
from windlass.pipeline.files import Files, HadoopFiles, LocalFiles
from windlass.pipeline.lake import Lake, LakeError, LakeTakenError, Transaction, stray_files
from windlass.testing.faults import probing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = schemas.GOLD_BACKLOG
POINTS = ["lake.staged", "lake.intent", "lake.moved", "lake.placed", "lake.committed"]


class Crash(BaseException):
    """The process dies here: nothing may catch it."""


def crash(point: str, facts: dict[str, Any]) -> None:
    raise Crash(point)


def opened(root: Path) -> Lake:
    lake = Lake(LocalFiles(root))
    lake.open_writer()
    return lake


def put(txn: Transaction, value: int, day: str = "2026-01-01") -> None:
    """Stage one file with one row."""
    folder = Path(txn.target("new")) / f"date={day}"
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table({"window_start": pa.array([value], pa.int64())})
    pq.write_table(table, folder / f"part-{value}.parquet")


def change(lake: Lake, value: int, *, replace: bool = True, day: str = "2026-01-01") -> None:
    """Replace everything by one row, and move the offset."""
    txn = lake.begin()
    put(txn, value, day)
    if replace:
        txn.drop(list(lake.state.files.values()))
    txn.take(TABLE, txn.folder("new"))
    lake.commit(txn, "batch", {"s": {"q": value}}, {})


def values(root: Path) -> list[int]:
    """What a plain glob over the tree finds."""
    paths = sorted(path for path in root.rglob("*.parquet") if "_windlass" not in path.parts)
    return sorted(value for path in paths for value in pq.read_table(path).column("window_start").to_pylist())


def test_a_change_adds_replaces_and_moves_the_offsets(tmp_path: Path) -> None:
    lake = opened(tmp_path)
    change(lake, 1)
    change(lake, 2)
    assert values(tmp_path) == [2]
    assert lake.state.offsets == {"s": {"q": 2}}
    (entry,) = lake.state.files.values()
    assert (entry.rows, entry.date, entry.ranges) == (1, "2026-01-01", {"window_start": (2, 2)})
    again = Lake(LocalFiles(tmp_path))
    assert again.load() == lake.state
    assert stray_files(again) == ([], [])
    assert list(lake.files.walk("_windlass/trash")) == []


@pytest.mark.parametrize("point", POINTS)
def test_after_a_crash_a_change_is_whole_or_absent(tmp_path: Path, point: str) -> None:
    change(opened(tmp_path), 1)
    with probing() as probe, pytest.raises(Crash):
        lake = opened(tmp_path)
        probe.arm(point, crash)
        change(lake, 2)
    lake = opened(tmp_path)
    want = 1 if point == "lake.staged" else 2
    assert values(tmp_path) == [want]
    assert lake.state.offsets == {"s": {"q": want}}
    assert stray_files(lake) == ([], [])
    assert lake.files.names("_windlass/intents") == []
    assert list(lake.files.walk("_windlass/staging")) == list(lake.files.walk("_windlass/trash")) == []
    change(lake, 3)
    assert values(tmp_path) == [3]


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_crash_during_recovery_is_recovered_too(tmp_path: Path, nth: int) -> None:
    lake = opened(tmp_path)
    for value in (1, 2, 3):
        change(lake, value, replace=False)
    with probing() as probe:
        probe.arm("lake.intent", crash)
        with pytest.raises(Crash):
            change(lake, 4)
        probe.arm("lake.moved", lambda point, facts: None, times=nth - 1)
        probe.arm("lake.moved", crash)
        with pytest.raises(Crash):
            opened(tmp_path)
    opened(tmp_path)
    assert values(tmp_path) == [4]


def test_an_earlier_writer_is_shut_out(tmp_path: Path) -> None:
    first = opened(tmp_path)
    second = opened(tmp_path)
    with pytest.raises(LakeTakenError):
        change(first, 1)
    change(second, 2)
    assert values(tmp_path) == [2]
    assert stray_files(second) == ([], [])


def test_a_writer_that_comes_late_finishes_the_change_of_a_slow_one(tmp_path: Path) -> None:
    slow = opened(tmp_path)
    late: list[Lake] = []
    with probing() as probe:
        probe.arm("lake.intent", lambda point, facts: late.append(opened(tmp_path)))
        change(slow, 1)  # both carry out the same change
    assert values(tmp_path) == [1]
    change(late[0], 2)
    assert values(tmp_path) == [2]
    with pytest.raises(LakeTakenError):
        change(slow, 3)
    assert values(tmp_path) == [2]


def test_a_stale_intent_of_a_finished_change_is_ignored(tmp_path: Path) -> None:
    first = opened(tmp_path)
    opened(tmp_path)  # took the number that the first would take, and tidied its intent away
    with pytest.raises(LakeTakenError):
        change(first, 1)
    assert first.files.names("_windlass/intents") == []


def test_opening_replays_a_bounded_number_of_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_module, "SNAPSHOT_EVERY", 4)
    monkeypatch.setattr(lake_module, "COMMITS_KEPT", 8)
    lake = opened(tmp_path)
    for value in range(60):
        change(lake, value)
    read: list[str] = []
    files = LocalFiles(tmp_path)
    again = Lake(Watched(files, read))  # type: ignore[arg-type]  # forwards everything
    assert again.load() == lake.state
    assert len(read) <= 3 + 4 + 1
    assert len(files.names("_windlass/commits")) <= 8 + 4
    assert len(files.names("_windlass/snapshots")) <= 2


class Watched:
    """Files that note what is read."""

    def __init__(self, files: Files, read: list[str]) -> None:
        self._files, self._read = files, read

    def __getattr__(self, name: str) -> Callable[..., Any]:
        inner: Callable[..., Any] = getattr(self._files, name)
        if name != "read":
            return inner

        def read(path: str) -> Any:
            self._read.append(path)
            return inner(path)

        return read


def test_a_lake_loads_without_its_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_module, "SNAPSHOT_EVERY", 3)
    lake = opened(tmp_path)
    for value in range(8):
        change(lake, value)
    (tmp_path / "_windlass/latest").unlink()
    assert Lake(LocalFiles(tmp_path)).load() == lake.state


def test_a_missing_lake_and_a_newer_format_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pipeline run"):
        Lake(LocalFiles(tmp_path)).load()
    opened(tmp_path)
    (tmp_path / "_windlass/lake.json").write_text('{"lake_id":"x","format":99}')
    with pytest.raises(ConfigError, match="upgrade"):
        Lake(LocalFiles(tmp_path)).load()


def test_reading_does_not_write(tmp_path: Path) -> None:
    change(opened(tmp_path), 1)
    before = sorted(tmp_path.rglob("*"))
    lake = Lake(LocalFiles(tmp_path))
    lake.load()
    with pytest.raises(LakeError, match="reading only"):
        lake.begin()
    assert sorted(tmp_path.rglob("*")) == before


def test_prune_drops_dates_past_their_keep(tmp_path: Path) -> None:
    lake = opened(tmp_path)
    for day in ("2020-01-01", "2026-01-01", "2026-06-01"):
        change(lake, int(day[:4] + day[5:7]), replace=False, day=day)
    gone = prune(lake, Retention(gold_days=200), date(2026, 7, 1))
    assert [entry.date for entry in gone] == ["2020-01-01"]
    assert values(tmp_path) == [202601, 202606]
    assert prune(lake, Retention(gold_days=200), date(2026, 7, 1)) == []


# --- files ------------------------------------------------------------------------------------------------


def test_local_files_keep_the_contract(tmp_path: Path) -> None:
    check_files(LocalFiles(tmp_path))


def test_hadoop_files_keep_the_contract(spark: SparkSession, tmp_path: Path) -> None:
    check_files(HadoopFiles(f"file://{tmp_path}", spark))


def check_files(files: Files) -> None:
    assert files.create("a/b.json", b"one")
    assert not files.create("a/b.json", b"two")
    assert files.read("a/b.json") == b"one"
    files.replace("a/b.json", b"three")
    assert (files.read("a/b.json"), files.size("a/b.json")) == (b"three", 5)
    files.move("a/b.json", "c/d/e.json")
    assert (files.exists("a/b.json"), files.exists("c/d/e.json")) == (False, True)
    assert (files.names("c"), files.names("nowhere")) == (["d"], [])
    assert list(files.walk("c")) == ["c/d/e.json"]
    with files.open("c/d/e.json") as file:
        assert (file.seek(2), file.read(2), file.seek(-1, 2), file.read()) == (2, b"re", 4, b"e")
    files.sync("c/d/e.json")
    with pytest.raises(FileNotFoundError):
        files.read("a/b.json")
    files.delete("c")
    files.delete("c")
    assert list(files.walk("c")) == []
