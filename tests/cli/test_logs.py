"""What a worker logs of its jobs, as the page on telemetry shows it."""

from __future__ import annotations

import concurrent.futures
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import WorkerStarter
from tests.cli.support import SHOP, Cli, WorkerProcess
from windlass import Queue, Windlass, Worker
from windlass.telemetry.logs import Lines, parse_levels

PAGE = Path(__file__).parents[2] / "docs" / "telemetry.md"
_BLOCKS = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _shown(kind: str) -> str:
    """The block of the page's section on logs that shows what a worker wrote."""
    section = PAGE.read_text().partition("\n## Logs\n")[2]
    blocks: list[tuple[str, str]] = _BLOCKS.findall(section)
    return next(code for found, code in blocks if found == kind)


def _without_chance(log: str) -> str:
    """``log`` without times, durations and folders, which differ from run to run."""
    log = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", log)
    log = re.sub(r'(elapsed_ms"?[=:])\d+', r"\g<1>0", log)
    return re.sub(r'File (\\?")[^"]*pay\.py', r"File \1pay.py", log)


def _log_of_the_page(folder: Path, *options: str) -> list[str]:
    """What the worker of the page's program writes about its runs, an event each."""
    (folder / "pay.py").write_text(_shown("python"))
    url = f"sqlite:///{folder}/pay.db"
    subprocess.run(
        [sys.executable, "pay.py"], cwd=folder, env={**os.environ, "WINDLASS_URL": url}, check=True
    )
    process = WorkerProcess(folder, url, "pay:app", "--concurrency", "1", "--burst", *options)
    try:
        assert process.ends() == 0
    finally:
        process.clean_up()
    return [event for event in _events(process.log) if "windlass.attempt" in event]


def _events(log: str) -> list[str]:
    """The events of a log, by job: on a slow machine the runs of several jobs may mix in another order."""
    events = re.split(r"^(?=\S+Z |\{)", log, flags=re.MULTILINE)
    return sorted(filter(None, events), key=lambda event: re.findall(r"order-\d", event)[:1])


@pytest.mark.parametrize(("kind", "options"), [("text", ()), ("json", ("--log-format", "json"))])
def test_the_log_of_a_completed_a_retried_and_a_failed_job_is_that_of_the_page(
    tmp_path: Path, kind: str, options: tuple[str, ...]
) -> None:
    written = _without_chance("".join(_log_of_the_page(tmp_path, *options)))
    assert written == _without_chance("".join(_events(_shown(kind))))


def test_a_failure_is_logged_with_class_message_and_traceback(cli: Cli, worker: WorkerStarter) -> None:
    job_id = cli.add("images", "boom")
    process = worker("--burst", "--log-format", "json")
    assert process.ends() == 0
    lines = [json.loads(line) for line in process.log.splitlines()]
    started, failed = [line for line in lines if line["logger"] == "windlass.attempt"]
    assert (started["level"], started["job_id"], started["queue"]) == ("info", job_id, "images")
    assert (failed["level"], failed["outcome"], failed["attempt"]) == ("error", "failed", 1)
    assert failed["elapsed_ms"] >= 0
    assert failed["error"]["class"] == "ValueError"
    assert failed["error"]["message"] == "no such image"
    assert 'raise ValueError("no such image")' in failed["error"]["traceback"]
    assert "windlass/worker" not in failed["error"]["traceback"]


def test_a_failure_in_a_child_process_shows_the_traceback_of_the_child(
    cli: Cli, worker: WorkerStarter, tmp_path: Path
) -> None:
    task = """
@app.task(name="apart", queue="mail", max_attempts=1, isolation="process")
def apart() -> None:
    raise LookupError("nothing there")
"""
    (tmp_path / "apart.py").write_text(SHOP + task)
    cli.add("mail", "apart")
    process = worker("--queues", "mail", "--burst", app="apart")
    assert process.ends() == 0
    assert "LookupError: nothing there" in process.log
    assert 'raise LookupError("nothing there")' in process.log


def test_levels_by_logger_leave_out_starts_and_successes(cli: Cli, worker: WorkerStarter) -> None:
    cli.add("mail", "greet")
    process = worker("--burst", "--log-level", "info,windlass.attempt=warning")
    assert process.ends() == 0
    assert "windlass.attempt" not in process.log
    assert "shop: [greet" in process.log


@pytest.mark.parametrize("text", ["loud", "windlass=loud", "=info", "windlass=", ""])
def test_levels_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"write LEVEL or LOGGER=LEVEL, with a level of debug, info, warning"
    ):
        parse_levels(text)


def test_a_wrong_level_is_named_by_the_command(cli: Cli) -> None:
    said = cli("worker", "shop:app", "--log-level", "loud", code=2).output
    assert "'--log-level'" in said
    assert "got 'loud'" in said


async def test_runs_are_logged_only_where_the_level_asks_for_them(caplog: pytest.LogCaptureFixture) -> None:
    async with Windlass("memory://") as app:
        queue = Queue("q", app)
        for level, lines in (("WARNING", 0), ("INFO", 2)):
            caplog.clear()
            with caplog.at_level(level, "windlass.attempt"):
                await queue.add("work")
                await Worker("q", _nothing, url_or_app=app).drain()
            assert len([record for record in caplog.records if record.name == "windlass.attempt"]) == lines


@pytest.mark.parametrize("kind", [TimeoutError, concurrent.futures.CancelledError, StopIteration])
@pytest.mark.parametrize("batch", [None, 10])
async def test_the_log_of_a_plain_function_has_its_own_line_whatever_it_raised(
    caplog: pytest.LogCaptureFixture, kind: type[BaseException], batch: Any
) -> None:
    async with Windlass("memory://") as app:

        @app.task(name="work", max_attempts=1, batch=batch)
        def work(items: list[int]) -> None:
            raise kind("the bank did not answer")

        item: Any = 1 if batch else [1]
        job = await work.enqueue(item)
        await Worker("default", url_or_app=app).drain()
        assert await job.get_state() == "failed"
    assert 'raise kind("the bank did not answer")' in caplog.text
    assert "the bank did not answer" in caplog.text
    assert any('raise kind("the bank did not answer")' in error.traceback for error in job.errors)


async def _nothing(job: object) -> None:
    pass


def test_an_error_that_cannot_be_printed_still_has_its_line() -> None:
    class Hostile(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    error = Hostile()
    record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", None, (Hostile, error, None))
    assert Lines().format(record).splitlines()[0].endswith("x: failed")
