"""Jobs that real Procrastinate deferred into PostgreSQL arrive here, run, and are gone there."""

from __future__ import annotations

import atexit
import itertools
from collections.abc import Iterator
from functools import cache
from typing import Any

import procrastinate
import psycopg
import pytest

from tests.cli.support import Cli
from tests.importing.test_celery_and_rq import total
from tools.services.postgres import Server, postgres_binaries
from windlass import JobState, Windlass, Worker
from windlass.importing.procrastinate import PostgresClient

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]

COUNT = 30
_numbers = itertools.count()


@cache
def server() -> Server:
    """Started once per process, stopped at its end."""
    binaries = postgres_binaries()
    assert binaries is not None, "postgresql is missing: see scripts/test for what the suite needs"
    made = Server(binaries)
    atexit.register(made.stop)
    return made.start()


@pytest.fixture
def url(services: str) -> str:
    """A database of one test."""
    name = f"shop{next(_numbers)}"
    ask(server().url(), f"CREATE DATABASE {name}")
    return server().url(name)


@pytest.fixture
def shop(url: str) -> Iterator[procrastinate.App]:
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url))
    with app.open():
        app.schema_manager.apply_schema()
        yield app


def ask(url: str, query: str, *values: Any) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query.encode(), values)
        return [] if cursor.description is None else cursor.fetchall()


def jobs_there(url: str) -> list[Any]:
    columns = "id, queue_name, task_name, args::text, status::text, scheduled_at, attempts, worker_id"
    return ask(url, f"SELECT {columns} FROM procrastinate_jobs ORDER BY id")


def holding(url: str) -> list[Any]:
    return ask(url, "SELECT to_regclass('windlass_import')::text")


def test_procrastinates_jobs_arrive_run_and_are_gone_there(
    shop: procrastinate.App, url: str, cli: Cli
) -> None:
    send = shop.configure_task("shop.send", queue="mail")
    for number in range(COUNT):
        send.defer(a=number, b=1)
    first = shop.configure_task("shop.send", queue="mail", priority=5).defer(a=99, b=1)
    later = shop.configure_task("shop.later", queue="mail", schedule_in={"hours": 1}).defer(a=1)
    due = shop.configure_task("shop.send", queue="mail", schedule_in={"hours": -1}).defer(a=100, b=1)
    before = jobs_there(url)

    looked = cli.json("import", "procrastinate", url)
    assert total(looked, "waiting", "scheduled", "added", "refused") == [COUNT + 2, 1, 0, 0]
    assert jobs_there(url) == before, "a dry run changes nothing"
    assert holding(url) == [(None,)]

    assert cli.json("import", "procrastinate", url, "--copy")["added"] == COUNT + 3
    assert jobs_there(url) == before, "a copy changes nothing there"
    moved = cli.json("import", "procrastinate", url, "--confirm")
    assert total(moved, "added", "known", "refused") == [0, COUNT + 3, 0], "nothing is added twice"
    assert jobs_there(url) == []
    assert holding(url) == [(None,)], "nothing of ours is left"
    job = cli.job("mail", f"procrastinate-{later}")
    assert abs((job.run_at_ms or 0) - job.enqueued_ms - 3_600_000) < 60_000
    assert cli.job("mail", f"procrastinate-{first}").priority == 5
    assert cli.job("mail", f"procrastinate-{due}").run_at_ms is None

    async def work(app: Windlass) -> tuple[list[int], dict[JobState, int]]:
        seen: list[int] = []

        @app.task(name="shop.send")
        async def run(a: int, b: int) -> None:
            seen.append(a)

        await Worker("mail", url_or_app=app, concurrency=1).drain()
        return seen, await app.queue("mail").get_job_counts()

    seen, counts = cli.app(work)
    assert seen == [99, *range(COUNT), 100], "as they would have run there, each once"
    assert (counts[JobState.COMPLETED], counts[JobState.SCHEDULED]) == (COUNT + 2, 1)


