"""``windlass jobs --export`` and ``windlass enqueue --file``: what goes out comes in again."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.support import Cli
from windlass import RESULT, Backoff, Job, JobState, Keep, Queue, Unique, Windlass, Worker, chain
from windlass.backend import requests as rq
from windlass.core.edges import Dependency, Edge
from windlass.core.job import JobRecord
from windlass.core.states import FINISHED
from windlass.jobs.exported import export_job, read_job

MANY = 1_000
#: Values for every option, a function each of a number; options that exclude others are chosen apart.
VALUES: dict[str, Any] = {
    "priority": lambda n: n % 7 - 3,
    "max_attempts": lambda n: 1 + n % 9,
    "backoff": lambda n: [5, "sidekiq", {"type": "fixed", "delay": n / 10}, Backoff(jitter=0.5)][n % 4],
    "timeout": lambda n: 0.5 + n,
    "lease": lambda n: 10 + n % 50,
    "max_stalls": lambda n: n % 5,
    "stall_delay": lambda n: n % 60,
    "keep_completed": lambda n: [True, False, 5, {"age": 60, "count": n}][n % 4],
    "keep_failed": lambda n: [Keep(None, 7), True, 9][n % 3],
    "result_ttl": lambda n: n + 0.001,
    "tags": lambda n: [f"tag{n % 5}", "all"],
    "expires_in": lambda n: 100_000 + n,
    "expires_total": lambda n: 200_000 + n,
    "keep_id": lambda n: 1_000 + n,
    "backtrace": lambda n: n % 100,
    "trace": lambda n: {"traceparent": f"00-{n}"},
    "result_codec": lambda n: "msgpack",
    "lifo": lambda n: n % 2 == 0,
    "group": lambda n: f"customer-{n % 11}",
    "cost": lambda n: 1 + n % 3,
    "unique": lambda n: Unique(f"key-{n}", ["until_done", "until_start"][n % 2], ttl=60 + n),
    "fallbacks": lambda n: [{"model": "small"}, n],
    "delay": lambda n: 50_000 + n,
}
DATA: list[Any] = [None, {"to": "ada", "n": [1, 2.5, None]}, [1, "two"], "value", {"$type": "mine"}]


async def _fill(app: Windlass) -> None:
    rng = random.Random(7)
    for name in ("mail", "images"):
        queue = app.queue(name)
        jobs: list[dict[str, Any]] = []
        for n in range(MANY // 2 - 10):
            chosen = rng.sample(sorted(VALUES), rng.randrange(len(VALUES)))
            options = {option: VALUES[option](n) for option in chosen}
            options["job_id"] = f"ada+{n}@example.com"
            jobs.append({"name": f"task{n % 3}", "data": DATA[n % len(DATA)], **options})
        await queue.add_bulk(jobs)
        before = await queue.add("first")
        later = await queue.add("second", depends_on=[before], on_failure="ignore", job_id="second")
        await queue.add("third", depends_on=[later, ("mail", "ada+1@example.com")], delay=90_000)
        for n in range(7):
            await queue.add("call", {"n": n}, delay=60_000 + n)


async def _ended(app: Windlass) -> None:
    """Jobs that failed, completed, were cancelled and will be retried."""

    async def handler(job: Job[Any]) -> str:
        if job.name != "fine":
            raise ValueError(job.name)
        return job.name

    queue = Queue("ended", app)
    jobs = [await queue.add("fine", {"a": 1}, timeout=5), await queue.add("bad", max_attempts=1, tags=["x"])]
    await queue.add("again", backoff={"type": "fixed", "delay": 50_000})
    await (await queue.add("unwanted", delay=5)).cancel()
    retrying = asyncio.Event()
    worker = Worker("ended", handler, url_or_app=app)
    worker.on("retrying", lambda job, error: retrying.set())
    async with worker:
        await retrying.wait()
        for job in jobs:
            await job.wait_until_finished()


async def _stored(app: Windlass) -> dict[tuple[str, str], tuple[JobRecord, list[Edge]]]:
    found: dict[tuple[str, str], tuple[JobRecord, list[Edge]]] = {}
    for info in await app.queues():
        cursor: str | None = None
        while True:
            page = await app.queue(info.name).get_jobs((), cursor, 1_000, newest_first=False)
            for job in page:
                edges = await job.get_dependencies() if job.state is JobState.BLOCKED else []
                found[info.name, job.id] = (job.record, edges)
            cursor = page.cursor
            if cursor is None:
                break
    return found


#: What a job of each state is after its line was added: what only running brings about begins anew.
BECOMES = {
    JobState.WAITING: JobState.WAITING,
    JobState.SCHEDULED: JobState.SCHEDULED,
    JobState.BLOCKED: JobState.BLOCKED,
    JobState.RETRYING: JobState.SCHEDULED,
    JobState.COMPLETED: JobState.WAITING,
    JobState.FAILED: JobState.WAITING,
    JobState.CANCELLED: JobState.WAITING,
}


def test_a_thousand_jobs_with_every_option_come_back_equal(cli: Cli, tmp_path: Path) -> None:
    cli.app(_fill)
    cli.app(_ended)
    exported = cli("jobs", "--export").stdout
    before = cli.app(_stored)
    assert len(before) >= MANY
    assert {record.state for record, _ in before.values()} == BECOMES.keys()
    copy = Cli(f"sqlite:///{tmp_path / 'copy.db'}")
    told = copy.json("enqueue", "--file", "-", input=exported)
    assert told == {"queued": len(before), "known": 0}
    after = copy.app(_stored)
    assert after.keys() == before.keys()
    for ref, (was, edges) in before.items():
        now, edges_now = after[ref]
        assert msgspec.structs.asdict(now.options) == msgspec.structs.asdict(was.options), ref
        assert (now.task, now.payload, now.codec, now.priority) == (
            was.task,
            was.payload,
            was.codec,
            was.priority,
        )
        assert now.state is BECOMES[was.state]
        if now.state is JobState.SCHEDULED:
            assert now.due_ms == was.due_ms
        if was.expires_ms is not None:
            assert now.expires_ms == pytest.approx(was.expires_ms, abs=600_000)  # the time of the copying
        assert [(edge.child, edge.on_failure) for edge in edges_now] == [
            (edge.child, edge.on_failure) for edge in edges
        ]
    in_line = [ref for ref, (record, _) in before.items() if record.state is JobState.WAITING]
    assert [ref for ref in after if ref in set(in_line)] == in_line
    assert (
        cli("jobs", "--export", "--state", "scheduled").stdout.count("\n")
        == copy("jobs", "--export", "--state", "scheduled").stdout.count("\n") - 1
    )  # the one that was to be retried


#: What a job that is put back gets anew.
NEW = (
    *("seq", "place", "turn", "request_id", "token", "settled_token", "linked", "enqueued_ms", "ready_ms"),
    "queue_time",
)


@pytest.mark.parametrize("url", ["sqlite:///{}/copy.db", "file://{}/copy"])
def test_an_export_is_put_back_as_it_was(cli: Cli, tmp_path: Path, url: str) -> None:
    cli.app(_fill)
    cli.app(_ended)
    exported, before = cli("jobs", "--export").stdout, cli.app(_stored)
    copy = Cli(url.format(tmp_path))
    assert copy.json("enqueue", "--file", "-", "--restore", input=exported) == {
        "restored": len(before),
        "known": 0,
    }
    after = copy.app(_stored)
    assert after.keys() == before.keys()
    for ref, (was, edges) in before.items():
        now, edges_now = after[ref]
        blocked = was.state is JobState.BLOCKED  # it is added again, with what it waits for
        for name in JobRecord.__struct_fields__:
            if name not in NEW and not (blocked and name == "expires_ms"):
                assert getattr(now, name) == getattr(was, name), (ref, name)
        if not blocked:
            assert (now.enqueued_ms, now.ready_ms) == (was.enqueued_ms, was.ready_ms)
            assert (now.queue_time is None) == (now.state in FINISHED)
        assert [(edge.child, edge.on_failure) for edge in edges_now] == [
            (edge.child, edge.on_failure) for edge in edges
        ]
    again = copy("enqueue", "--file", "-", "--restore", input=exported).stdout
    assert again.startswith("Restored 0 jobs")
    assert "goes with --file" in copy("enqueue", "mail", "send", "--restore", code=2).stderr


async def test_a_step_that_takes_a_result_and_a_window_that_extends_come_back() -> None:
    async with Windlass("memory://a-step") as app, Windlass("memory://a-copy") as copy:

        @app.task(name="one")
        async def one(number: int, more: int = 0) -> int:
            return number + more

        key = Unique("k", "throttle", ttl=60, extend=True)
        last = await chain(one.s(1), one.options(unique=key).s(5, more=RESULT)).enqueue()
        edges = await last.get_dependencies()
        line = json.loads(json.dumps(export_job(last.record, edges, app.codecs, 0)))
        new = read_job(copy.queue("default"), line)
        assert (new.payload, new.options) == (last.record.payload, last.record.options)
        assert new.depends_on == [Dependency(edges[0].child.queue, edges[0].child.id)]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"state": "faild"}, "unknown job state: 'faild' (did you mean 'failed'?)"),
        ({"state": "failed", "past": 5}, "past must be an object, as an export writes it"),
        ({"state": "failed", "past": {"atempts": 1}}, "(did you mean 'attempts'?)"),
        ({"state": "failed", "past": {"attempts": "many"}}, "past is not what an export wrote"),
    ],
)
def test_a_past_that_cannot_be_one_is_named_and_nothing_is_restored(
    cli: Cli, line: dict[str, Any], said: str
) -> None:
    lines = [{"name": "a", "queue": "q"}, {"name": "a", "queue": "q", **line}]
    given = "\n".join(json.dumps(one) for one in lines)
    done = cli("enqueue", "--file", "-", "--restore", input=given, code=1)
    assert said in " ".join(done.output.split())
    assert cli.app(_stored) == {}


async def test_arguments_of_a_call_and_their_types_come_back() -> None:
    async with (
        Windlass("memory://", codec="json+tagged") as app,
        Windlass("memory://", codec="json+tagged") as copy,
    ):

        @app.task(name="kept")
        async def kept(a, *, b): ...  # type: ignore[no-untyped-def]

        job = await kept.enqueue((1, b"x"), b={2: "two"})
        line = json.loads(json.dumps(export_job(job.record, [], app.codecs, 0)))
        assert line["types"] is True
        new = read_job(copy.queue("default"), line)
        assert (new.id, new.payload, new.options) == (job.id, job.record.payload, job.record.options)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"name": "a"}, "line 1 names no queue"),
        (
            {"name": "a", "queue": "q", "dealy": 5},
            "line 1: unknown job option: 'dealy' (did you mean 'delay'?)",
        ),
        ({"name": "a", "queue": "q", "args": 5}, "line 1: args must be a list"),
        ({"name": "a", "queue": "q", "placed": {"x": "y"}}, "line 1: unknown part of a place in a flow: 'x'"),
        ({"name": "a", "queue": "q", "placed": 5}, "`$.placed`"),
        ({"name": "a", "queue": "q", "placed": {"parent": 5}}, "`$.placed[...]`"),
        ({"name": "a", "queue": "q", "said": 5}, "`$.said`"),
        ({"name": "a", "queue": "q", "takes": {"at": 5}}, "`$.takes"),
        ({"name": "a", "queue": "q", "depends_on": 5}, "`$.depends_on`"),
        ({"name": "a", "queue": "q", "schedule": {"a": 1}}, "`$.schedule`"),
        ({"name": "a", "queue": "q", "schedule": "s", "slot_ms": "x"}, "`$.slot_ms`"),
        ({"name": "a", "queue": "q", "data": 1, "args": [2]}, "line 1: give data, or args and kwargs"),
        ({"name": "a", "queue": "q", "data": {"$type": 1}, "types": True}, "line 1: types is set, but"),
        ({"name": "a", "queue": "q", "said": ["x"]}, "line 1: unknown option that a task may fill: 'x'"),
    ],
)
def test_a_line_that_cannot_be_a_job_is_named(cli: Cli, line: dict[str, Any], said: str) -> None:
    done = cli("enqueue", "--file", "-", input=json.dumps(line), code=1)
    assert said in " ".join(done.output.split())


def test_a_past_that_no_store_can_hold_restores_nothing(cli: Cli) -> None:
    good = {"name": "a", "queue": "q", "past": {"attempts": 1}}
    lines = [good] * 1001 + [{**good, "past": {"enqueued_ms": 2**64}}]
    done = cli("enqueue", "--restore", "--file", "-", input="\n".join(map(json.dumps, lines)), code=1)
    assert "line 1002: past is not what an export wrote" in " ".join(done.output.split())
    assert cli.json("queues") == []


def test_jobs_that_cannot_be_written_do_not_end_an_export(cli: Cli) -> None:
    async def fill(app: Windlass) -> None:
        queue = app.queue("mail")
        stored = {
            "deep": ("json", b'{"args":[' + b"[" * 900 + b"]" * 900 + b"]}"),
            "ext": ("msgpack", msgspec.msgpack.encode({"args": [msgspec.msgpack.Ext(5, b"x")]})),
        }
        for name, (codec, payload) in stored.items():
            new = queue.prepare("send", {}, job_id=name)
            new.codec, new.payload = codec, payload
            await app.store.execute(rq.Add(jobs=[new]))
        await queue.add("send", {"to": "ada"}, job_id="good")

    cli.app(fill)
    done = cli("jobs", "mail", "--export", code=1)
    assert '"job_id":"good"' in done.stdout
    assert "2 jobs were left out" in done.stderr


def test_a_number_that_cannot_be_compared_does_not_end_a_search(cli: Cli) -> None:
    async def fill(app: Windlass) -> None:
        queue = app.queue("mail")
        for name, x in (("odd", {"$type": "decimal", "value": "sNaN"}), ("good", 1)):
            new = queue.prepare("send", {}, job_id=name)
            new.codec, new.payload = "json+tagged", json.dumps({"kwargs": {"x": x}}).encode()
            await app.store.execute(rq.Add(jobs=[new]))

    cli.app(fill)
    for found in (cli("jobs", "mail", "--search", "args.x:1"), cli("jobs", "mail", "--data", "x=1")):
        assert "good" in found.stdout and "odd" not in found.stdout
