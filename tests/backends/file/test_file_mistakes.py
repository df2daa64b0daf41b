"""Mistakes that a store in plain files invites: none is made here."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from tests.backends.file.support import add, claim, ended, jobs_of, log_of, new, opened, settle
from windlass.backend import requests as rq
from windlass.backend.local.socket_folder import directory
from windlass.core.options import StoredOptions
from windlass.core.outcome import AddOutcome
from windlass.core.states import JobState

backend_name = "file"
pytestmark = [pytest.mark.feature("L9")]


async def test_of_producers_that_add_one_id_at_once_only_one_does(tmp_path: Path) -> None:
    """Two nodes of this process share nothing but the directory, as two processes do."""
    path = tmp_path / "store"
    async with opened(path, timeout=20) as one, opened(path, timeout=21) as other:
        for turn in range(10):
            calls = [add(store, new(id=f"job{turn}", request_id="")) for store in (one, other) * 5]
            outcomes = Counter(answer[0].outcome for answer in await asyncio.gather(*calls))
            assert outcomes == {AddOutcome.QUEUED: 1, AddOutcome.DUPLICATE: 9}
        assert list(await jobs_of(other)) == [f"job{turn}" for turn in range(10)]


async def test_a_crash_leaves_a_job_whole_or_not_at_all(tmp_path: Path) -> None:
    """Whatever part of an add reached the disk: either it can be claimed, or it can be added again."""
    path = tmp_path / "store"
    async with opened(path, synchronous="off"):
        before = log_of(path).stat().st_size
    async with opened(path, synchronous="off") as store:
        await add(store, new(id="a", request_id=""))
    whole = log_of(path).read_bytes()
    for cut in range(before, len(whole) + 1, 7):
        log_of(path).write_bytes(whole[:cut])
        async with opened(path, synchronous="off") as store:
            answer = (await add(store, new(id="a", request_id="")))[0]
            there = cut == len(whole)
            assert answer.outcome is (AddOutcome.DUPLICATE if there else AddOutcome.QUEUED)
            assert [job.id for job in await claim(store)] == ["a"]


async def test_no_name_of_a_job_becomes_a_path(tmp_path: Path) -> None:
    path = tmp_path / "store"
    ids = ["..", ".", "-", "con", "x" * 256, "A", "a", "current", "00000001.log"]
    async with opened(path) as store:
        before = list(os.walk(tmp_path))
        await add(store, *[new(id=job_id) for job_id in ids])
        assert list(await jobs_of(store)) == ids
        assert list(os.walk(tmp_path)) == before


async def test_a_claim_looks_at_no_directory_and_costs_the_same_behind_many_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path / "store", synchronous="off") as store:
        await add(store, *[new() for _ in range(3_000)])
        await claim(store, 1)
        listed: list[object] = []
        real = os.listdir

        def listdir(place: str) -> list[str]:
            listed.append(place)
            return real(place)

        monkeypatch.setattr(os, "listdir", listdir)
        length = log_of(tmp_path / "store").stat().st_size
        await claim(store, 1)
        grown = log_of(tmp_path / "store").stat().st_size - length
        assert set(listed) <= {directory(str(log_of(tmp_path / "store").parent / "wake"))}, (
            "but for the sockets"
        )
        assert grown < 600, "one claim writes one job, however many wait"


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    """A process that is killed while it holds the lock is in nobody's way, and no file has to be removed."""
    script = textwrap.dedent(
        """
        import asyncio, os, signal, sys
        from pathlib import Path
        from tests.backends.file.support import add, new, opened
        from windlass.core import probe

        async def main(path):
            async with opened(path) as store:
                await add(store, new(id="first"))
                points = probe.Probe()
                points.arm("file.locked", lambda point, facts: os.kill(os.getpid(), signal.SIGKILL))
                probe.install(points)
                await add(store, new(id="second"))

        asyncio.run(main(Path(sys.argv[1])))
        """
    )
    path = tmp_path / "store"
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL

    async def go_on() -> list[str]:
        async with opened(path, timeout=2) as store:
            await add(store, new(id="third"))
            return list(await jobs_of(store))

    assert asyncio.run(go_on()) == ["first", "third"]


async def test_expiry_is_in_the_record_and_not_in_the_time_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with opened(path) as store:
        await add(store, new(id="a", options=StoredOptions(result_ttl_ms=1_000)))
        (job,) = await claim(store)
        await settle(store, ended(job, result=b"1"))
    for folder, _, names in os.walk(path):
        for name in names:
            if not re.fullmatch(r"[0-9a-f]{8}\..*", name):
                os.utime(os.path.join(folder, name), (0, 0))  # as after a copy
    async with opened(path) as store:
        found = (await jobs_of(store))["a"]
        assert found.result == b"1"
        assert found.finished_ms is not None
        assert found.result_until_ms == found.finished_ms + 1_000
        late = rq.ListJobs(queue="q", now_ms=found.finished_ms + 1_001)
        assert (await store.execute(late)).jobs[0].result is None


async def test_jobs_of_a_worker_that_is_gone_come_back(tmp_path: Path) -> None:
    """Recovery goes by leases: it needs no record of the worker at all."""
    async with opened(tmp_path / "store") as store:
        await add(store, new(id="a"))
        (job,) = await claim(store, worker="gone", lease_ms=1_000)
        assert await store.execute(rq.ListWorkers()) == []
        assert job.lease_until_ms is not None
        recovered = await store.execute(rq.Recover(now_ms=job.lease_until_ms))
        assert [ref.id for ref in recovered.recovered] == ["a"]
        counts = await store.execute(rq.CountJobs(queue="q"))
        assert counts[JobState.WAITING] == 1
        assert [again.deliveries for again in await claim(store)] == [2]
