"""``scripts/bench upgrade``: open a large SQLite file of an earlier release.

It creates a file as the release with schema 5 wrote it (with a million jobs by default), opens it, and adds
jobs one by one in another process until every table is STRICT. It prints how long that took, and how long
other calls had to wait meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._common import scratch
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.backends.sqlite.session import SqliteSession
from windlass.core.ids import new_id
from windlass.core.job import NewJob

OLD = Path(__file__).parents[1] / "tests" / "upgrade" / "schema-5.sql"
#: One job in five is waiting, the others have completed.
JOBS = """
INSERT INTO windlass_default_job (seq, queue, id, task, state, priority, place, payload, codec, options,
    enqueued_ms, ready_ms, started_ms, finished_ms, deliveries, settled_token, worker, result,
    result_until_ms, pad)
WITH RECURSIVE number (n) AS (SELECT 1001 UNION ALL SELECT n + 1 FROM number WHERE n < 1000 + ?1)
SELECT n, 1, 'job-' || n, 'send_mail', iif(n % 5, 'completed', 'waiting'), 0, n, randomblob(100), 'json',
    '{}', ?2, ?2, iif(n % 5, ?2, NULL), iif(n % 5, ?2 + n, NULL), n % 5 > 0,
    iif(n % 5, hex(randomblob(16)), NULL), iif(n % 5, 'worker-1', NULL),
    iif(n % 5, randomblob(30), NULL), iif(n % 5, ?2 + 86400000, NULL),
    iif(n % 5, NULL, zeroblob(96))
FROM number
"""


def make(path: Path, jobs: int) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as conn:
        conn.executescript(OLD.read_text(encoding="utf-8"))
        conn.execute("PRAGMA journal_mode = WAL")
        (now_ms,) = conn.execute("SELECT clock_ms FROM windlass_default_meta").fetchone()
        conn.execute(JOBS, (jobs, now_ms))


async def add_until_stopped(path: Path) -> None:
    """Add jobs one by one, and print how long each took. Runs in the other process."""
    store = open_backend(f"sqlite:///{path}")
    await store.open()
    print("ready", flush=True)
    took: list[float] = []
    stop_line = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    while not stop_line.done():
        began = time.perf_counter()
        job_id = new_id()
        job = NewJob(queue="other", id=job_id, task="t", payload=b"{}", request_id=job_id)
        await store.execute(rq.Add(jobs=[job]))
        took.append(time.perf_counter() - began)
        await asyncio.sleep(0.002)
    await store.close()
    print(len(took), max(took), sorted(took)[len(took) // 2], flush=True)


def _other(path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--add-to", str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def upgrade(path: Path) -> None:
    steps: list[float] = []
    real = SqliteSession.sweep

    def timed(session: SqliteSession) -> bool:
        began = time.perf_counter()
        try:
            return real(session)
        finally:
            steps.append(time.perf_counter() - began)

    SqliteSession.sweep = timed  # type: ignore[method-assign, assignment]
    size = os.stat(path).st_size
    store = open_backend(f"sqlite:///{path}")
    began = time.perf_counter()
    await store.open()
    opened = time.perf_counter() - began
    other = _other(path)
    session = store._store.session  # type: ignore[attr-defined]
    while session.sweep_due:  # noqa: ASYNC110 - the figures are about what happens meanwhile
        await asyncio.sleep(0.01)
    whole = time.perf_counter() - began
    said, _ = await asyncio.to_thread(other.communicate, "\n")
    await store.close()
    added, longest, median = said.split()[1:]
    halfway = sorted(steps)[len(steps) // 2]
    print(f"size: {size / 1e6:,.0f} MB before, {os.stat(path).st_size / 1e6:,.0f} MB after")
    print(f"opened after {opened:.3f} s; all tables STRICT after {whole:.1f} s ({len(steps)} steps here)")
    print(f"write lock held: {max(steps) * 1e3:.1f} ms at most, {halfway * 1e3:.1f} ms median")
    longest_ms, median_ms = float(longest) * 1e3, float(median) * 1e3
    print(f"another process added {added} jobs: {longest_ms:.1f} ms at most, {median_ms:.1f} ms median")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--add-to", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.add_to is not None:
        asyncio.run(add_until_stopped(options.add_to))
        return
    with scratch() as folder:
        path = Path(folder) / "jobs.db"
        make(path, options.jobs)
        asyncio.run(upgrade(path))


if __name__ == "__main__":
    main()
