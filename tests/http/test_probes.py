"""Probes, which anyone may ask: what they tell, and what they cost."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import pytest

from tests.http.support import OPERATOR, api
from windlass import Windlass
from windlass.backend import requests as rq
from windlass.dashboard.readiness import Readiness
from windlass.errors import StorageError

backend_name = "memory"
MINE = {"Authorization": f"Bearer {OPERATOR}"}


async def test_strangers_learn_nothing_about_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Readiness) -> str:
        return "no route to db-7.internal:6379"

    async with Windlass(f"memory://{uuid4().hex}") as app:
        async with api(app, headers={}, operator_tokens=OPERATOR) as client:
            assert (await client.get("/live")).json() == {
                "live": True,
                "ready": True,
                "reason": "",
                "backend": "",
            }
            assert (await client.get("/ready", headers=MINE)).json()["backend"] == "memory"
            monkeypatch.setattr(Readiness, "reason", broken)
            strange, known = await client.get("/ready"), await client.get("/ready", headers=MINE)
            assert (strange.status_code, known.status_code) == (503, 503)
            assert "db-7" not in strange.text
            assert "db-7" in known.text


async def test_the_store_is_asked_once_a_second_however_many_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    async with Windlass(f"memory://{uuid4().hex}") as app:
        execute = app.store.execute

        async def counting(request: Any) -> Any:
            asked.append(type(request))
            return await execute(request)

        monkeypatch.setattr(app.store, "execute", counting)
        async with api(app) as client:
            answers = await asyncio.gather(*(client.get("/ready") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert asked == [rq.ListWorkers]


async def test_a_failed_request_writes_one_line_of_the_log_besides_its_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(request: Any) -> Any:
        raise StorageError("gone\nERROR forged \x1b[2J line")

    async with Windlass(f"memory://{uuid4().hex}") as app:
        monkeypatch.setattr(app.store, "execute", failing)
        async with api(app) as client:
            caplog.set_level(logging.WARNING, "windlass.dashboard")
            assert (await client.get("/api/job-queues")).status_code == 503
    told = [record.getMessage() for record in caplog.records if record.name == "windlass.dashboard"]
    assert len(told) == 1
    assert not {"\n", "\x1b"} & set(told[0])