@pytest.mark.parametrize("status", ["doing", "succeeded", "failed", "cancelled", "aborting", "aborted"])
def test_a_job_that_does_not_wait_stays_where_it_is(
    shop: procrastinate.App, url: str, cli: Cli, status: str
) -> None:
    job = shop.configure_task("shop.send", queue="mail").defer(a=1)
    waiting = shop.configure_task("shop.send", queue="mail").defer(a=2)
    ask(url, f"UPDATE procrastinate_jobs SET status = '{status}' WHERE id = {job}")
    moved = cli.json("import", "procrastinate", url, "--confirm")
    assert total(moved, "added", "refused") == [1, 0]
    assert moved["left"] == ({"that run (doing)": 1} if status in ("doing", "aborting") else {})
    assert ask(url, "SELECT id, status::text FROM procrastinate_jobs") == [(job, status)]
    assert cli.job("mail", f"procrastinate-{waiting}").kwargs == {"a": 2}


def test_a_job_that_waits_for_its_retry_is_moved_with_the_time_of_the_retry(
    shop: procrastinate.App, url: str, cli: Cli
) -> None:
    job = shop.configure_task("shop.send", queue="mail").defer(a=1)
    ask(
        url,
        "UPDATE procrastinate_jobs SET attempts = 2, scheduled_at = '2099-01-01T00:00:00Z' WHERE id = %s",
        job,
    )
    assert cli.json("import", "procrastinate", url, "--confirm")["added"] == 1
    assert cli.job("mail", f"procrastinate-{job}").run_at_ms == 4_070_908_800_000


