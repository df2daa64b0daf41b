"""``windlass worker`` as people run it: real processes, real signals, a database file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import WorkerStarter
from tests.cli.support import SHOP, Cli, eventually, is_alive
from windlass import JobState, Windlass

pytestmark = pytest.mark.feature("X2")
backend_name = "sqlite"

SERVES = r"worker \S+ serves "


def worker_count(cli: Cli) -> int:
    return len(cli.app(lambda app: app.workers()))


@pytest.mark.feature("J19")
def test_burst_runs_everything_and_ends(cli: Cli, worker: WorkerStarter) -> None:
    ids = [cli.add("mail", "greet", {"name": str(n)}) for n in range(5)]
    process = worker("--burst")
    assert process.ends() == 0
    assert [cli.job("mail", job_id).return_value for job_id in ids] == [f"hello {n}" for n in range(5)]
    assert re.search(
        SERVES + r"mail, images on sqlite:///\S+jobs.db \(slots: 16, weighted; tasks: 4\)", process.log
    )


def test_queues_are_chosen_and_the_url_wins(cli: Cli, worker: WorkerStarter, tmp_path: Path) -> None:
    (tmp_path / "fixed.py").write_text(SHOP.replace("Windlass()", "Windlass('sqlite:///other.db')"))
    mail, image = cli.add("mail", "greet"), cli.add("images", "boom")
    args = ("--queues", "mail:3", "--order", "strict", "--concurrency", "2", "--cap", "mail=1", "--burst")
    process = worker(*args, app="fixed")
    assert process.ends() == 0
    assert cli.job("mail", mail).state is JobState.COMPLETED
    assert cli.job("images", image).state is JobState.WAITING
    assert "serves mail (weight 3, at most 1)" in process.log
    assert not (tmp_path / "other.db").exists()


def test_the_collector_leaves_alone_what_stays(cli: Cli, worker: WorkerStarter, tmp_path: Path) -> None:
    task = """
@app.task(name="look", queue="mail")
def look() -> list[int]:
    import gc
    return [gc.get_freeze_count(), *gc.get_threshold()]
