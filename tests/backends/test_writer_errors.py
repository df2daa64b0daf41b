"""Errors on the writer's thread of a local store: every call that it has taken gets an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from windlass import Windlass
from windlass.backend.local.notify import Notifier
from windlass.core.outcome import AddOutcome


def _fail(*_: Any) -> None:
    raise RuntimeError("pulled the plug")


@pytest.mark.parametrize("url", ["sqlite:///{}/jobs.db", "file:///{}/jobs"], ids=["sqlite", "file"])
async def test_an_error_after_the_commit_is_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    async with Windlass(url.format(tmp_path)) as app:
        queue = app.queue("q")
        await queue.add("n", job_id="first")
        with monkeypatch.context() as patch:
            patch.setattr(Notifier, "announce", _fail)
            async with asyncio.timeout(5):  # the store's own timeout is 30 s
                second = await queue.add("n", job_id="second")  # repeats its request after the error
        assert second.outcome is AddOutcome.QUEUED
        assert await queue.count() == 2, "it was added once"
