"""Searches that an index answers look at no other jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.sqlite.support import add, claim, new, opened
from windlass.backend import requests as rq
from windlass.core.job import ErrorInfo, JobRef
from windlass.core.options import StoredOptions, placed
from windlass.core.outcome import Outcome, Settled, Settlement

backend_name = "sqlite"


@pytest.mark.feature("A30")
@pytest.mark.parametrize("newest_first", [True, False])
async def test_a_search_by_error_or_for_flows_looks_only_at_jobs_that_can_fit(
    tmp_path: Path, newest_first: bool
) -> None:
    async with opened(tmp_path / "jobs.db") as store:
        for _ in range(3):
            await add(store, *(new() for _ in range(500)))
        (job,) = await claim(store, limit=1)
        error = ErrorInfo(fingerprint="f")
        end = Settlement(queue="q", id=job.id, token=job.token or "", outcome=Outcome.FAIL, error=error)
        assert (await store.execute(rq.Settle(items=[end]))).items == [Settled.OK]
        root = JobRef("q", "top")
        await add(store, new(id="top", options=placed(StoredOptions(), None, root)))
        await add(store, new(id="leaf", options=placed(StoredOptions(), root, root)))
        tops = await store.execute(rq.ListJobs(queue="q", tops=True, newest_first=newest_first))
        assert ([one.id for one in tops.jobs], tops.looked, tops.cursor) == (["top"], 1, None)
        failed = await store.execute(rq.ListJobs(queue="q", fingerprint="f", newest_first=newest_first))
        assert ([one.id for one in failed.jobs], failed.looked) == ([job.id], 1)
