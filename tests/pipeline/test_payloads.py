"""Arguments and results in the lake: only on request, masked, bounded, and gone when they are erased."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pytest

from tests.pipeline.support import DAY_MS, Bench, attempt, fill_lake, make_table, store_url
from tests.pipeline.test_erase import holds
from tests.pipeline.test_run import contents, run, totals
from windlass.backend import requests as rq
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import JobRef, NewJob, error_info
from windlass.core.masks import HIDDEN
from windlass.core.outcome import Outcome
from windlass.errors import ConfigError
from windlass.pipeline import schemas
from windlass.pipeline.backfill import DayRebuild, StoredPayloads, rebuild
from windlass.pipeline.compact import vacuum
from windlass.pipeline.erase import Erased, erase
from windlass.pipeline.files import read_entries
from windlass.pipeline.lake import Lake
from windlass.pipeline.payloads import Payloads, select_where
from windlass.pipeline.replay import select_failed
from windlass.pipeline.source import HistoryRange, queue_bounds, read_range
from windlass.pipeline.spark_tasks import AddPayloads, CopyLog
from windlass.pipeline.sqlquery import query
from windlass.pipeline.transforms.job_rows import job_parts, merged_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = schemas.PAYLOADS
PAYLOADS = {
    "ada": {"kwargs": {"customer": 42, "password": "hunter2", "card": {"cvc": 123, "kind": "debit"}}},
    "bob": {"args": ["x", 7], "kwargs": {"customer": 7}},
    "long": {"kwargs": {"text": "y" * 300}},
    "gone": {"kwargs": {"customer": 42}},
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A store by the clock of the machine: results are kept for a while only."""
    with Bench(store_url("sqlite", tmp_path)) as bench:
        bench.now_ms = SYSTEM_CLOCK.now_ms() - 10_000
        yield bench


def add(bench: Bench, payloads: dict[str, Any] = PAYLOADS) -> None:
    jobs = [
        NewJob(queue="pay", id=id, task="charge", payload=json.dumps(data).encode())
        for id, data in payloads.items()
    ]
    bench.ask(rq.Add(jobs=jobs))


def finish(bench: Bench) -> None:
    """The first job completes with a result, the others fail with a timeout; one record is removed."""
    for job in bench.claim("pay"):
        if job.id == "ada":
            bench.settle([job], Outcome.COMPLETE, result=b'{"receipt":5,"token":"abc"}')
        else:
            bench.settle([job], Outcome.FAIL, error=error_info("E", "timeout"))
    bench.ask(rq.RemoveJobs(refs=[JobRef("pay", "gone")]))


def texts(lake: Path | str, view: str) -> dict[str, tuple[Any, ...]]:
    rows = query(str(lake), f"SELECT job_id, {', '.join(COLUMNS)} FROM {view}").rows
    return {
        job_id: (args and json.loads(args), size, result and json.loads(result), length)
        for job_id, args, size, result, length in rows
    }


def stored_bytes(id: str) -> int:
    return len(json.dumps(PAYLOADS[id]))


WANT: dict[str, tuple[Any, ...]] = {
    "ada": (
        {"customer": 42, "password": HIDDEN, "card": {"cvc": HIDDEN, "kind": "debit"}},
        stored_bytes("ada"),
        {"receipt": 5, "token": HIDDEN},
        27,
    ),
    "bob": ({"arg0": "x", "arg1": 7, "customer": 7}, stored_bytes("bob"), None, None),
    "long": (None, stored_bytes("long"), None, None),
    "gone": (None, None, None, None),
}