"""
    (tmp_path / "looking.py").write_text(SHOP + task)
    job_id = cli.add("mail", "look")
    assert worker("--queues", "mail", "--burst", app="looking").ends() == 0
    frozen, *after = cli.job("mail", job_id).return_value
    assert frozen > 10_000
    assert after == [10_000, 20, 20]


def test_json_logs_name_the_job(cli: Cli, worker: WorkerStarter) -> None:
    job_id = cli.add("mail", "greet", {"name": "ada"})
    process = worker("--burst", "--log-json", "--tag", "blue")
    assert process.ends() == 0
    lines = [json.loads(line) for line in process.log.splitlines()]
    (line,) = [line for line in lines if line["logger"] == "shop"]
    assert line["message"] == "greeting ada"
    assert (line["job_id"], line["task"], line["queue"], line["attempt"]) == (job_id, "greet", "mail", 1)
    assert line["level"] == "info"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])


@pytest.mark.parametrize(
    ("app", "message", "code"),
    [
        ("shp:app", "There is no module 'shp' here or on the Python path. Did you mean 'shop'?", 2),
        ("shop:ap", "'shop' has no 'ap'. Did you mean 'shop:app'?", 2),
        ("shop.py", "'shop.py' is a path; name the module instead: 'shop'.", 2),
        (
            "broken:app",
            "Importing 'broken' failed: NameError: name 'oops' is not defined (broken.py, line 1)",
            1,
        ),
    ],
)
def test_an_app_that_cannot_be_loaded(
    worker: WorkerStarter, tmp_path: Path, app: str, message: str, code: int
) -> None:
    (tmp_path / "broken.py").write_text("oops\n")
    process = worker(app=app)
    assert process.ends() == code
    assert message in process.log
    assert "Traceback" not in process.log


def test_a_traceback_on_demand(worker: WorkerStarter, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("oops\n")
    process = worker("--debug", app="broken:app")
    assert process.ends() == 1
    assert "Traceback" in process.log


# --- signals --------------------------------------------------------------------------------------------


@pytest.mark.feature("V1", "V2", "V4")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_lets_running_jobs_finish(
    cli: Cli, worker: WorkerStarter, tmp_path: Path, number: signal.Signals
) -> None:
    held = cli.add("mail", "hold")
    process = worker("--concurrency", "1")
    process.wait_for(f"job {held} .*started")
    late = cli.add("mail", "greet")
    process.send(number)
    process.wait_for("stopping: 1 running jobs may finish")
    (tmp_path / "go").touch()
    assert process.ends() == 0
    assert cli.job("mail", held).return_value == process.process.pid
    assert cli.job("mail", late).state is JobState.WAITING
    assert worker_count(cli) == 0


@pytest.mark.feature("V1", "V5")
@pytest.mark.parametrize("task", ["hold", "stuck"])
def test_the_second_signal_gives_jobs_back_at_once(cli: Cli, worker: WorkerStarter, task: str) -> None:
    """Even a plain function that never returns does not keep the process."""
    job_id = cli.add("mail", task)
    process = worker("--grace", "1h")
    process.wait_for(f"job {job_id} .*started")
    process.send(signal.SIGTERM)
    process.wait_for("stopping: 1 running")
    process.send(signal.SIGTERM)
    assert process.ends() == 130
    job = cli.job("mail", job_id)
    assert (job.state, job.attempts, job.deliveries) == (JobState.WAITING, 0, 1)


@pytest.mark.feature("V3", "V5")
@pytest.mark.parametrize("task", ["hold", "stuck"])
def test_after_the_grace_jobs_are_given_back(cli: Cli, worker: WorkerStarter, task: str) -> None:
    job_id = cli.add("mail", task)
    process = worker("--grace", "100ms")
    process.wait_for(f"job {job_id} .*started")
    process.send(signal.SIGTERM)
    assert process.ends() == (1 if task == "stuck" else 0)  # a thread that runs on was left behind
    job = cli.job("mail", job_id)
    assert (job.state, job.attempts) == (JobState.WAITING, 0)
    assert worker_count(cli) == 0


def test_a_store_that_cannot_be_opened_is_one_line(worker: WorkerStarter, tmp_path: Path) -> None:
    process = worker("--url", "sqlite:///no/such/folder/jobs.db")
    assert process.ends() == 1
    assert "error: " in process.log
    assert "Traceback" not in process.log


# --- several processes ------------------------------------------------------------------------------------


def children(process: Any, count: int) -> list[int]:
    process.wait_for(r"worker process \d+ is (\d+)", count=count)
    return [int(pid) for pid in re.findall(r"worker process \d+ is (\d+)", process.log)]


@pytest.mark.feature("J22", "V1")
def test_two_processes_share_the_work_and_stop_together(
    cli: Cli, worker: WorkerStarter, tmp_path: Path
) -> None:
    jobs = [cli.add("mail", "hold") for _ in range(2)]
    process = worker("--processes", "2", "--concurrency", "1")
    for job_id in jobs:
        process.wait_for(f"job {job_id} .*started")
    process.send(signal.SIGINT)
    process.wait_for("stopping: 1 running", count=2)
    (tmp_path / "go").touch()
    assert process.ends() == 0
    assert {cli.job("mail", job_id).return_value for job_id in jobs} == set(children(process, 2))


def test_a_burst_of_processes_ends_when_all_ended(cli: Cli, worker: WorkerStarter) -> None:
    ids = [cli.add("mail", "greet") for _ in range(4)]
    assert worker("--processes", "2", "--burst").ends() == 0
    assert {cli.job("mail", job_id).state for job_id in ids} == {JobState.COMPLETED}


@pytest.mark.feature("J23")
def test_a_process_that_dies_is_replaced(cli: Cli, worker: WorkerStarter) -> None:
    process = worker("--processes", "2")
    process.wait_for(SERVES, count=2)
    os.kill(children(process, 2)[0], signal.SIGKILL)
    process.wait_for(r"worker process 1 was ended by SIGKILL; another starts in 0.5 s")
    pids = children(process, 3)
    process.wait_for(SERVES, count=3)
    process.send(signal.SIGTERM)
    assert process.ends() == 0
    assert len(set(pids)) == 3


def test_a_second_signal_reaches_all_processes(cli: Cli, worker: WorkerStarter) -> None:
    jobs = [cli.add("mail", "hold") for _ in range(2)]
    process = worker("--processes", "2", "--concurrency", "1", "--grace", "1h")
    for job_id in jobs:
        process.wait_for(f"job {job_id} .*started")
    process.send(signal.SIGTERM)
    process.wait_for("stopping: 1 running", count=2)
    process.send(signal.SIGTERM)
    assert process.ends() == 130
    assert {cli.job("mail", job_id).state for job_id in jobs} == {JobState.WAITING}


def test_children_do_not_outlive_their_parent(cli: Cli, worker: WorkerStarter) -> None:
    process = worker("--processes", "2")
    process.wait_for(SERVES, count=2)
    pids = children(process, 2)
    process.process.kill()
    eventually(lambda: not any(map(is_alive, pids)), "the end of the children")
    assert process.log.count("the parent process is gone") == 2


def test_an_app_that_cannot_be_found_ends_the_parent_too(worker: WorkerStarter) -> None:
    process = worker("--processes", "2", app="shp:app")
    assert process.ends() == 2
    assert "Did you mean 'shop'?" in process.log


# --- reload -----------------------------------------------------------------------------------------------


@pytest.mark.feature("J23")
def test_a_change_of_the_code_is_taken_up(cli: Cli, worker: WorkerStarter, tmp_path: Path) -> None:
    source = tmp_path / "shop.py"
    process = worker("--reload")
    process.wait_for(SERVES)
    first = cli.add("mail", "greet")
    assert cli.until("mail", first, JobState.COMPLETED).return_value == "hello you"
    source.write_text("this is no python\n")
    process.wait_for("shop.py changed: reloading")
    process.wait_for("waiting for a change")
    source.write_text(SHOP.replace("hello", "good evening"))
    process.wait_for(SERVES, count=2)
    second = cli.add("mail", "greet")
    assert cli.until("mail", second, JobState.COMPLETED).return_value == "good evening you"
    process.send(signal.SIGTERM)
    assert process.ends() == 0


def test_a_reload_waits_for_running_jobs(cli: Cli, worker: WorkerStarter, tmp_path: Path) -> None:
    held = cli.add("mail", "hold")
    process = worker("--reload")
    process.wait_for(f"job {held} .*started")
    (tmp_path / "shop.py").write_text(SHOP + "\n# changed\n")
    process.wait_for("stopping: 1 running jobs may finish")
    (tmp_path / "go").touch()
    process.wait_for(SERVES, count=2)
    assert cli.until("mail", held, JobState.COMPLETED).deliveries == 1
    process.send(signal.SIGTERM)
    assert process.ends() == 0


# --- probes -------------------------------------------------------------------------------------------------


def get(url: str) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)


@pytest.mark.feature("R6")
def test_probes_tell_live_and_ready(cli: Cli, worker: WorkerStarter, tmp_path: Path) -> None:
    held = cli.add("mail", "hold")
    process = worker("--health-port", "0")
    base = "http://" + process.wait_for(r"probes on (127\.0\.0\.1:\d+)")[1]
    cli.until("mail", held, JobState.ACTIVE)
    eventually(lambda: get(f"{base}/ready")[1]["busy"] == 1, "the worker has the answer to its claim")
    status, facts = get(f"{base}/ready")
    assert (status, facts["ready"], facts["slots"]) == (200, True, 16)
    assert get(f"{base}/live")[0] == 200
    process.send(signal.SIGTERM)
    process.wait_for("stopping")
    eventually(lambda: get(f"{base}/ready")[0] == 503, "not ready")
    status, facts = get(f"{base}/ready")
    assert status == 503
    assert facts["reason"] == "not running"
    assert get(f"{base}/live")[0] == 200
    (tmp_path / "go").touch()
    assert process.ends() == 0


@pytest.mark.feature("R6")
def test_a_port_that_is_taken_is_one_line(worker: WorkerStarter) -> None:
    first = worker("--health-port", "0")
    port = first.wait_for(r"probes on 127\.0\.0\.1:(\d+)")[1]
    second = worker("--health-port", port)
    assert second.ends() == 1
    assert f"Port {port} cannot be used" in second.log
    assert "Traceback" not in second.log


# --- in a terminal -----------------------------------------------------------------------------------------


def test_the_banner_in_a_terminal(cli: Cli, worker: WorkerStarter, tmp_path: Path) -> None:
    """A pseudo terminal gets the banner instead of a log line."""
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "windlass", "worker", "shop:app", "--queues", "mail:3,images", "--burst"],
        cwd=tmp_path,
        env={**os.environ, "WINDLASS_URL": cli.url, "TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "80"},
        stderr=slave,
        stdin=slave,
    )
    os.close(slave)
    text = b""
    while True:
        try:
            block = os.read(master, 4096)
        except OSError:  # the other side is closed
            break
        if not block:
            break
        text += block
    os.close(master)
    assert process.wait(10) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", text.decode())
    for part in ("windlass 0.", "queues  mail (weight 3), images", "slots   16, weighted", "boom, greet"):
        assert part in shown


@pytest.mark.feature("X3")
def test_the_demo_app_runs(cli: Cli, tmp_path: Path) -> None:
    """The sample of ``scripts/demo``: its producer and its tasks."""
    examples = Path(__file__).resolve().parents[2] / "examples"
    env = {**os.environ, "WINDLASS_URL": cli.url, "PYTHONPATH": str(examples)}
    produce = [sys.executable, str(examples / "demo_app.py"), "produce", "--rate", "40", "--seconds", "1"]
    made = subprocess.run(produce, env=env, capture_output=True, text=True, check=True)
    assert "added" in made.stdout
    work = [sys.executable, "-m", "windlass", "worker", "demo_app:app", "--burst", "--log-level", "error"]
    subprocess.run(work, env=env, cwd=tmp_path, capture_output=True, timeout=45, check=True)

    async def totals(app: Windlass) -> dict[str, dict[str, int]]:
        return {info.name: info.counts for info in await app.queues()}

    counts = cli.app(totals)
    assert set(counts) == {"mail", "reports", "images"}
    assert counts["mail"]["completed"] > 0
    assert counts["reports"]["completed"] > 0
    assert counts["images"]["failed"] > 0


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_runs_although_standard_streams_are_closed(
    cli: Cli, tmp_path: Path, closed: tuple[int, ...], processes: str
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    job_id = cli.add("mail", "greet")
    shut = " ".join(f"{number}>&-" for number in closed)
    command = [sys.executable, "-m", "windlass", "worker", "shop:app", "--burst", "--url", cli.url]
    command += ["--processes", processes]
    started = ["sh", "-c", f'exec "$@" {shut}', "sh", *command]
    ended = subprocess.run(started, cwd=tmp_path, check=False, capture_output=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert cli.job("mail", job_id).state is JobState.COMPLETED
