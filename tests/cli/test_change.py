"""Commands that change: enqueue, retry, cancel, remove, pause, resume, clean, clear."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Cli, eventually
from windlass import Job, JobState, Windlass, Worker

pytestmark = pytest.mark.feature("X3")
backend_name = "sqlite"


def fail_all(cli: Cli, queue: str = "mail") -> None:
    """Run what waits; everything fails."""

    async def handle(job: Job[Any]) -> None:
        raise ValueError("no")

    async def work(app: Windlass) -> None:
        await Worker(queue, handle, url_or_app=app, burst=True).run()

    cli.app(work)


def counts(cli: Cli, queue: str = "mail") -> dict[str, int]:
    async def count(app: Windlass) -> dict[str, int]:
        found = await app.queue(queue).get_job_counts()
        return {state.value: number for state, number in found.items() if number}

    return cli.app(count)


# --- enqueue -------------------------------------------------------------------------------------------


def test_enqueue_with_arguments_by_name(cli: Cli) -> None:
    args = ("--arg", "to=ada", "--arg", "copies=2", "--arg", 'more={"a": [1]}', "--arg", "text=x=y")
    job = cli.json("enqueue", "mail", "send", *args)
    assert (job["outcome"], job["state"]) == ("queued", "waiting")
    assert job["data"] == {"to": "ada", "copies": 2, "more": {"a": [1]}, "text": "x=y"}


@pytest.mark.parametrize(
    ("args", "data"),
    [
        (('{"to": "ada"}',), {"to": "ada"}),
        (("--data", "[1, 2]"), [1, 2]),
        (("--data", "7"), 7),
        ((), None),
        (("--data", "-"), {"from": "stdin"}),
    ],
)
def test_enqueue_with_json(cli: Cli, args: tuple[str, ...], data: object) -> None:
    assert cli.json("enqueue", "mail", "send", *args, input='{"from": "stdin"}')["data"] == data


def test_enqueue_with_options(cli: Cli) -> None:
    job = cli.json(
        *("enqueue", "mail", "send", "--delay", "10m", "--priority", "-3", "--id", "one", "--tag", "a"),
        *("--max-attempts", "9", "--option", "timeout=5"),
    )
    assert (job["id"], job["state"], job["priority"], job["tags"]) == ("one", "scheduled", -3, ["a"])
    assert job["max_attempts"] == 9
    assert job["due_ms"] - job["enqueued_ms"] == 600_000
    assert cli.job("mail", "one").options.timeout_ms == 5_000
    assert "Duplicate: one is already there" in cli("enqueue", "mail", "send", "--id", "one").output


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("mail", "send", "--data", "{oops"), "not JSON at character 2"),
        (("mail", "send", "--arg", "oops"), "write KEY=VALUE"),
        (("mail", "send", "1", "--arg", "a=1"), "Give the arguments once"),
        (("mail",), "NAME of a task"),
        (("mail", "send", "--file", "x.jsonl"), "No such file"),
        (("mail", "send", "--delay", "soon"), "write 10s, 5m, 2h, 1d"),
    ],
)
def test_enqueue_used_wrongly(cli: Cli, args: tuple[str, ...], message: str) -> None:
    assert message in cli("enqueue", *args, code=2).stderr


def test_options_that_cannot_work_change_nothing(cli: Cli) -> None:
    result = cli("enqueue", "mail", "send", "--option", "max_atempts=3", code=1)
    assert "max_attempts" in result.stderr  # did you mean
    assert len(result.stderr.splitlines()) == 1
    assert counts(cli) == {}


def test_enqueue_waits_for_the_result(cli: Cli) -> None:
    """A worker in a thread of its own answers the command."""
    stop = threading.Event()

    async def handle(job: Job[Any]) -> dict[str, str]:
        if job.name == "bad":
            raise ValueError("out of paper")
        return {"printed": job.data["text"]}

    async def work(app: Windlass) -> None:
        worker = Worker("print", handle, url_or_app=app)
        await worker.start()
        await asyncio.to_thread(stop.wait)
        await worker.close()

    thread = threading.Thread(target=lambda: cli.app(work))
    thread.start()
    try:
        answer = cli("enqueue", "print", "page", "--arg", "text=hi", "--wait")
        assert json.loads(answer.stdout) == {"printed": "hi"}
        bad = cli("enqueue", "print", "bad", "--max-attempts", "1", "--wait", code=1)
        assert "out of paper" in bad.stderr
        assert cli.json("enqueue", "print", "page", "--arg", "text=a", "--wait")["result"] == {"printed": "a"}
    finally:
        stop.set()
        thread.join()


def test_waiting_in_vain_is_an_error(cli: Cli) -> None:
    result = cli("enqueue", "mail", "send", "--wait", "--timeout", "100ms", code=1)
    assert "did not finish within 0.1 s" in result.stderr


def test_enqueue_a_file(cli: Cli, tmp_path: Path) -> None:
    lines = [{"name": "send", "data": {"n": n}, "job_id": f"job-{n}"} for n in range(2_500)]
    path = tmp_path / "jobs.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert cli.json("enqueue", "mail", "--file", str(path), "--priority", "4") == {"queued": 2500, "known": 0}
    assert (
        cli("enqueue", "mail", "--file", str(path)).output
        == "Queued 0 jobs (2,500 more were there already).\n"
    )
    assert counts(cli) == {"waiting": 2500}
    assert cli.job("mail", "job-17").priority == 4


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{oops", "line 1501 is not JSON ("),
        ('{"data": 1}', "line 1501 must be an object like"),
        ('{"name": "x", "prioritty": 1}', "line 1501: "),
    ],
)
def test_a_bad_line_changes_nothing(cli: Cli, line: str, message: str) -> None:
    text = '{"name": "x"}\n' * 1_500 + line + "\n"
    assert message in cli("enqueue", "mail", "--file", "-", input=text, code=1).stderr
    assert counts(cli) == {}


# --- retry, cancel, remove --------------------------------------------------------------------------------


@pytest.fixture
def failed(cli: Cli) -> Cli:
    """Three failed jobs, ``a-0`` to ``a-2``, of two tasks."""

    async def add(app: Windlass) -> None:
        await app.queue("mail").add_bulk(
            [{"name": f"task-{n % 2}", "job_id": f"a-{n}", "max_attempts": 1} for n in range(3)]
        )

    cli.app(add)
    fail_all(cli)
    return cli


def test_retry_by_id_answers_for_each(failed: Cli) -> None:
    result = failed("retry", "mail", "a-0", "nobody", "a-1", code=1)
    assert "retried a-0" in result.output
    assert "retried a-1" in result.output
    assert "has no job 'nobody'" in result.output
    assert counts(failed) == {"waiting": 2, "failed": 1}
    answers = failed.json("retry", "mail", "a-0", code=1)
    assert answers[0]["outcome"] == "illegal_transition"


def test_retry_all(failed: Cli) -> None:
    assert failed.json("retry", "mail", "--all", "--name", "*-1") == {"retried": 1}
    assert failed("retry", "mail", "--all").output == "Retried 2 jobs of mail.\n"
    assert counts(failed) == {"waiting": 3}
    assert "Name the jobs" in failed("retry", "mail", code=2).stderr
    assert "Name the jobs" in failed("retry", "mail", "x", "--all", code=2).stderr


def test_cancel_keeps_the_reason(cli: Cli) -> None:
    cli.add("mail", "send", job_id="one")
    assert cli("cancel", "mail", "one", "--reason", "sold out").output == "cancelled one\n"
    job = cli.job("mail", "one")
    assert (job.state, job.record.reason) == (JobState.CANCELLED, "sold out")
    assert "cannot cancel" in cli("cancel", "mail", "one", code=1).output
    assert cli.json("cancel", "mail", "two", code=1)[0]["outcome"] == "job_not_found"


def test_destructive_commands_do_not_act_without_consent(failed: Cli) -> None:
    failed.add("mail", "send")
    for command in (
        ("remove", "mail", "a-0"),
        ("clean", "mail", "--state", "failed"),
        ("clear", "mail"),
        ("drain", "mail"),
    ):
        assert "pass --yes" in failed(*command, code=2).stderr
    assert counts(failed) == {"failed": 3, "waiting": 1}


def test_a_question_can_be_denied(failed: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.cli.output.has_terminal", lambda: True)
    assert "Nothing was changed" in failed("remove", "mail", "a-0", input="n\n", code=1).stderr
    assert counts(failed) == {"failed": 3}
    assert "removed a-0" in failed("remove", "mail", "a-0", input="y\n").output
    assert counts(failed) == {"failed": 2}


def test_remove_with_yes(failed: Cli) -> None:
    answers = failed.json("remove", "mail", "a-0", "a-9", "--yes", code=1)
    assert [answer["outcome"] for answer in answers] == ["removed", "job_not_found"]


@pytest.mark.feature("A30")
def test_many_jobs_are_changed_by_what_they_are(cli: Cli) -> None:
    for number in range(4):
        options = {"tags": ["odd" if number % 2 else "even"], "delay": 3_600}
        cli.add("mail", "send", {"n": number}, job_id=f"j{number}", **options)
    assert cli.json("promote", "mail", "--all", "--data", "n=3") == {"promoted": 1}
    assert cli("promote", "mail", "j1").output == "promoted j1\n"
    assert cli.json("promote", "mail", "nobody", code=1)[0]["outcome"] == "job_not_found"
    assert counts(cli) == {"waiting": 2, "scheduled": 2}
    cancelled = cli.json("cancel", "mail", "--all", "--state", "scheduled", "--reason", "not needed")
    assert cancelled == {"cancelled": 2}
    removed = cli.json("remove", "mail", "--all", "--state", "waiting", "--tag", "even", "--yes")
    assert removed == {"removed": 0}
    assert cli.json("remove", "mail", "--all", "--state", "cancelled", "--name", "s*", "--yes") == {
        "removed": 2
    }
    assert counts(cli) == {"waiting": 2}
    assert "--all needs --state" in cli("remove", "mail", "--all", "--yes", code=2).stderr
    assert "--tag goes with --all" in cli("cancel", "mail", "j1", "--tag", "x", code=2).stderr


# --- queues ------------------------------------------------------------------------------------------


def test_pause_and_resume(cli: Cli) -> None:
    cli.add("mail", "send")
    assert "Paused mail" in cli("pause", "mail").output
    assert cli.json("queues")[0]["paused"]
    assert cli.json("resume", "mail") == {"resumed": ["mail"]}
    assert not cli.json("queues")[0]["paused"]


def test_clean_by_state_and_age(failed: Cli) -> None:
    assert failed.json("clean", "mail", "--state", "failed", "--grace", "1h", "--yes") == {"removed": 0}
    assert failed.json("clean", "mail", "--yes") == {"removed": 0}  # nothing completed
    assert failed.json("clean", "mail", "--state", "failed", "--limit", "2", "--yes") == {"removed": 2}
    assert failed("clean", "mail", "--state", "failed", "--yes").output == "Deleted 1 failed jobs of mail.\n"
    assert counts(failed) == {}


@pytest.mark.parametrize("name", ["clear", "drain"])
def test_clear_spares_what_is_due_later_unless_asked(failed: Cli, name: str) -> None:
    failed.add("mail", "send")
    failed.add("mail", "send", delay=60)
    assert failed.json(name, "mail", "--yes") == {"removed": 1}
    assert counts(failed) == {"failed": 3, "scheduled": 1}
    assert failed.json(name, "mail", "--delayed", "--yes") == {"removed": 1}
    assert failed.json(name, "mail") == {"removed": 0}  # nothing to lose, nothing to ask
    assert counts(failed) == {"failed": 3}


@pytest.mark.parametrize("name", ["clear", "drain"])
def test_clear_says_how_many_jobs_of_which_queue_it_would_delete(
    failed: Cli, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for delay in (0, 0, 60):
        failed.add("mail", "send", delay=delay)
    asked = "Delete 3 jobs of queue mail (2 waiting, 1 scheduled)? They will not run."
    refused = failed(name, "mail", "--delayed", code=2).stderr
    assert asked in " ".join(refused.split())
    assert "pass --yes" in refused
    monkeypatch.setattr("windlass.cli.output.has_terminal", lambda: True)
    denied = failed(name, "mail", "--delayed", input="n\n", code=1).stderr
    assert asked in denied
    assert ("old name of 'windlass clear'" in denied) == (name == "drain")
    assert counts(failed) == {"failed": 3, "scheduled": 1, "waiting": 2}


@pytest.mark.parametrize(
    "command",
    [
        ("jobs", "mial"),
        ("job", "mial", "a-0"),
        ("why", "mial", "a-0"),
        ("flow", "mial", "a-0"),
        ("history", "mial"),
        ("retry", "mial", "--all"),
        ("cancel", "mial", "--all", "--state", "waiting"),
        ("promote", "mial", "--all"),
        ("remove", "mial", "--all", "--state", "failed", "--yes"),
        ("clean", "mial", "--yes"),
        ("clear", "mial", "--yes"),
        ("drain", "mial", "--yes"),
        ("pause", "mial"),
        ("resume", "mial"),
    ],
)
def test_a_misspelt_queue_is_an_error_that_names_the_nearest(failed: Cli, command: tuple[str, ...]) -> None:
    error = failed(*command, code=1).stderr
    assert "there is no queue 'mial' in this store (did you mean 'mail'?)" in error
    as_json = json.loads(failed(*command, "--json", code=1).stderr.splitlines()[-1])
    assert as_json["error"]["code"] == "config"
    assert counts(failed) == {"failed": 3}
    assert counts(failed, "mial") == {}


def test_a_queue_that_has_no_job_yet_can_be_paused_on_purpose(cli: Cli) -> None:
    assert "there is none yet" in cli("pause", "mail", "--url", _touched(cli), code=1).stderr
    assert "Paused mail" in cli("pause", "mail", "--new").output
    assert cli.json("resume", "mail") == {"resumed": ["mail"]}


def _touched(cli: Cli) -> str:
    """The URL of a store that is there and empty."""

    async def look(app: Windlass) -> None:
        await app.queues()

    cli.app(look)
    return cli.url


def test_jobs_are_retried_by_the_class_of_their_error_and_by_a_query(cli: Cli) -> None:
    async def handle(job: Job[Any]) -> None:
        raise (TimeoutError if job.data["n"] % 2 else ValueError)(f"number {job.data['n']}")

    async def work(app: Windlass) -> None:
        await Worker("mail", handle, url_or_app=app, burst=True).run()

    for n in range(4):
        cli.add("mail", "send", {"n": n}, job_id=f"j{n}", max_attempts=1)
    cli.app(work)
    assert cli.json("retry", "mail", "--all", "--search", "error:Time* args.n:3") == {"retried": 1}
    assert cli.json("retry", "mail", "--all", "--search", "queue:other") == {"retried": 0}
    assert cli.json("retry", "mail", "--all", "--error", "ValueError") == {"retried": 2}
    assert cli.job("mail", "j1").state is JobState.FAILED
    assert "did you mean" in cli("retry", "mail", "--all", "--search", "eror:x", code=1).stderr
    assert "--search goes with --all" in cli("retry", "mail", "j1", "--search", "x", code=2).stderr


@pytest.mark.parametrize("scheme", ["valkey", "redis+cluster", "amqp"])
def test_a_server_that_is_not_there_is_reported_at_once(cli: Cli, scheme: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    error = cli("queues", "--url", f"{scheme}://127.0.0.1:{port}/0?timeout=50", code=1).stderr
    assert f"no server accepts connections at 127.0.0.1:{port}" in error
    assert "did not answer within" not in error  # refused: the 50 s are not waited for
    assert "start it, or check --url and $WINDLASS_URL" in error


def test_a_server_that_does_not_answer_is_waited_for_as_long_as_the_url_says(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_up = threading.Event()

    def connect(address: Any, timeout: float) -> Any:
        given_up.wait(20)
        raise OSError("late")

    monkeypatch.setattr("windlass.cli.reach.socket.create_connection", connect)
    error = cli("queues", "--url", "valkey://10.0.0.9/0?timeout=0.1", code=1).stderr
    given_up.set()
    assert "no server accepts connections at 10.0.0.9:6379 (it did not answer within 0.1 s)" in error


def test_follow_prints_events_as_they_happen(cli: Cli, tmp_path: Path) -> None:
    cli.add("mail", "first", job_id="first")
    log = tmp_path / "events.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "windlass", "events", "mail", "--follow", "--json", "--url", cli.url],
            stdout=file,
            # A suite that runs in the background ignores Ctrl-C, and its children would as well.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )
    try:
        eventually(lambda: '"first"' in log.read_text(), "the kept event")
        cli.add("mail", "second", job_id="second")
        eventually(lambda: '"second"' in log.read_text(), "the new event")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.feature("F7")
def test_a_task_is_revoked_listed_and_restored(cli: Cli) -> None:
    cli("enqueue", "mail", "send")
    cli("tasks", "revoke", "mail", "send", "--for", "1h", "--once")
    (found,) = cli.json("tasks", "list", "mail")
    assert (found["task"], found["once"]) == ("send", True)
    assert found["until_ms"] is not None
    assert "send" in cli("tasks", "list", "mail").output
    fail_all(cli)
    assert counts(cli) == {"cancelled": 1}
    assert "No task of mail is revoked" in cli("tasks", "list", "mail").output
    assert cli.json("tasks", "revoke", "mail", "send") == {"revoked": "send"}
    assert "restored" in cli("tasks", "list", "mail").output
    assert cli.json("tasks", "restore", "mail", "send") == {"restored": True}
    assert cli.json("tasks", "restore", "mail", "send") == {"restored": False}
    cli("tasks", "revoke", "mail", code=2)
    cli("tasks", "list", "nowhere", code=1)
