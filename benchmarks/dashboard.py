"""``scripts/bench dashboard``: what each page asks of the API, on a full store and on an empty one.

A store is filled with finished jobs (a million by default) of five tasks over the last 30 days, one in
twenty of them failed, and with some waiting and scheduled jobs. Then the API calls of each page are made one
after the other, without a network. It prints the 95th percentile, the same for an empty store, and the mean
CPU time, which is more reliable on a shared machine.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
from rich.table import Table

from benchmarks._common import Report, console, percentile, scratch
from tools.services.valkey import Server, valkey_binary
from windlass import Windlass
from windlass.api.metrics import roll_up
from windlass.backend import requests as rq
from windlass.core.ids import new_id, new_ids
from windlass.core.job import ErrorInfo, NewJob
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement
from windlass.dashboard import ServerLimits, create_app

CHUNK = 1_000
TASKS = 5
MONTH_MS = 30 * 86_400_000
WANTED_MS = 200.0
QUEUES = ("mail", "images")
KEPT = StoredOptions(keep_completed=Keep(), keep_failed=Keep(), tags=("bench",))

#: The calls of each page; {id} is a finished job.
PAGES = {
    "overview": ["/api/overview", "/api/processes", "/api/live?seconds=0"],
    "queues": ["/api/job-queues"],
    "one queue": ["/api/job-queues/mail", "/api/jobs?queue=mail&limit=50", "/api/job-queues/mail/jobs"],
    "scheduled": ["/api/jobs?state=scheduled&limit=50", "/api/scheduled-jobs"],
    "retries": ["/api/jobs?state=retrying&limit=50", "/api/retries"],
    "dead": ["/api/jobs?state=failed&limit=50", "/api/dead-jobs"],
    "metrics": [
        "/api/job-metrics?period=3600",
        "/api/job-metrics/series?step=hour",
        "/api/job-metrics/tasks",
    ],
    "metrics, 30 days": ["/api/job-metrics?period=2592000", "/api/job-metrics/series?step=day"],
    "processes": ["/api/processes"],
    "job": ["/api/jobs/mail/{id}", "/api/jobs/mail/{id}/timeline", "/api/jobs/mail/{id}/logs"],
    "schedules": ["/api/schedules"],
    "search": [
        "/api/jobs?state=completed&limit=50",
        "/api/jobs?task=task1&limit=50",
        "/api/jobs?tag=bench&limit=50",
        "/api/jobs?error=ValueError&limit=50",
        "/api/jobs?q=needle&limit=50",
    ],
}


async def fill(app: Windlass, jobs: int) -> str:
    """Add ``jobs`` finished jobs with times spread over a month; returns the id of one."""
    store, some_id = app.store, ""
    start_ms = app.clock.now_ms() - MONTH_MS
    for done in range(0, jobs, CHUNK):
        size = min(CHUNK, jobs - done)
        now_ms = start_ms + MONTH_MS * done // max(jobs, 1)
        queue = QUEUES[(done // CHUNK) % 10 == 9]
        ids = new_ids(size)
        news = [
            NewJob(
                queue=queue,
                id=job_id,
                task=f"task{number % TASKS}",
                payload=b'{"kwargs":{"user":%d},"form":"object"}' % number,
                options=KEPT,
                request_id=job_id,
            )
            for number, job_id in enumerate(ids)
        ]
        await store.execute(rq.Add(jobs=news, now_ms=now_ms))
        claim = rq.Claim(
            worker="bench",
            queues=[rq.ClaimQueue(queue, size, size)],
            limit=size,
            claim_id=new_id(),
            now_ms=now_ms + 50,
        )
        claimed = (await store.execute(claim)).jobs
        ends = [_end(job.queue, job.id, job.token or "", number) for number, job in enumerate(claimed)]
        await store.execute(rq.Settle(items=ends, now_ms=now_ms + 100))
        some_id = ids[0] if queue == "mail" else some_id
    return some_id


def _end(queue: str, job_id: str, token: str, number: int) -> Settlement:
    if number % 20:
        return Settlement(
            queue=queue, id=job_id, token=token, outcome=Outcome.COMPLETE, result=b"1", duration_ms=number
        )
    error = ErrorInfo(error_class="ValueError", message="no such user", traceback="...", attempt=1)
    return Settlement(
        queue=queue,
        id=job_id,
        token=token,
        outcome=Outcome.FAIL,
        error=error,
        reason="attempts",
        duration_ms=5,
    )


async def fill_rest(app: Windlass) -> None:
    """Add waiting and scheduled jobs."""
    queue = app.queue("mail")
    await queue.add_bulk([{"name": "task0", "data": {"user": n}} for n in range(1_000)])
    await queue.add_bulk([{"name": "task1", "delay": 3_600 + n} for n in range(1_000)])


@asynccontextmanager
async def api(app: Windlass) -> AsyncIterator[httpx.AsyncClient]:
    free = ServerLimits(burst=10**9, per_second=1e9)
    transport = httpx.ASGITransport(create_app(app, limits=free))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield client


async def measure(app: Windlass, job_id: str, calls: int) -> dict[str, tuple[float, float]]:
    """The 95th percentile and the CPU time of the calls of each page, in milliseconds."""
    found: dict[str, tuple[float, float]] = {}
    async with api(app) as client:
        for page, paths in PAGES.items():
            for path in paths:
                url = path.replace("{id}", job_id)
                times = []
                busy = time.process_time()
                for _ in range(calls):
                    start = time.perf_counter()
                    answer = await client.get(url, timeout=120)
                    times.append((time.perf_counter() - start) * 1000)
                    if answer.status_code not in (200, 404):
                        raise RuntimeError(f"{url}: {answer.status_code} {answer.text[:200]}")
                busy_ms = (time.process_time() - busy) * 1000 / calls
                found[f"{page} {path}"] = (percentile(times, 95), busy_ms)
    return found


async def filled(app: Windlass, name: str, jobs: int) -> str:
    """Fill the store unless an earlier run did; returns the id of a finished job."""
    queue = app.queue("mail")
    found = await queue.get_jobs("completed", limit=1)
    while not found and found.cursor is not None:  # the newest ones are not finished
        found = await queue.get_jobs("completed", found.cursor, limit=1)
    if found:
        console.print(f"{name}: as filled by an earlier run")
        return found[0].id
    begun = time.perf_counter()
    job_id = await fill(app, jobs)
    await fill_rest(app)
    await roll_up(app.store, most=jobs)
    console.print(f"{name}: {jobs:,} finished jobs in {time.perf_counter() - begun:.0f} s")
    return job_id


async def run_store(name: str, empty_url: str, full_url: str, jobs: int, calls: int, report: Report) -> None:
    """Measure one kind of store."""
    async with Windlass(empty_url) as app:
        empty = await measure(app, "nobody", calls)
    async with Windlass(full_url) as app:
        job_id = await filled(app, name, jobs)
        full = await measure(app, job_id, calls)
    table = Table("page and call", "empty", "full", "full, CPU", "", title=f"{name}: p95 in ms")
    for call, (ms, busy_ms) in full.items():
        report.add(f"{name} {call} empty", "ms", empty[call][0])
        report.add(f"{name} {call}", "ms", ms)
        report.add(f"{name} {call} CPU", "ms", busy_ms)
        report.bound(f"{name} {call}", WANTED_MS)
        verdict = "[green]met[/]" if ms < WANTED_MS else "[red]missed[/]"
        table.add_row(call, f"{empty[call][0]:.1f}", f"{ms:.1f}", f"{busy_ms:.1f}", verdict)
    console.print(table)


@contextmanager
def folder_of(keep: Path | None) -> Iterator[Path]:
    """The directory of the stores: the given one, which is kept, or a temporary one."""
    if keep is None:
        with scratch() as folder:
            yield folder
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep


@contextmanager
def valkey_in(folder: Path, *, keep: bool) -> Iterator[Server]:
    """Run a server with the data in ``folder``. With ``keep``, its data is written there at the end."""
    binary = valkey_binary()
    if binary is None:
        raise SystemExit("valkey-server is missing")
    server = Server(binary, folder, "--appendonly", "no").start()
    try:
        yield server
        if keep:
            with server.client() as client:
                client.connection_pool.connection_kwargs["socket_timeout"] = None
                client.save()
    finally:
        server.stop()


def main() -> None:
    """Run on SQLite and on Valkey."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="finished jobs (default 1,000,000)")
    parser.add_argument("--calls", type=int, default=40, help="calls of each route (default 40)")
    parser.add_argument("--stores", default="sqlite,valkey", help="which stores (default both)")
    parser.add_argument("--keep", type=Path, help="a directory for the stores: later runs find them filled")
    given = parser.parse_args()
    report = Report("dashboard", repetitions=1, settings={**vars(given), "keep": given.keep is not None})
    stores = given.stores.split(",")
    with folder_of(given.keep) as folder:
        if "sqlite" in stores:
            urls = [f"sqlite:///{folder / name}.db" for name in ("empty", "full")]
            asyncio.run(run_store("sqlite", urls[0], urls[1], given.jobs, given.calls, report))
        if "valkey" in stores:
            with valkey_in(folder / "valkey", keep=given.keep is not None) as server:
                urls = [f"{server.url}?namespace={name}" for name in ("empty", "full")]
                asyncio.run(run_store("valkey", urls[0], urls[1], given.jobs, given.calls, report))
    console.print(f"written to {report.save()}")


if __name__ == "__main__":
    main()