@pytest.mark.feature("Q11")
def test_arguments_and_results_are_kept_on_request_and_erased_with_their_job(
    spark: SparkSession, bench: Bench, tmp_path: Path
) -> None:
    add(bench)
    finish(bench)
    plain, lake = tmp_path / "plain", tmp_path / "lake"
    run(spark, bench, plain)
    assert set(texts(plain, "jobs").values()) == {(None, None, None, None)}
    stored = StoredPayloads(bench.url, "default", Payloads(max_bytes=200))
    assert len(rebuild(spark, Lake(str(plain)).create(), stored=stored)) == 1  # what the run left out
    for view in ("bronze_attempts", "attempts", "jobs"):
        assert texts(plain, view) == WANT, view
    pipeline = run(spark, bench, lake, payloads=True, payload_bytes=200)
    for view in ("bronze_attempts", "attempts", "jobs"):
        assert texts(lake, view) == WANT, view
    before = contents(lake)
    rebuild(spark, pipeline.lake)
    assert contents(lake) == before
    assert erase(Lake(str(lake)).open(), "args.customer = 42") == Erased(1, 1)
    vacuum(Lake(str(lake)).open(), 0)
    assert texts(lake, "jobs") == {id: want for id, want in WANT.items() if id != "ada"}
    assert holds(lake, "ada", "debit") == []
    assert not [name for name in COLUMNS if name in schemas.SILVER_ERASED.names]
    pipeline.lake.refresh()
    rebuild(spark, pipeline.lake)
    assert "ada" not in texts(lake, "jobs")


#: On which day a job was added, and on which it ran. Nothing ended on day 3.
LATER = {"early": (0, 0), "before": (0, 1), "late": (1, 2), "long": (1, 4), "free": (3, 4)}


@pytest.mark.feature("Q11")
@pytest.mark.parametrize("interrupted", [False, True], ids=["at once", "started again"])
def test_a_backfill_gives_texts_to_jobs_that_were_added_on_another_day_than_they_ran(
    spark: SparkSession, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    first = bench.now_ms - bench.now_ms % DAY_MS - 5 * DAY_MS
    for day in range(5):
        bench.now_ms = first + day * DAY_MS
        for id, (added, ran) in LATER.items():
            if added == day:
                bench.add("mail", [id], delay_ms=(ran - added) * DAY_MS, result_ttl_ms=90 * DAY_MS)
        bench.work("mail")
    root = tmp_path / "lake"
    run(spark, bench, root)
    stored = StoredPayloads(bench.url, "default", Payloads())
    since = datetime.fromtimestamp((first + DAY_MS) / 1000, UTC).date()
    if interrupted:
        with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):
            broken.setattr(DayRebuild, "jobs", Mock(side_effect=KeyboardInterrupt))
            rebuild(spark, Lake(str(root)).create(), since, stored=stored)
    assert len(rebuild(spark, Lake(str(root)).create(), since, stored=stored)) == 3
    want = {id: {"arg0": 1} if ran else None for id, (_, ran) in LATER.items()}
    for view in ("bronze_attempts", "attempts", "jobs"):
        assert {id: args for id, (args, *_) in texts(root, view).items()} == want, view
    assert totals(root, "day") == bench.counters()
    assert erase(Lake(str(root)).open(), "args.arg0 = 1") == Erased(4, 4)


# --- without Spark ----------------------------------------------------------------------------------------


def attempts_with_payloads(bench: Bench, **options: Any) -> list[dict[str, Any]]:
    newest = queue_bounds(bench.ask_now, "pay").newest
    (batch,) = read_range(bench.url, HistoryRange("pay", 0, newest))
    pieces = Payloads(**options).of_attempts(bench.ask_now, batch)
    return [row for piece in pieces for row in piece.to_pylist()]


def test_names_of_the_caller_are_masked_too_and_a_star_hides_all(bench: Bench) -> None:
    add(bench)
    finish(bench)
    rows = {row["job_id"]: row for row in attempts_with_payloads(bench, mask=("customer", "arg0"))}
    assert json.loads(rows["bob"]["args"]) == {"arg0": HIDDEN, "arg1": 7, "customer": HIDDEN}
    assert json.loads(rows["ada"]["args"])["password"] == "hunter2"
    rows = {row["job_id"]: row for row in attempts_with_payloads(bench, mask=("*",))}
    assert {json.loads(row["args"]) for id, row in rows.items() if id != "gone"} == {HIDDEN}
    assert json.loads(rows["ada"]["result"]) == HIDDEN


