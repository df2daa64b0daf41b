"""The newest job tells the store's place and clock: damage to it must not stop the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass import Windlass, Worker
from windlass_conformance.damage import damage, kinds


@pytest.mark.feature("J24")
@pytest.mark.parametrize("kind", kinds("sqlite:///x"))
async def test_a_damaged_newest_job_stops_no_other_process(tmp_path: Path, kind: str) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    async with Windlass(url) as one, Windlass(url) as other:
        queue = one.queue("q")
        honest = await queue.add("n", 1)
        newest = await queue.add("n", 2, delay=3_600)
        damage(url, "q", newest.id, kind)
        for app in (one, other):
            assert sum((await app.queue("q").get_job_counts()).values()) >= 2
            assert (await app.queue("q").add("n", 3)).outcome == "queued"
        async with Worker("q", lambda job: job.data, url_or_app=other):
            assert await honest.result(10) == 1
