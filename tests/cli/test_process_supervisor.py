"""The parent of several worker processes."""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
from asyncio.subprocess import Process
from typing import Any

import pytest

from windlass.cli import process_supervisor
from windlass.cli.process_supervisor import ProcessPlan, ProcessSupervisor


@pytest.mark.feature("J16")
async def test_a_process_that_cannot_be_started_is_started_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start, refusals = asyncio.create_subprocess_exec, [OSError(errno.EAGAIN, "too many processes")]

    async def limited(*args: Any, **options: Any) -> Process:
        if refusals:
            raise refusals.pop()
        return await start(*args, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", limited)
    monkeypatch.setattr(process_supervisor, "_FIRST_PAUSE", 0)
    plan = ProcessPlan(command=lambda number, lifeline: [sys.executable, "-c", ""], processes=2, burst=True)
    try:
        assert await ProcessSupervisor(plan).run() == 0
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)
    assert "could not be started" in caplog.text
