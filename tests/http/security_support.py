"""Who asks and what is asked, in the tests of the guard."""

from __future__ import annotations

from typing import Any

import httpx

from tests.http.support import OPERATOR, READER

OPERATOR_HEADERS = {"Authorization": f"Bearer {OPERATOR}"}
READER_HEADERS = {"Authorization": f"Bearer {READER}"}
TOKENS: dict[str, Any] = {"operator_tokens": OPERATOR, "reader_tokens": {"grafana": READER}}
CHANGE = ("POST", "/api/job-queues/mail/jobs")
JOB = {"task": "send", "data": {"to": "ada", "password": "hunter2", "nested": [{"api_token": "t"}]}}


async def status(client: httpx.AsyncClient, method: str, path: str, **more: Any) -> int:
    return (await client.request(method, path, **more)).status_code
