"""Texts of jobs that try to steer a terminal, or to forge a line of a log."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
from typing import Any

import msgspec
import pytest

from tests.cli.support import Cli
from windlass import Windlass
from windlass.backend import requests as rq
from windlass.cli.output import Column, Out, make_table, styled
from windlass.core.job import ErrorInfo
from windlass.core.outcome import Outcome, Settlement
from windlass.telemetry.logs import JsonLines, Lines

#: Colour, a title for the window, a cleared screen (seven and eight bit), a forged line, turned writing.
EVIL = "\x1b[31mred\x1b]0;title\x07\x9b2J\r\nforged line\x08\x00\u202etxet"


async def _evil_job(app: Windlass) -> str:
    """A job whose every text is hostile, written past all that cleans texts."""
    queue = app.queue("mail")
    new = queue.prepare("send", {"text": EVIL, EVIL: [EVIL]}, max_attempts=1)
    new.task = EVIL
    new.options = msgspec.structs.replace(new.options, tags=(EVIL,))
    await app.store.execute(rq.Add(jobs=[new]))
    claim = rq.Claim(
        worker=EVIL, queues=[rq.ClaimQueue("mail", 1, 1)], limit=1, lease_ms=60_000, claim_id="c"
    )
    (job,) = (await app.store.execute(claim)).jobs
    await app.store.execute(rq.Report(ref=job.ref, token=job.token, logs=[EVIL]))
    end = Settlement(
        queue="mail",
        id=job.id,
        token=job.token or "",
        outcome=Outcome.FAIL,
        error=ErrorInfo(1, 1, EVIL, EVIL, f"Traceback\n{EVIL}"),
        reason=EVIL,
    )
    await app.store.execute(rq.Settle(items=[end]))
    return job.id


def _check(written: str) -> None:
    """Nothing of the job's own reaches the terminal: no control character but the line breaks of ours."""
    bad = {char for char in written if char != "\n" and (ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0)}
    assert not bad
    assert "\u202e" not in written
    assert not any(line.startswith("forged") for line in written.splitlines())


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_no_command_prints_a_jobs_control_characters(cli: Cli, form: tuple[str, ...]) -> None:
    job_id = cli.app(_evil_job)
    commands = [
        ("job", "mail", job_id),
        ("jobs", "mail"),
        ("events", "mail"),
        ("history", "mail"),
        ("queues",),
        ("doctor",),
        ("retry", "mail", job_id),
        ("remove", "mail", job_id, "--yes"),
    ]
    _check(cli("jobs", "mail", "--export").output)
    for command in commands:
        _check(cli(*command, *form).output)


def test_colours_in_a_terminal_are_ours_alone(cli: Cli) -> None:
    job_id = cli.app(_evil_job)
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "windlass", "job", "mail", job_id, "--url", cli.url]
    done = subprocess.Popen(command, stdout=child, stderr=child, env={**os.environ, "TERM": "xterm-256color"})
    os.close(child)
    written = b""
    while True:
        try:
            part = os.read(parent, 65_536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        written += part
    assert done.wait(20) == 0
    os.close(parent)
    for hostile in (
        b"\x1b]0;",
        b"\x07",
        b"\x08",
        b"\x00",
        "\x9b".encode(),
        "\u202e".encode(),
        b"\x1b[31mred",
    ):
        assert hostile not in written
    assert rb"\x1b[31mred" in written, "it is shown, as an escape"


def test_tables_texts_and_errors_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    out = Out()
    out.text(EVIL)
    out.note(EVIL)
    out.error(EVIL)
    out.table([Column("a")], [[EVIL], [styled("x", "").append(EVIL)]])
    out.document({"a": EVIL})
    out.line([EVIL])
    told = capsys.readouterr()
    _check(told.out + told.err)
    assert make_table([Column("a")], [[EVIL]], 80).row_count == 1
    assert json.loads(told.out.splitlines()[-1]) == [EVIL], "programs read what was there"


def _record(message: str, *args: Any, exc: BaseException | None = None) -> logging.LogRecord:
    info = None if exc is None else (type(exc), exc, None)
    return logging.LogRecord("windlass.worker", logging.WARNING, "", 0, message, args, info)


def test_a_log_line_is_one_line() -> None:
    record = _record("no handler here for task %s", EVIL)
    record.job_id, record.task = EVIL, EVIL
    for formatter in (Lines(), JsonLines()):
        line = formatter.format(record)
        _check(line)
        assert "\n" not in line
    assert json.loads(JsonLines().format(record))["job_id"] == EVIL


class NoText(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


def test_no_line_is_lost_because_of_what_is_in_it() -> None:
    record = _record("half of %s", "a pair \ud800", exc=NoText())
    record.job_id, record.odd = "\ud800", NoText()
    line = json.loads(JsonLines().format(record))
    assert (line["message"], line["job_id"]) == ("half of a pair \\ud800", "\\ud800")
    assert line["odd"] == line["error"]["message"] == "<a NoText that cannot be printed>"
    assert line["error"]["class"] == "NoText"


def test_tracebacks_keep_their_lines_and_nothing_else() -> None:
    line = Lines().format(_record("it failed", exc=ValueError("\x1b[2Jgone")))
    _check(line)
    assert line.splitlines()[-1] == r"ValueError: \x1b[2Jgone"