def test_a_task_reads_the_log_with_the_payloads_of_its_jobs(bench: Bench, tmp_path: Path) -> None:
    add(bench)
    finish(bench)
    lake = Lake(str(tmp_path / "lake")).create()
    task = CopyLog(lake.place, bench.url, ("default", 1), [HistoryRange("pay", 0, 4)], Payloads())
    written, digest = task()
    rows = [row for part in read_entries(lake.place, written, ["job_id", "args"]) for row in part.to_pylist()]
    assert {row["job_id"] for row in rows if row["args"] is not None} == {"ada", "bob", "long"}
    assert len(digest.runs) == 4 * 8


def test_rows_of_bronze_get_the_payloads_that_they_lack_and_only_those(bench: Bench, tmp_path: Path) -> None:
    add(bench)
    finish(bench)
    lake = Lake(str(tmp_path / "lake")).create()
    (bare,), _ = CopyLog(lake.place, bench.url, ("default", 1), [HistoryRange("pay", 0, 4)])()
    for source, kept in (("other", 0), ("default", 3)):
        (made,) = AddPayloads(lake.place, bench.url, source, bare, Payloads())()
        assert (made == bare) == (kept == 0)
        (rows,) = read_entries(lake.place, [made], schemas.BRONZE_ATTEMPTS.names)
        assert rows.num_rows - rows.column("args_bytes").null_count == kept
    # Texts that are there stay as they are, and so does a file to which the store adds nothing.
    assert AddPayloads(lake.place, bench.url, "default", made, Payloads(("*",)))() == [made]


def test_a_payload_that_cannot_be_read_leaves_its_size(bench: Bench) -> None:
    jobs = [
        NewJob(queue="pay", id="strange", task="charge", payload=b"\x00\x01", codec="pickle"),
        NewJob(queue="pay", id="broken", task="charge", payload=b"[", codec="json"),
    ]
    bench.ask(rq.Add(jobs=jobs))
    assert bench.work("pay") == 2
    kept = {row["job_id"]: (row["args"], row["args_bytes"]) for row in attempts_with_payloads(bench)}
    assert kept == {"strange": (None, 2), "broken": (None, 1)}


def test_a_small_payload_that_decompresses_to_a_large_one_is_not_read(bench: Bench) -> None:
    bomb = zlib.compress(b'{"args":[' + b"[]," * 500_000 + b'"password"]}', 9)
    bench.ask(rq.Add(jobs=[NewJob(queue="pay", id="b", task="charge", payload=bomb, codec="json+zlib")]))
    assert bench.work("pay") == 1
    (row,) = attempts_with_payloads(bench, max_bytes=10_000_000)
    assert (row["args"], row["args_bytes"]) == (None, len(bomb))


def test_names_that_are_bytes_are_masked_like_texts(bench: Bench) -> None:
    payload = msgspec.msgpack.encode({"kwargs": {"by": {b"password": "hunter2", b"to": "ada"}}})
    bench.ask(rq.Add(jobs=[NewJob(queue="pay", id="b", task="charge", payload=payload, codec="msgpack")]))
    assert bench.work("pay") == 1
    (row,) = attempts_with_payloads(bench)
    assert "hunter2" not in row["args"]
    assert HIDDEN in row["args"]


def test_arguments_of_an_id_that_is_used_again_are_not_those_of_the_first_job(bench: Bench) -> None:
    add(bench, {"ada": PAYLOADS["ada"]})
    bench.work("pay")
    bench.ask(rq.RemoveJobs(refs=[JobRef("pay", "ada")]))
    bench.pass_ms(5)
    add(bench, {"ada": PAYLOADS["bob"]})
    assert [row["args"] for row in attempts_with_payloads(bench)] == [None]


def test_a_job_keeps_the_arguments_of_the_newest_record_that_has_them() -> None:
    texts = {"args": '{"a":1}', "args_bytes": 9}
    newer = {"args": '{"a":2}', "args_bytes": 9, "result": "3", "result_bytes": 1}
    rows = [
        attempt(job_id="j", run_id="1", outcome="retrying", finished_ms=10, **texts),
        attempt(job_id="j", run_id="2", outcome="completed", finished_ms=20, **newer),
        attempt(job_id="j", run_id="3", outcome="completed", finished_ms=30),
    ]
    (job,) = merged_jobs(job_parts(make_table(schemas.SILVER_ATTEMPTS, rows))).to_pylist()
    assert [job[name] for name in COLUMNS] == ['{"a":2}', 9, "3", 1]
    assert (job["last_run_id"], job["records"]) == ("3", 3)