def test_an_interrupted_run_loses_nothing_and_is_finished_by_the_next(
    shop: procrastinate.App, url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        shop.configure_task("shop.send", queue="mail", queueing_lock=f"lock-{number}").defer(a=number)

    async def die(*args: object) -> None:
        raise SystemError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr("windlass.importing.mover.Mover._add", die)  # after they were taken
        cli("import", "procrastinate", url, "--confirm", code=1)
    assert jobs_there(url) == []
    assert cli.json("import", "procrastinate", url)["resumed"] == 10
    with monkeypatch.context() as patch:
        patch.setattr(PostgresClient, "release", die)  # after they were added
        cli("import", "procrastinate", url, "--confirm", code=1)
    done = cli.json("import", "procrastinate", url, "--confirm")
    assert (done["resumed"], done["added"]) == (10, 0)
    jobs = cli.app(lambda app: app.queue("mail").get_jobs(limit=100))
    assert sorted(job.kwargs["a"] for job in jobs) == list(range(10))
    assert holding(url) == [(None,)]


def test_jobs_of_periodic_tasks_stay_and_the_tasks_are_counted(
    shop: procrastinate.App, url: str, cli: Cli
) -> None:
    @shop.periodic(cron="*/5 * * * *")
    @shop.task(name="shop.tick", queue="mail")
    def tick(timestamp: int) -> None: ...

    for at in (300, 600):
        job = shop.configure_task("shop.tick", queue="mail").defer(timestamp=at)
        ask(
            url,
            "INSERT INTO procrastinate_periodic_defers (task_name, defer_timestamp, job_id) "
            "VALUES (%s, %s, %s)",
            "shop.tick",
            at,
            job,
        )
    before = jobs_there(url)
    answer = cli.json("import", "procrastinate", url, "--confirm")
    assert total(answer, "added", "refused") == [0, 2]
    assert answer["refusals"][0]["reason"] == "a periodic task made it: make it a schedule here"
    assert answer["left"] == {"periodic tasks (make them schedules here)": 1}
    assert jobs_there(url) == before


def test_a_queueing_lock_becomes_a_unique_key_and_a_job_with_a_lock_stays(
    shop: procrastinate.App, url: str, cli: Cli
) -> None:
    locked = shop.configure_task("shop.send", queue="mail", lock="account-7").defer(a=1)
    first = shop.configure_task("shop.sync", queue="mail", queueing_lock="user-7").defer(a=2)
    moved = cli.json("import", "procrastinate", url, "--confirm")
    assert total(moved, "added", "refused") == [1, 1]
    assert "it has a lock" in moved["refusals"][0]["reason"]
    assert [row[0] for row in jobs_there(url)] == [locked]

    async def look(app: Windlass) -> tuple[str, str, str]:
        queue = app.queue("mail")
        again = await queue.add("shop.sync", {"a": 3}, unique="user-7")
        holder = await queue.get_unique_holder("user-7")
        assert holder is not None

        @app.task(name="shop.sync", queue="mail")
        async def run(a: int) -> None:
            assert await queue.get_unique_holder("user-7") is None, "it is free once the job starts"

        await Worker("mail", url_or_app=app).drain()
        return str(again.outcome), holder.id, str((await holder.refresh()).state)

    assert cli.app(look) == ("duplicate", f"procrastinate-{first}", "completed")


def test_a_job_that_a_worker_took_meanwhile_is_not_added(
    shop: procrastinate.App, url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = shop.configure_task("shop.send", queue="mail").defer(a=1)
    other = shop.configure_task("shop.send", queue="mail").defer(a=2)
    take = PostgresClient.take

    async def late(self: PostgresClient, *args: Any) -> list[bool]:
        ask(url, f"UPDATE procrastinate_jobs SET status = 'doing' WHERE id = {taken}")
        return await take(self, *args)

    monkeypatch.setattr(PostgresClient, "take", late)
    answer = cli.json("import", "procrastinate", url, "--confirm")
    assert total(answer, "added", "gone", "refused") == [1, 1, 0]
    assert [row[0] for row in jobs_there(url)] == [taken]
    assert cli.job("mail", f"procrastinate-{other}").kwargs == {"a": 2}


HOSTILE = {
    "an array for arguments": ("mail", "shop.send", "[1, 2]", "its arguments are not an object"),
    "arguments nested too deep": (
        "mail",
        "shop.send",
        '{"a": ' + "[" * 3_000 + "]" * 3_000 + "}",
        "it is not a job of Procrastinate (RecursionError",
    ),
    "a number of 5,000 digits": ("mail", "shop.send", '{"a": 1e5000}', "it is not a job of Procrastinate ("),
    "a queue that cannot be ours": (
        "mail; \x1b[2J",
        "shop.send",
        "{}",
        "it cannot be a job here: queue must be",
    ),
    "a task name with control characters": ("mail", "send\x1b[2J", "{}", "it cannot be a job here: "),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_values_are_refused_and_stay(shop: procrastinate.App, url: str, cli: Cli, case: str) -> None:
    queue, task, args, reason = HOSTILE[case]
    insert = "INSERT INTO procrastinate_jobs (queue_name, task_name, args) VALUES (%s, %s, %s)"
    ask(url, insert, queue, task, args)
    good = shop.configure_task("shop.send", queue="good").defer(a=10**30, text="\x1b[31m \u202e \N{SNOWMAN}")
    assert "\x1b" not in cli("import", "procrastinate", url).stdout, "nothing of theirs reaches the terminal"
    answer = cli.json("import", "procrastinate", url, "--confirm")
    assert total(answer, "added", "refused") == [1, 1]
    assert reason in answer["refusals"][0]["reason"]
    assert [row[2] for row in jobs_there(url)] == [task]
    job = cli.job("good", f"procrastinate-{good}")
    assert job.kwargs == {"a": 10**30, "text": "\x1b[31m \u202e \N{SNOWMAN}"}


def test_tables_in_another_schema_are_found_by_the_prefix(url: str, cli: Cli) -> None:
    ask(url, 'CREATE SCHEMA "Odd ""name"')
    there = f"{url}&options=-c%20search_path%3D%22Odd%5C%20%22%22name%22"
    app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=there))
    with app.open():
        app.schema_manager.apply_schema()
        app.configure_task("shop.send", queue="mail").defer(a=1)
    wrong = cli("import", "procrastinate", url, code=1).stderr
    assert "the database has no tables of Procrastinate 2 or later" in wrong
    assert cli.json("import", "procrastinate", url, "--prefix", 'Odd "name', "--confirm")["added"] == 1


def test_a_database_that_cannot_be_read_is_named_without_its_password(url: str, cli: Cli) -> None:
    assert "tables of Procrastinate" in cli("import", "procrastinate", url, code=1).stderr
    wrong = cli("import", "procrastinate", "redis://user:geheim@localhost", code=1).stderr
    assert "postgresql://localhost/shop" in wrong
    assert "geheim" not in wrong
    away = "postgresql://user:geheim@127.0.0.1:1/shop"
    refused = cli("import", "procrastinate", away, code=1).stderr
    assert "did not answer" in refused
    assert "geheim" not in refused
