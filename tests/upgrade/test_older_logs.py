"""A log of the file store that the release before wrote is opened, read alike and worked off by this one.

``file-1`` is the namespace of a directory as the last release with format 1 left it: jobs in every state,
groups, keys, a flow, schedules, history, log lines and output. ``listing.json`` is what that release itself
answered about it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.backends.file.support import client, ended, log_of, opened
from tests.upgrade.listing import listing
from windlass import StorageError
from windlass.backend import requests as rq
from windlass.backends.file import directory, errors, frames
from windlass.core.ids import new_id
from windlass.core.job import NewJob
from windlass.core.states import JobState

HERE = Path(__file__).parent / "file-1"
#: When the earlier release wrote its last step, and was asked.
WRITTEN_MS = 1_790_000_001_510
backend_name = "file"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory as the earlier release left it."""
    found = tmp_path / "jobs"
    shutil.copytree(HERE, found / "default", ignore=shutil.ignore_patterns("*.json"))
    (found / directory.MARKER).write_bytes(directory._MARKER_TEXT)
    return found


def expected() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "listing.json").read_text())
    return found


def formats_of(log: Path) -> list[int]:
    """The format of each frame."""
    data, at, found = memoryview(log.read_bytes()), 0, []
    while (frame := frames.read(data, at)) is not None:
        found.append(data[at + len(frames.MAGIC)])
        at = frame.end
    assert at == len(data)
    return found


async def add_one(path: Path) -> None:
    """Write one step."""
    async with opened(path) as store:
        job = NewJob(queue="old", id="new", task="ok", payload=b"{}")
        (added,) = await store.execute(rq.Add(jobs=[job], now_ms=WRITTEN_MS + 1))
        assert added.state is JobState.WAITING


def test_the_log_has_jobs_in_every_state() -> None:
    queues = [expected()[info["name"]] for info in expected()["queues"]]
    states = {JobState(job.get("state", "waiting")) for queue in queues for job in queue["jobs"]}
    assert states == set(JobState)


async def test_a_log_of_the_release_before_is_read_as_that_release_read_it(path: Path) -> None:
    before = log_of(path).read_bytes()
    for _ in range(2):
        async with opened(path) as store:
            assert json.loads(json.dumps(await listing(store, WRITTEN_MS + 1))) == expected()
    assert log_of(path).read_bytes() == before, "reading writes nothing: the earlier release can go on"


async def test_a_log_of_the_release_before_is_worked_off(path: Path) -> None:
    now_ms = WRITTEN_MS + 2 * 86_400_000
    async with opened(path) as store:
        recovered = await store.execute(rq.Recover(now_ms=now_ms))
        assert {ref.id for ref in recovered.recovered} == {"active", "g-active", "h-1"}
        assert {ref.id for ref in recovered.expired} == {"expires"}
        for _ in range(30):
            now_ms += 3_600_000
            await store.execute(rq.Promote(now_ms=now_ms))
            wanted = [rq.ClaimQueue(queue, 10, 10) for queue in ("old", "groups")]
            claim = rq.Claim(worker="w", queues=wanted, limit=20, claim_id=new_id(), now_ms=now_ms)
            jobs = (await store.execute(claim)).jobs
            await store.execute(rq.Settle(items=[ended(job) for job in jobs], now_ms=now_ms))
        counts = {
            queue: {state for state, n in (await store.execute(rq.CountJobs(queue=queue))).items() if n}
            for queue in ("old", "groups", "keys")
        }
        history = await store.execute(rq.ReadHistory(queue="old", now_ms=now_ms))
    assert counts["old"] <= {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}
    assert counts["groups"] == {JobState.COMPLETED, JobState.PARKED}, "one group is paused"
    assert counts["keys"] == {JobState.WAITING}, "that queue is paused"
    known = expected()["old"]["history"]["records"]
    assert [record.job_id for record in history.records][: len(known)] == [one["job_id"] for one in known]


async def test_the_first_step_of_this_release_keeps_earlier_ones_out_with_advice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(path)
    before = formats_of(log)
    assert set(before) == {1}
    await add_one(path)
    assert formats_of(log) == [*before, frames.FORMAT]
    assert frames.FORMAT > 1
    written = log.read_bytes()
    for module in (frames, directory, errors):
        monkeypatch.setattr(module, "FORMAT", 1)  # as the earlier release reads it
    with pytest.raises(StorageError, match=r"has format 2 .* up to 1: a newer version wrote it\. Upgrade"):
        await client(path).open()
    assert log.read_bytes() == written
