"""A record that cannot be read is a row like any other in the dashboard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.http.support import api, get, send
from windlass import Windlass
from windlass_conformance.damage import damage, kinds

if TYPE_CHECKING:
    from pathlib import Path

backend_name = "sqlite"


@pytest.mark.feature("P10")
async def test_lists_and_pages_show_damaged_records_and_remove_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}?namespace=shop"
    async with Windlass(url) as app, api(app) as client:
        for number, kind in enumerate(kinds(url)):
            for name in ("first", "bad", "last"):
                await app.queue("mail").add("n", {"n": 1}, job_id=f"{name}{number}")
            await asyncio.to_thread(damage, url, "mail", f"bad{number}", kind)
            page = await get(client, "/api/jobs", queue="mail", limit=200)
            assert {f"{name}{number}" for name in ("first", "bad", "last")} <= {
                row["id"] for row in page["items"]
            }
            shown = await get(client, f"/api/jobs/mail/bad{number}")
            assert shown["reason"] == "bad_record", kind
            await get(client, "/api/job-queues")
            await get(client, "/api/job-queues/mail/jobs")
            await send(client, "DELETE", f"/api/jobs/mail/bad{number}", 204)
            await get(client, f"/api/jobs/mail/bad{number}", 404)
