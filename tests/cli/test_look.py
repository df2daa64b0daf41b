"""Commands that look: queues, jobs, job, stats, workers, events, history."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.cli.support import Cli
from windlass import Job, Windlass, Worker
from windlass.backend import requests as rq

pytestmark = pytest.mark.feature("X3")
backend_name = "sqlite"


async def work_off(app: Windlass) -> None:
    """Run everything that waits: ``good`` succeeds, ``bad`` fails."""

    async def handle(job: Job[Any]) -> str:
        await job.log("first line")
        await job.update_progress({"current": 3, "total": 4})
        if job.name == "bad":
            raise ValueError(f"no luck with {job.id}")
        return f"done {job.id}"

    await Worker(["mail", "images"], handle, url_or_app=app, burst=True, tag="tester").run()


@pytest.fixture
def filled(cli: Cli) -> Cli:
    """Two queues: one completed, one failed, one scheduled, two waiting in a paused queue."""

    async def fill(app: Windlass) -> None:
        mail = app.queue("mail")
        await mail.add("good", {"to": "ada"}, job_id="fine", tags=["vip"], priority=7)
        await mail.add("bad", {"to": "bob"}, job_id="broken", max_attempts=1)
        await work_off(app)
        await mail.add("good", {"to": "eve"}, job_id="later", delay=3600)
        images = app.queue("images")
        await images.add_bulk([{"name": "resize", "data": [n], "job_id": f"image-{n}"} for n in range(2)])
        await images.pause()

    cli.app(fill)
    return cli


def test_queues_are_listed_with_their_counts(filled: Cli) -> None:
    queues = {queue["name"]: queue for queue in filled.json("queues")}
    assert queues["mail"]["counts"]["completed"] == 1
    assert queues["mail"]["counts"]["failed"] == 1
    assert queues["mail"]["counts"]["scheduled"] == 1
    assert queues["images"]["paused"]
    assert queues["images"]["oldest_wait_ms"] >= 0
    assert queues["mail"]["oldest_wait_ms"] is None


def test_queues_table_for_people(filled: Cli) -> None:
    text = filled("queues").output
    assert "paused" in text
    assert "waiting" in text
    assert next(line for line in text.splitlines() if line.startswith("images")).split()[2] == "2"


def test_an_empty_store_says_so(cli: Cli) -> None:
    cli.app(lambda app: app.queues())
    assert "No queues yet" in cli("queues").output
    assert cli.json("queues") == []
    assert "No queues yet" in cli("stats").output


def test_a_store_that_is_not_there_is_not_made(cli: Cli) -> None:
    result = cli("queues", "--url", "sqlite:///nowhere.db", code=1)
    assert "there is no database" in result.stderr
    assert result.stdout == ""
    error = json.loads(cli("queues", "--url", "sqlite:///nowhere.db", "--json", code=1).stderr)
    assert error["error"]["code"] == "storage"


def test_jobs_by_state_name_tag_error_and_data(filled: Cli) -> None:
    def ids(*args: str) -> list[str]:
        return [job["id"] for job in filled.json("jobs", *args)["jobs"]]

    assert ids("mail") == ["later", "broken", "fine"]
    assert ids("mail", "--state", "failed") == ["broken"]
    assert ids("mail", "--state", "failed", "--state", "completed") == ["broken", "fine"]
    assert ids("mail", "--name", "go*") == ["later", "fine"]
    assert ids("mail", "--tag", "vip") == ["fine"]
    assert ids("mail", "--error", "ValueError") == ["broken"]
    assert ids("mail", "--data", "to=eve") == ["later"]
    assert sorted(ids()) == ["broken", "fine", "image-0", "image-1", "later"]
    assert ids("mail", "--name", "nothing") == []
    assert "No such jobs" in filled("jobs", "mail", "--name", "nothing").output


def test_jobs_page_by_page(filled: Cli) -> None:
    first = filled.json("jobs", "mail", "--limit", "2")
    assert [job["id"] for job in first["jobs"]] == ["later", "broken"]
    rest = filled.json("jobs", "mail", "--limit", "2", "--cursor", first["cursor"])
    assert [job["id"] for job in rest["jobs"]] == ["fine"]
    assert rest["cursor"] is None
    assert f"--cursor {first['cursor']}" in filled("jobs", "mail", "--limit", "2").stderr
    assert "name the queue" in filled("jobs", "--cursor", "1", code=2).stderr


def test_an_unknown_state_is_a_usage_error(filled: Cli) -> None:
    assert "'faild' is not one of" in filled("jobs", "mail", "--state", "faild", code=2).stderr


def test_exported_jobs_can_be_added_again(filled: Cli) -> None:
    exported = filled("jobs", "mail", "--state", "completed", "--export").stdout
    line = json.loads(exported)
    assert {"name": "good", "data": {"to": "ada"}, "priority": 7, "tags": ["vip"]}.items() <= line.items()
    assert (line["queue"], line["state"]) == ("mail", "completed")
    assert filled.json("enqueue", "copy", "--file", "-", input=exported) == {"queued": 1, "known": 0}
    (copy,) = filled.json("jobs", "copy")["jobs"]
    assert (copy["name"], copy["data"], copy["priority"], copy["tags"]) == ("good", {"to": "ada"}, 7, ["vip"])


def test_one_job_in_full(filled: Cli) -> None:
    job = filled.json("job", "mail", "broken")
    assert job["state"] == "failed"
    assert job["reason"] == "attempts"
    assert job["errors"][0]["error_class"] == "ValueError"
    assert job["logs"] == ["first line"]
    assert job["progress"] == {"current": 3, "total": 4}
    text = filled("job", "mail", "broken").output
    for part in ("bad  failed", "no luck with broken", "Traceback", "first line", "75%", '{"to":"bob"}'):
        assert part in text
    assert "Traceback" not in filled("job", "mail", "broken", "--no-traces").output
    assert "done fine" in filled("job", "mail", "fine").output
    assert "due, in" in filled("job", "mail", "later").output


def test_an_unknown_job_is_an_error_with_a_code(filled: Cli) -> None:
    assert "queue 'mail' has no job 'x'" in filled("job", "mail", "x", code=1).stderr
    error = json.loads(filled("job", "mail", "x", "--json", code=1).stderr)
    assert error["error"]["code"] == "job_not_found"


def test_data_cannot_colour_the_terminal(cli: Cli) -> None:
    cli.add("mail", "[red]task[/red]", {"text": "[bold]x[/bold]"}, job_id="odd")
    assert "[red]task[/red]" in cli("jobs", "mail").output
    assert "[bold]x[/bold]" in cli("job", "mail", "odd").output


def test_stats_once(filled: Cli) -> None:
    stats = filled.json("stats")
    mail = next(queue for queue in stats["queues"] if queue["queue"] == "mail")
    assert mail["lifetime"]["enqueued"] == 3
    assert mail["lifetime"]["completed"] == 1
    assert mail["lifetime"]["failed"] == 1
    assert mail["counts"]["scheduled"] == 1
    assert "no worker is alive" in filled("stats").output


def test_stats_watched_has_rates(filled: Cli) -> None:
    samples = filled.lines("stats", "--watch", "--json", "--interval", "100ms", "--for", "300ms")
    assert len(samples) == 4
    assert samples[0]["queues"][0]["rates"] == {}
    assert samples[-1]["queues"][0]["rates"]["completed"] == 0.0


def test_events_and_their_order(filled: Cli) -> None:
    events = filled.lines("events", "mail", "--json")
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert {event["type"] for event in events} >= {"enqueued", "started", "completed", "failed", "scheduled"}
    failed = filled.lines("events", "mail", "--type", "failed", "--json")
    assert [event["job_id"] for event in failed] == ["broken"]
    last = filled.lines("events", "mail", "--limit", "1", "--json")
    assert last == events[-1:]
    assert filled.lines("events", "mail", "--after", str(events[-2]["id"]), "--json") == events[-1:]
    assert "completed" in filled("events", "mail").output


def test_history_has_the_times_of_attempts(filled: Cli) -> None:
    page = filled.json("history", "mail")
    assert {(row["job_id"], row["outcome"]) for row in page["records"]} == {
        ("fine", "completed"),
        ("broken", "failed"),
    }
    assert page["last"] == page["newest"] == 2
    assert filled.json("history", "mail", "--after", "1")["records"] == page["records"][1:]
    text = filled("history", "mail", "--limit", "1", "--after", "0").stderr
    assert "--after 1" in text
    assert "ValueError" in filled("history", "mail").output


@pytest.mark.feature("Q2")
def test_history_names_what_an_attempt_waited_for(cli: Cli) -> None:
    async def fill(app: Windlass) -> None:
        later = await app.queue("mail").add("good", {"to": "ada"}, job_id="later", delay=3600)
        await later.promote()
        await app.queue("mail").add("good", {"to": "eve"}, job_id="now")
        await work_off(app)

    cli.app(fill)
    waits = {row["job_id"]: row["queue_time"] for row in cli.json("history", "mail")["records"]}
    assert waits["now"] is None
    assert waits["later"].keys() == {"scheduled_ms", "parked_ms", "blocked_ms", "in_line_ms"}
    assert (waits["later"]["parked_ms"], waits["later"]["blocked_ms"]) == (0, 0)


@pytest.mark.feature("J20")
def test_workers_that_are_alive(cli: Cli) -> None:
    listed: list[Any] = []

    async def look(app: Windlass) -> None:
        worker = Worker("mail", lambda job: None, url_or_app=app, tag="blue", concurrency=3)
        await worker.start()
        await app.store.execute(rq.Beat(worker=worker.info()))  # not to wait for the first of its own
        listed.append(await asyncio.to_thread(cli.json, "workers"))
        listed.append((await asyncio.to_thread(cli, "workers")).output)
        await worker.close()

    cli.app(look)
    (info,) = listed[0]
    assert (info["tag"], info["concurrency"], info["queues"]) == ("blue", 3, ["mail"])
    assert "0/3" in listed[1]
    assert "No worker was alive" in cli("workers").output


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "command", [("queues",), ("jobs",), ("stats",), ("history", "mail"), ("doctor",), ("events", "mail")]
)
def test_nothing_is_wider_than_the_terminal(
    filled: Cli, monkeypatch: pytest.MonkeyPatch, width: int, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    result = filled(*command, code=0)
    assert max(map(len, result.stdout.splitlines())) <= width
    assert "image" in result.stdout or "mail" in result.stdout or "good" in result.stdout


def test_why_says_what_keeps_a_job_from_running(filled: Cli) -> None:
    found = filled.json("why", "mail", "later")
    assert [cause["kind"] for cause in found["causes"]] == ["scheduled", "no_worker"]
    shown = filled("why", "mail", "later").output
    assert "it is due later" in shown and "windlass promote mail later" in shown
    paused = filled.json("why", "images", "image-1")
    assert [cause["kind"] for cause in paused["causes"]] == ["queue_paused", "no_worker", "behind"]
    assert paused["place"] == 2


def test_jobs_are_found_by_a_query(filled: Cli) -> None:
    found = filled.json("jobs", "--search", "task:g* args.to:ada state:completed")
    assert [job["id"] for job in found["jobs"]] == ["fine"]
    found = filled.json("jobs", "--search", 'error:"no luck" finished:<1h')
    assert [job["id"] for job in found["jobs"]] == ["broken"]
    assert filled.json("jobs", "--search", "queue:mail tag:nothing")["jobs"] == []
