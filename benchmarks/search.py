"""``scripts/bench search``: how long the search of jobs takes on 200,000 finished ones.

A store is filled with finished jobs of three queues and twenty tasks, one in forty of them failed, with tags,
groups, workers and arguments that differ. Then jobs are searched for by everything that they can be found by.
Printed is the 95th percentile of one call, how many calls it takes until the page is full or nothing is
left, and how long that takes in all.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from urllib.parse import quote

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import httpx
import msgspec
from rich.table import Table

from benchmarks._common import Report, console, percentile
from benchmarks.dashboard import api, folder_of, valkey_in
from windlass import Windlass
from windlass.backend import requests as rq
from windlass.core.ids import new_id
from windlass.core.job import NewJob, error_info
from windlass.core.option_values import Keep
from windlass.core.options import StoredOptions
from windlass.core.outcome import Outcome, Settlement

CHUNK = 1_000
WANTED_MS = 300.0
QUEUES = ("billing", "mail", "reports")
DAY_MS = 86_400_000

#: What is searched for: a name, and a query.
SEARCHES = {
    "the id of a job": "j000004321",
    "id": "id:j000123456",
    "error class": "error:PaymentDeclined",
    "error class that few have": "error:RareError",
    "error text": 'error:"card 77 was declined"',
    "fingerprint": "fingerprint:{fingerprint}",
    "task": "task:task7",
    "task that few have": "task:rare.task",
    "tag": "tag:vip",
    "tag that no job has": "tag:nobody",
    "group": "group:tenant-42",
    "worker": "worker:worker-3",
    "argument": "args.customer.id:42",
    "argument that one has": "args.customer.id:199001",
    "argument, a text": "args.customer.name:name-4242",
    "words": "name-4242",
    "words that no job has": "nothing-has-this",
    "finished lately": "finished:<1h",
    "finished long ago": "finished:>29d",
    "several": "task:task7 state:failed error:Payment* finished:<2d",
}


def _new(number: int) -> NewJob:
    job_id = f"j{number:09}"
    payload = {
        "kwargs": {
            "customer": {"id": number if number % 1_000 == 1 else number % 997, "name": f"name-{number}"}
        },
        "form": "object",
    }
    tags = ("vip",) if number % 5_000 == 3 else ()
    group = f"tenant-{number % 500}" if number % 4 == 0 else None
    return NewJob(
        queue=QUEUES[number // CHUNK % 3],
        id=job_id,
        task="rare.task" if number % 50_000 == 7 else f"task{number % 20}",
        payload=msgspec.json.encode(payload),
        options=StoredOptions(keep_completed=Keep(), keep_failed=Keep(), tags=tags, group=group),
        request_id=job_id,
    )


def _end(queue: str, job_id: str, token: str) -> Settlement:
    number = int(job_id[1:])
    if number % 40:
        return Settlement(
            queue=queue,
            id=job_id,
            token=token,
            outcome=Outcome.COMPLETE,
            result=b"1",
            duration_ms=number % 999,
        )
    name = "RareError" if number == 40_000 else "PaymentDeclined" if number % 80 else "TimeoutError"
    trace = "Traceback (most recent call last):\n" + "  File 'shop.py', line 7, in charge\n" * 20
    error = error_info(name, f"card {number % 200 // 2} was declined", trace)
    return Settlement(
        queue=queue,
        id=job_id,
        token=token,
        outcome=Outcome.FAIL,
        error=error,
        reason="attempts",
        duration_ms=5,
    )


async def fill(app: Windlass, jobs: int) -> None:
    """Add ``jobs`` finished jobs with times spread over a month."""
    store = app.store
    start_ms = app.clock.now_ms() - 30 * DAY_MS
    for done in range(0, jobs, CHUNK):
        now_ms = start_ms + 30 * DAY_MS * done // max(jobs, 1)
        news = [_new(number) for number in range(done, min(done + CHUNK, jobs))]
        await store.execute(rq.Add(jobs=news, now_ms=now_ms))
        claim = rq.Claim(
            worker=f"worker-{done // CHUNK % 7}",
            queues=[rq.ClaimQueue(news[0].queue, CHUNK, CHUNK)],
            limit=CHUNK,
            claim_id=new_id(),
            now_ms=now_ms + 50,
        )
        claimed = (await store.execute(claim)).jobs
        ends = [_end(job.queue, job.id, job.token or "") for job in claimed]
        await store.execute(rq.Settle(items=ends, now_ms=now_ms + 100))


async def search(client: httpx.AsyncClient, query: str) -> tuple[list[float], int]:
    """The times of all calls until the page is full or the list ends, and how many jobs were found."""
    times: list[float] = []
    found, cursor = 0, ""
    while True:
        start = time.perf_counter()
        answer = await client.get(f"/api/v1/jobs?limit=50&search={quote(query)}{cursor}", timeout=120)
        times.append((time.perf_counter() - start) * 1000)
        answer.raise_for_status()
        page = answer.json()
        found += len(page["items"])
        if page["done"] or found >= 50:
            return times, found
        cursor = f"&cursor={page['next_cursor']}"


async def run_store(name: str, url: str, given: argparse.Namespace, report: Report) -> None:
    """Measure one kind of store."""
    table = Table("search", "p95 of a call", "calls", "in all", "found", "", title=f"{name}: milliseconds")
    async with Windlass(url) as app:
        if await app.queue(QUEUES[0]).get_job("j000000000") is None:
            begun = time.perf_counter()
            await fill(app, given.jobs)
            console.print(f"{name}: {given.jobs:,} finished jobs in {time.perf_counter() - begun:.0f} s")
        sample = error_info("PaymentDeclined", "card 20 was declined")
        async with api(app) as client:
            for what, query in SEARCHES.items():
                times: list[float] = []
                for _ in range(given.repeat):
                    part, found = await search(client, query.format(fingerprint=sample.fingerprint))
                    times += part
                calls, ms = len(times) // given.repeat, percentile(times, 95)
                report.add(f"{name} {what}", "ms", ms)
                report.bound(f"{name} {what}", WANTED_MS)
                verdict = "[green]met[/]" if ms < WANTED_MS else "[red]missed[/]"
                whole = sum(times) / given.repeat
                table.add_row(what, f"{ms:.0f}", str(calls), f"{whole:.0f}", str(found), verdict)
    console.print(table)


def main() -> None:
    """Run on SQLite and on Valkey."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200_000, help="finished jobs (default 200,000)")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each search (default 5)")
    parser.add_argument("--stores", default="sqlite,valkey", help="which stores (default both)")
    parser.add_argument("--keep", type=Path, help="a directory for the stores: later runs find them filled")
    given = parser.parse_args()
    report = Report("search", repetitions=1, settings={**vars(given), "keep": given.keep is not None})
    stores = given.stores.split(",")
    with folder_of(given.keep) as folder:
        if "sqlite" in stores:
            asyncio.run(run_store("sqlite", f"sqlite:///{folder / 'full'}.db", given, report))
        if "valkey" in stores:
            with valkey_in(folder / "valkey", keep=given.keep is not None) as server:
                asyncio.run(run_store("valkey", server.url, given, report))
    console.print(f"written to {report.save()}")


if __name__ == "__main__":
    main()
