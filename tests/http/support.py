"""The API in tests: a client of it, without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from windlass import Windlass
from windlass.dashboard import ServerLimits, create_app
from windlass_conformance.stage import Stage

OPERATOR = "operator-token-of-the-tests"
READER = "reader-token-of-the-tests"
CSRF = {"X-Windlass-CSRF": "1"}
#: Tests ask faster than people.
FREE = ServerLimits(burst=100_000, change_burst=100_000, per_second=1e6, changes_per_second=1e6)


@asynccontextmanager
async def api(
    url_or_app: str | Windlass, *, headers: dict[str, str] | None = None, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the dashboard of a store, as a program on this machine."""
    options.setdefault("limits", FREE)
    transport = httpx.ASGITransport(create_app(url_or_app, **options))
    given = CSRF if headers is None else headers
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8080", headers=given
    ) as client:
        yield client


async def get(client: httpx.AsyncClient, path: str, status: int = 200, **params: Any) -> Any:
    """The JSON of an answer."""
    answer = await client.get(path, params=params or None)
    assert answer.status_code == status, answer.text
    return answer.json()


async def send(client: httpx.AsyncClient, method: str, path: str, status: int, body: Any = None) -> Any:
    """Send a change; the JSON of the answer, None when it has no content."""
    answer = await client.request(method, path, json=body)
    assert answer.status_code == status, f"{answer.status_code} {answer.text}"
    return answer.json() if answer.content else None


class Shop:
    """Jobs in every state that the job-queue API knows, on one store."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.ids: dict[str, str] = {}

    async def fill(self) -> Shop:
        """One job each: done, dead, to be retried, scheduled, waiting."""
        queue = self.stage.queue

        async def handle(job: Any) -> str:
            await job.log(f"run {job.attempt}")
            if job.name == "send":
                return "sent"
            raise TimeoutError(f"no answer from {job.data['to']}")

        worker = await self.stage.work(handle)
        self.ids["done"] = (await queue.add("send", {"to": "ada"}, tags=["paid"])).id
        self.ids["dead"] = (await queue.add("fail", {"to": "bob"}, max_attempts=1)).id
        self.ids["retry"] = (await queue.add("fail", {"to": "eve"}, max_attempts=5, backoff=600)).id
        await self.stage.settle()
        await worker.close()
        self.ids["scheduled"] = (await queue.add("send", {"to": "joe"}, delay=3_600)).id
        self.ids["waiting"] = (await queue.add("send", ["kim", 7], tags=["late"])).id
        await self.stage.advance(2)
        return self

    def __getitem__(self, name: str) -> str:
        return self.ids[name]