def without_payloads(table: schemas.TableSchema) -> schemas.TableSchema:
    columns = tuple(column for column in table.columns if column.name not in COLUMNS)
    return schemas.TableSchema(table.path, columns, table.keys, table.ranged)


def test_a_lake_of_an_earlier_release_gets_the_columns(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = (schemas.BRONZE_ATTEMPTS, schemas.SILVER_ATTEMPTS, schemas.SILVER_JOBS)
    root = str(tmp_path / "lake")
    with monkeypatch.context() as earlier:
        for table in changed:
            earlier.setitem(schemas.TABLES, table.path, without_payloads(table))
        attempts = make_table(schemas.SILVER_ATTEMPTS, [attempt(job_id="old")])
        lake = fill_lake(root, dict.fromkeys(changed[:2], attempts) | {changed[2]: job_parts(attempts)})
        assert "args" not in lake.delta(schemas.SILVER_JOBS).to_pyarrow_dataset().schema.names
    newer = Lake(root).create()
    for table in changed:
        assert set(COLUMNS) <= set(newer.delta(table).to_pyarrow_dataset().schema.names)
    add(bench)
    finish(bench)
    written, _ = CopyLog(newer.place, bench.url, ("default", 2), [HistoryRange("pay", 0, 4)], Payloads())()
    newer.commit(schemas.BRONZE_ATTEMPTS, written, batches={"default": 2}, note=newer.note())
    rows_now = newer.delta(schemas.BRONZE_ATTEMPTS).to_pyarrow_dataset().to_table(columns=["job_id", "args"])
    found = {row["job_id"]: row["args"] is not None for row in rows_now.to_pylist()}
    assert found == {"old": False, "ada": True, "bob": True, "long": True, "gone": False}


def test_replay_reads_arguments_from_the_lake_and_others_from_the_store(bench: Bench, tmp_path: Path) -> None:
    add(bench)
    for job in bench.claim("pay"):
        bench.settle([job], Outcome.FAIL, error=error_info("E", "timeout"))
    (batch,) = read_range(bench.url, HistoryRange("pay", 0, 4))
    attempts = pa.concat_tables(Payloads().of_attempts(bench.ask_now, batch))
    bench.ask(rq.RemoveJobs(refs=[JobRef("pay", "gone")]))
    root = str(tmp_path / "lake")
    rows = make_table(schemas.SILVER_ATTEMPTS, [{**row, "source": "default"} for row in attempts.to_pylist()])
    # As if one of the batches had been read without payloads.
    known = [{**row, "args": None} if row["job_id"] == "ada" else row for row in job_parts(rows).to_pylist()]
    fill_lake(root, {schemas.SILVER_JOBS: pa.Table.from_pylist(known, schema=schemas.SILVER_JOBS.arrow)})

    def chosen(where: str, url: str | None = bench.url) -> list[str]:
        return [job.job_id for job in select_failed(root, where, url=url)]

    assert sorted(chosen("error_message like '%timeout%' and args.customer = 42")) == ["ada", "gone"]
    assert chosen("args.customer = 42", url=None) == ["gone"]
    assert chosen("args.card.kind = 'debit'") == ["ada"]
    assert chosen("args like '%\"customer\":7}'") == ["bob"]  # the text as a whole


def lake_of_texts(root: Path, args: dict[str, str | None], **columns: Any) -> Lake:
    """A lake of jobs with these texts; all of them failed."""
    rows = [
        attempt(job_id=id, run_id=id, outcome="failed", args=text, **columns) for id, text in args.items()
    ]
    jobs = job_parts(make_table(schemas.SILVER_ATTEMPTS, rows))
    return fill_lake(str(root / "lake"), {schemas.SILVER_JOBS: jobs})


def ids_where(lake: Lake, where: str) -> list[str]:
    return sorted(select_where(lake, ["job_id"], where).column(0).to_pylist())


def test_a_condition_on_arguments_also_chooses_jobs_without_a_text(tmp_path: Path) -> None:
    lake = lake_of_texts(tmp_path, {"with": '{"customer":42}', "without": None}, tags=["customer-42"])
    both = ["with", "without"]
    assert ids_where(lake, "list_contains(tags, 'customer-42') or args.customer = 42") == both
    assert ids_where(lake, "args.customer = 42") == ["with"]
    assert ids_where(lake, "args.customer IS NULL") == ["without"]


def test_text_in_quotes_is_no_condition_on_arguments(tmp_path: Path) -> None:
    lake = lake_of_texts(tmp_path, {"with": '{"a":"args."}', "without": None}, error_message="wrong args.x")
    assert ids_where(lake, "error_message like '%wrong args.%'") == ["with", "without"]
    assert ids_where(lake, "args like '%it''s%' or args like '%args.%'") == ["with"]  # the text as a whole


def test_names_that_differ_by_case_or_are_empty_leave_other_conditions_alone(tmp_path: Path) -> None:
    texts: dict[str, str | None] = {
        "a": '{"userId":1,"customer":42,"card":{"kind":"debit"}}',
        "b": '{"userid":2,"":3,"customer":42,"list":[{"k":1,"K":2}],"odd":{"k":1,"K":2,"":3}}',
    }
    lake = lake_of_texts(tmp_path, texts)
    assert ids_where(lake, "args.customer = 42") == ["a", "b"]
    assert ids_where(lake, "args.card.kind = 'debit'") == ["a"]
    assert ids_where(lake, "args.odd like '%\"K\":2%'") == ["b"]
    assert ids_where(lake, "args->>'userid' = '2'") == ["b"]
    with pytest.raises(ConfigError, match="userid"):
        ids_where(lake, "args.userid = 2")


@pytest.mark.parametrize("name", ["args.customer", 'args . "Customer"', 'args."a\'b/c".id'])
def test_large_numbers_beside_fractions_are_not_compared_as_fractions(tmp_path: Path, name: str) -> None:
    numbers = {"a": 2**53, "b": 2**53 + 1, "c": 0.5, "d": 7}
    texts: dict[str, str | None] = {
        id: json.dumps({"customer": number, "a'b/c": {"id": number}, "n": number // 2**53})
        for id, number in numbers.items()
    }
    lake = lake_of_texts(tmp_path, texts)
    with pytest.raises(ConfigError, match="whole numbers of more than 53 bits"):
        ids_where(lake, f"{name} = {2**53}")
    assert ids_where(lake, f"args->>'customer' = '{2**53}'") == ["a"]
    assert ids_where(lake, "args.n = 1") == ["a", "b"]  # the condition names another argument


def test_large_numbers_are_compared_exactly(tmp_path: Path) -> None:
    texts: dict[str, str | None] = {str(n): f'{{"id":{2**53 + n},"price":1e300}}' for n in range(3)}
    lake = lake_of_texts(tmp_path, {**texts, "x": '{"price":0.5}'})
    assert ids_where(lake, f"args.id = {2**53 + 1}") == ["1"]
    assert ids_where(lake, "args.price < 1") == ["x"]


def test_passwords_in_urls_are_masked_in_each_value(bench: Bench) -> None:
    urls = {"broker_url": "amqp://me:hunter2@mq/", "all": ["http://h:80", {"at": "x@y redis://:hunter2@r"}]}
    add(bench, {"ada": {"args": ["https://me@host/a:b@c", 7], "kwargs": urls}})
    (job,) = bench.claim("pay")
    bench.settle([job], Outcome.COMPLETE, result=b'["sqlite:///a.db","pg://u:hunter2@db"]')
    (row,) = attempts_with_payloads(bench)
    assert json.loads(row["args"]) == {
        "arg0": "https://me@host/a:b@c",
        "arg1": 7,
        "broker_url": f"amqp://me:{HIDDEN}@mq/",
        "all": ["http://h:80", {"at": f"x@y redis://:{HIDDEN}@r"}],
    }
    assert json.loads(row["result"]) == ["sqlite:///a.db", f"pg://u:{HIDDEN}@db"]
