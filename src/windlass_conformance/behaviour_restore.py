"""Export and restore: jobs with every option and in every state are the same in another store."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec

from windlass import Job, JobState, Queue, Suspend, Unique, Windlass, Worker
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import JobRecord
from windlass.core.outcome import AddOutcome
from windlass.jobs.exported import export_job, read_record
from windlass.testing.kit import drain
from windlass_conformance.harness import Harness

NEEDS = "restore"
MANY = 1_000
#: Fields that get new values when a job is restored.
NEW = (
    "seq",
    "place",
    "turn",
    "request_id",
    "token",
    "settled_token",
    "linked",
    "lease_until_ms",
    "queue_time",
)
#: Values of options as functions of a number, without options that exclude each other.
VALUES: dict[str, Any] = {
    "priority": lambda n: n % 7 - 3,
    "max_attempts": lambda n: 1 + n % 9,
    "backoff": lambda n: [50_000, {"type": "fixed", "delay": 60_000 + n}][n % 2],
    "timeout": lambda n: 50.5 + n,
    "lease": lambda n: 100 + n % 50,
    "max_stalls": lambda n: n % 5,
    "stall_delay": lambda n: n % 60,
    "keep_completed": lambda n: [True, 5_000, {"age": 6_000, "count": 5_000 + n}][n % 3],
    "keep_failed": lambda n: [True, 9_000][n % 2],
    "result_ttl": lambda n: 5_000 + n,
    "tags": lambda n: [f"tag{n % 5}", "all"],
    "expires_total": lambda n: 200_000 + n,
    "keep_id": lambda n: 1_000 + n,
    "backtrace": lambda n: n % 100,
    "trace": lambda n: {"traceparent": f"00-{n}"},
    "result_codec": lambda n: "msgpack",
    "group": lambda n: f"customer-{n % 11}",
    "cost": lambda n: 1 + n % 3,
    "unique": lambda n: Unique(f"key-{n}", ["until_done", "until_start"][n % 2], ttl=6_000 + n),
    "fallbacks": lambda n: [{"model": "small"}, n],
    "lifo": lambda n: n % 2 == 0,
}
#: The behaviour of a job by its number.
ENDS = ("fine", "bad", "again", "suspended", "unwanted", "later", "waits")


def app_on(harness: Harness, namespace: str) -> Windlass:
    app = Windlass("memory://")
    app.store = Store(harness.connect(namespace), app.clock)
    return app


async def handle(job: Job[Any]) -> Any:
    await job.update_progress({"at": job.data["n"]})
    match job.name:
        case "bad":
            job.discard()
            raise ValueError(f"no {job.data['n']}")
        case "again":
            raise LookupError("not yet")
        case "suspended":
            raise Suspend("answer", timeout=100_000)
    return {"n": job.data["n"]}


async def fill(app: Windlass) -> None:
    """Add jobs of every kind, and run those that are to run."""
    rng, queue = random.Random(7), Queue("mail", app)
    jobs: list[dict[str, Any]] = []
    for n in range(MANY):
        name = ENDS[n % len(ENDS)]
        options = {
            option: VALUES[option](n) for option in rng.sample(sorted(VALUES), rng.randrange(len(VALUES)))
        }
        if name == "again":
            options["max_attempts"] = 3
        if name in ("later", "unwanted"):
            options["delay"] = 50_000 + n
        jobs.append({"name": name, "data": {"n": n}, "job_id": f"ada+{n}@example.com", **options})
    ran = [job for job in jobs if job["name"] in ("fine", "bad", "again", "suspended")]
    await queue.add_bulk(ran)
    worker = Worker("mail", handle, url_or_app=app, concurrency=50, lease=300)
    async with worker:
        await drain(worker)
    await queue.add_bulk([job for job in jobs if job["name"] not in ("fine", "bad", "again", "suspended")])
    for n in range(ENDS.index("unwanted"), MANY, len(ENDS)):
        await queue.cancel(f"ada+{n}@example.com", f"reason {n}")
    await queue.signal("ada+3@example.com", "other", {"by": "ada"})


async def stored(app: Windlass) -> dict[str, JobRecord]:
    found: dict[str, JobRecord] = {}
    cursor: str | None = None
    while True:
        page = await app.queue("mail").get_jobs((), cursor, 1_000, newest_first=False)
        found |= {job.id: job.record for job in page}
        cursor = page.cursor
        if cursor is None:
            return found


def plain(record: JobRecord) -> dict[str, Any]:
    fields = msgspec.structs.asdict(record)
    for name in NEW:
        del fields[name]
    return fields


async def test_a_thousand_jobs_with_every_option_and_state_are_the_same_in_another_store(
    harness: Harness,
) -> None:
    async with app_on(harness, harness.namespace) as app, app_on(harness, f"{harness.namespace}2") as copy:
        await fill(app)
        before = await stored(app)
        states = {record.state for record in before.values()}
        assert states == {
            *(JobState.WAITING, JobState.SCHEDULED, JobState.RETRYING, JobState.SUSPENDED),
            *(JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED),
        }
        lines = [json.dumps(export_job(one, [], app.codecs, app.clock.now_ms())) for one in before.values()]
        jobs: list[Any] = [read_record(copy.queue("mail"), json.loads(line)) for line in lines]
        answers = await copy.store.execute(rq.Restore(jobs=jobs))
        assert {answer.outcome for answer in answers} == {AddOutcome.QUEUED}
        after = await stored(copy)
        assert list(after) == list(before)
        for job_id, was in before.items():
            assert plain(after[job_id]) == plain(was), job_id
        assert await copy.queue("mail").get_job_counts() == await app.queue("mail").get_job_counts()
        again = await copy.store.execute(rq.Restore(jobs=jobs))
        assert {answer.outcome for answer in again} == {AddOutcome.QUEUED}  # the same request, answered again
        others = [read_record(copy.queue("mail"), json.loads(line)) for line in lines]
        known = await copy.store.execute(rq.Restore(jobs=others))  # type: ignore[arg-type]
        assert {answer.outcome for answer in known} == {AddOutcome.DUPLICATE}
        assert len(await stored(copy)) == MANY


async def test_restored_jobs_go_on_where_they_were(harness: Harness) -> None:
    async with app_on(harness, harness.namespace) as app:
        queue, now = app.queue("mail"), app.clock.now_ms()
        common: dict[str, Any] = {"queue": "mail", "task": "go", "payload": b"{}", "enqueued_ms": now - 9_000}
        jobs = [
            JobRecord(id="ready", ready_ms=now - 9_000, attempts=2, deliveries=2, **common),
            JobRecord(
                id="due", state=JobState.RETRYING, due_ms=now - 1, ready_ms=now - 1, attempts=1, **common
            ),
            JobRecord(
                id="done",
                state=JobState.COMPLETED,
                ready_ms=now - 9_000,
                started_ms=now - 8_000,
                finished_ms=now - 7_000,
                deliveries=1,
                result=b'"kept"',
                result_until_ms=now + 600_000,
                **common,
            ),
        ]
        await app.store.execute(rq.Restore(jobs=jobs))
        assert await queue.get_result("done") == "kept"
        seen: dict[str, int] = {}

        async def go(job: Job[Any]) -> None:
            seen[job.id] = job.attempt

        await Worker("mail", go, url_or_app=app).drain()
        assert seen == {"ready": 3, "due": 2}
        await queue.retry("done")
        await Worker("mail", go, url_or_app=app).drain()
        assert seen["done"] == 1
        counts = await queue.get_job_counts()
        assert {state: count for state, count in counts.items() if count} == {JobState.COMPLETED: 3}
