"""Searches that an index answers look at no other jobs; how many were looked at tells nothing of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.backends.sqlite.support import add, claim, new, opened
from windlass.backend import requests as rq
from windlass.backends.sqlite import SqliteBackend, inspection
from windlass.core.job import ErrorInfo, JobRef
from windlass.core.options import StoredOptions, placed
from windlass.core.order import Sort
from windlass.core.outcome import Outcome, Settled, Settlement
from windlass.core.states import JobState

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


async def looked_at(store: SqliteBackend, **asked: Any) -> int:
    """The jobs that all pages together went through."""
    looked, cursor = 0, None
    while True:
        page = await store.execute(rq.ListJobs(queue="q", limit=10, cursor=cursor, **asked))
        looked, cursor = looked + page.looked, page.cursor
        if cursor is None:
            return looked


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize(
    ("asked", "sortable", "jobs"),
    [
        ({}, 0, 120),
        ({}, 1_000, 120),
        ({"states": [JobState.SCHEDULED]}, 0, 40),
        ({"states": [JobState.SCHEDULED]}, 1_000, 40),
        ({"sort": Sort.DUE}, 0, 40),
        ({"fingerprint": "f"}, 0, 40),
        ({"fingerprint": "f"}, 1_000, 120),
        ({"tops": True}, 0, 40),
    ],
)
async def test_how_many_jobs_were_looked_at_does_not_tell_which_text_they_hold(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, Any],
    sortable: int,
    jobs: int,
    newest_first: bool,
) -> None:
    for name, value in (("SORTABLE", sortable), ("_FEW", sortable), ("SCAN", 25)):
        monkeypatch.setattr(inspection, name, value)
    async with opened(tmp_path / "jobs.db") as store:
        await fill(store)
        for text in ("secret", "nothing"):
            hints = (rq.Hint("payload", text),)
            assert await looked_at(store, hints=hints, newest_first=newest_first, **asked) == jobs, text


async def fill(store: SqliteBackend) -> None:
    """Jobs that failed, wait as tops of flows, and are due later, 40 each; a few of each hold a secret."""

    def payload(n: int) -> bytes:
        return b'["secret"]' if n % 3 == 1 else b"[]"

    await add(store, *(new(payload=payload(n)) for n in range(40)))
    error = ErrorInfo(fingerprint="f")
    ends = [
        Settlement(queue="q", id=job.id, token=job.token or "", outcome=Outcome.FAIL, error=error)
        for job in await claim(store, limit=40)
    ]
    await store.execute(rq.Settle(items=ends))
    await add(store, *(new("beside") for _ in range(30)))
    tops = [(f"top{n}", placed(StoredOptions(), None, JobRef("q", f"top{n}"))) for n in range(40)]
    await add(store, *(new(id=tops[n][0], options=tops[n][1], payload=payload(n)) for n in range(40)))
    await add(store, *(new(delay_ms=60_000 + n, payload=payload(n)) for n in range(40)))
