"""A store that the test drives request by request, and rows from a few named values."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from windlass.backend import requests as rq
from windlass.backend.urls import open_backend
from windlass.core.ids import new_id
from windlass.core.job import ErrorInfo, JobRecord, JobRef, NewJob
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement
from windlass.pipeline import schemas

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from windlass.pipeline.lake import Lake

#: 2023-11-14 22:13:20 UTC.
START_MS = 1_700_000_000_000
DAY_MS = 86_400_000
DATE = "2023-11-14"
#: The stores that a lake can be filled from.
BACKENDS = ("sqlite", "valkey", "file", "amqp")
R = TypeVar("R")


def store_url(backend: str, folder: Path) -> str:
    """The URL of an empty store: in ``folder``, or a namespace of this process's own server."""
    if backend == "sqlite":
        return f"sqlite:///{folder / 'jobs.db'}"
    if backend == "file":
        return f"file://{folder / 'jobs'}"
    if backend == "amqp":
        from tests.backends.amqp.servers import broker_url

        return f"{broker_url()}?namespace={new_id()}"
    from tests.backends.valkey.servers import valkey_server

    return f"{valkey_server().url}?namespace={new_id()}"


class Bench:
    """One store; every request carries this clock's time."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.now_ms = START_MS
        self._runner = asyncio.Runner()
        self._backend = open_backend(self.url)

    def __enter__(self) -> Bench:
        self._runner.run(self._backend.open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._backend.name == "amqp":
                self._runner.run(self._clear_broker())
            self._runner.run(self._backend.close())
        finally:
            self._runner.close()

    async def _clear_broker(self) -> None:
        """Leave nothing on a broker that other tests use too."""
        from tests.backends.amqp.servers import clear
        from windlass.backends.amqp import AmqpBackend

        assert isinstance(self._backend, AmqpBackend)
        queues = await self._backend.execute(rq.ListQueues())
        self._backend.names.used.update(info.name for info in queues)
        await clear(self._backend)

    def ask(self, request: rq.Request[R]) -> R:
        request.now_ms = self.now_ms
        return self._runner.run(self._backend.execute(request))

    def ask_now(self, request: rq.Request[R]) -> R:
        """A request by the store's own clock."""
        return self._runner.run(self._backend.execute(request))

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms

    def add(
        self, queue: str, ids: Iterable[str], *, task: str = "work", delay_ms: int = 0, **options: Any
    ) -> list[rq.Added]:
        """Jobs with these ids."""
        stored = StoredOptions(**options)
        jobs = [
            NewJob(queue=queue, id=id, task=task, payload=b'{"args":[1]}', delay_ms=delay_ms, options=stored)
            for id in ids
        ]
        return self.ask(rq.Add(jobs=jobs))

    def claim(self, *queues: str, limit: int = 1_000, worker: str = "w1") -> list[JobRecord]:
        wanted = [rq.ClaimQueue(name, limit, limit) for name in queues]
        request = rq.Claim(worker=worker, queues=wanted, limit=limit, claim_id=new_id(), lease_ms=30_000)
        return self.ask(request).jobs

    def settle(self, jobs: Sequence[JobRecord], outcome: Outcome, **fields: Any) -> None:
        items = [
            Settlement(queue=job.queue, id=job.id, token=job.token or "", outcome=outcome, **fields)
            for job in jobs
        ]
        self.ask(rq.Settle(items=items))

    def work(
        self,
        *queues: str,
        outcome: Outcome = Outcome.COMPLETE,
        wait_ms: int = 5,
        run_ms: int = 7,
        **fields: Any,
    ) -> int:
        """Run everything that is ready to the same end; returns how many attempts that were."""
        self.pass_ms(wait_ms)
        jobs = self.claim(*queues)
        self.pass_ms(run_ms)
        self.settle(jobs, outcome, duration_ms=run_ms, **fields)
        return len(jobs)

    def cancel(self, queue: str, *ids: str) -> None:
        self.ask(rq.CancelJobs(refs=[JobRef(queue, id) for id in ids]))

    def counters(self) -> Counter[tuple[str, str, str]]:
        """Lifetime totals of attempts by queue, task and outcome."""
        return Counter(
            {
                (r.queue, r.task, r.outcome): r.total
                for r in self.ask(rq.ReadCounters())
                if r.task and r.outcome != "enqueued"
            }
        )


def error(name: str = "ValueError") -> ErrorInfo:
    return ErrorInfo(error_class=name, message="bad", fingerprint=f"print-{name}")


def busy_day(bench: Bench, rounds: int = 3, jobs: int = 20) -> None:
    """A bit of everything: retries, failures, snoozes, releases, cancels, lost workers, ids used again."""
    for turn in range(rounds):
        bench.add("mail", [f"m{turn}-{n}" for n in range(jobs)], task="send")
        # The same ids every time: each is a new job, since its result is gone by then.
        bench.add("pdf", [f"p{n}" for n in range(jobs // 2)], task="render", result_ttl_ms=0)
        bench.cancel("mail", f"m{turn}-0", f"m{turn}-1")
        bench.pass_ms(turn * 1_000 + 11)
        leased = bench.claim("mail", limit=jobs - 4)
        bench.pass_ms(40 + turn)
        third = len(leased) // 4
        bench.settle(leased[:third], Outcome.COMPLETE, duration_ms=37)
        bench.settle(leased[third : 2 * third], Outcome.RETRY, delay_ms=500, error=error(), duration_ms=30)
        bench.settle(leased[2 * third : 3 * third], Outcome.FAIL, error=error("KeyError"), duration_ms=5_000)
        bench.settle(leased[3 * third : 3 * third + 1], Outcome.SNOOZE, delay_ms=100)
        bench.settle(leased[3 * third + 1 : 3 * third + 2], Outcome.RELEASE)
        bench.pass_ms(60_000)  # the rest loses its lease
        bench.ask(rq.Recover())
        bench.work("mail", "pdf", run_ms=90 + turn)
        bench.pass_ms(600_000)
    bench.add("mail", ["late"], task="send")
    bench.pass_ms(DAY_MS)
    bench.work("mail", "pdf")


# --- rows ---------------------------------------------------------------------------------------------


def attempt(**given: Any) -> dict[str, Any]:
    """An attempt with plain values where none are given."""
    number = next(_numbers)
    row: dict[str, Any] = {
        "run_id": f"run-{number}",
        "job_id": f"job-{number}",
        "attempt": 1,
        "delivery": 1,
        "queue": "mail",
        "task": "send",
        "group": None,
        "tags": [],
        "worker": "w1",
        "enqueued_ms": START_MS,
        "ready_ms": START_MS,
        "started_ms": START_MS + 10,
        "finished_ms": START_MS + 30,
        "wait_ms": 10,
        "duration_ms": 20,
        "outcome": "completed",
        "error_class": None,
        "error_fingerprint": None,
        "schema_version": 2,
        "priority": 0,
        "cost": 1,
        "source": "default",
        "batch": 1,
    }
    return {**row, **given}


def _count() -> Iterable[int]:
    number = 0
    while True:
        number += 1
        yield number


_numbers = iter(_count())


def make_df(spark: SparkSession, table: schemas.TableSchema, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Rows of a table; its ``date`` follows from ``finished_ms`` unless given."""
    return spark.createDataFrame(
        [tuple(_value(row, name) for name in table.names) for row in rows], table.spark
    )


def make_table(table: schemas.TableSchema, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """``make_df`` in Arrow."""
    import pyarrow as pa

    filled = [{name: _value(row, name) for name in table.names} for row in rows]
    return pa.Table.from_pylist(filled, schema=table.arrow)


def _value(row: Mapping[str, Any], name: str) -> Any:
    from datetime import UTC, datetime

    if name == "date" and "date" not in row:
        return datetime.fromtimestamp(row["finished_ms"] / 1000, UTC).date()
    return row.get(name)


def fill_lake(
    root: str, rows: Mapping[schemas.TableSchema, pa.Table], queues: Mapping[str, int] = {}
) -> Lake:
    """A lake after its first batch, which has read ``queues`` so far, without Spark."""
    from windlass.pipeline.files import TableWriter
    from windlass.pipeline.lake import Lake

    lake = Lake(root).create()
    note = {"source": "default", "batch": 1, "offsets": {"default": queues}, "gaps": [], "seen_ms": START_MS}
    for table in schemas.BATCHED:
        writer = TableWriter(lake.place, schemas.TABLES[table.path])
        if table in rows:
            writer.write(rows[table])
        first = table is schemas.BRONZE_ATTEMPTS
        lake.commit(table, writer.close(), batches={"default": 1}, note=note if first else None)
    return lake


def arrow_rows(rows: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    """``rows_of`` of an Arrow table."""
    return sorted((tuple(row.values()) for row in rows.select(names).to_pylist()), key=repr)


def rows_of(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """The rows, sorted, with these columns only."""
    chosen = frame.select(*names) if names else frame
    return sorted((tuple(row) for row in chosen.collect()), key=repr)
