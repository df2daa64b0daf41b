"""Several writers on one directory, killed at random points, again and again: ``... killing DIR SEED KILLS``.

Each writer tells what it was acknowledged; after every round the directory is opened anew and compared with
that. The driver has no threads of its own and forks its writers, so that a round takes half a second.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.backends.file.support import add, claim, ended, jobs_of, new, opened, settle
from windlass.backend import requests as rq
from windlass.backends.file import compaction
from windlass.core import probe
from windlass.core.job import AttemptOutcome
from windlass.core.outcome import Outcome, Settled
from windlass.core.states import FINISHED, JobState

#: Where a writer may die, and how often it passes there before (about).
POINTS = {
    "file.locked": 12,
    "file.decided": 10,
    "file.appending": 10,
    "file.appended": 10,
    "file.syncing": 10,
    "file.synced": 10,
    "file.compacting": 2,
    "file.swapping": 2,
}
WRITERS = 4


def die(point: str, facts: dict[str, Any]) -> None:
    """Be killed here; while appending, after a part of the bytes went out."""
    if point == "file.appending":
        data = facts["data"]
        os.pwrite(facts["fd"], data[: random.randrange(len(data))], facts["offset"])
    os.kill(os.getpid(), signal.SIGKILL)


async def write(path: Path, name: str, told: int) -> None:
    """Add, claim and settle until killed; every acknowledged change is told."""

    def tell(word: str, job_id: str) -> None:
        os.write(told, f"{word} {job_id}\n".encode())

    async with opened(path, synchronous="off", timeout=20) as store:
        for turn in range(30):
            jobs = [new(id=f"{name}-{turn}-{n}", payload=b"x" * 200) for n in range(3)]
            await add(store, *jobs)
            for job in jobs:
                tell("added", job.id)
            leased = await claim(store, 2, worker=name)
            outcome = Outcome.COMPLETE if turn % 3 else Outcome.RETRY
            answers = await settle(store, *[ended(job, outcome) for job in leased])
            for done, answer in zip(leased, answers, strict=True):
                assert answer is Settled.OK, f"{done.id}: {answer}"
                if outcome is Outcome.COMPLETE:
                    tell("completed", done.id)
        os.kill(os.getpid(), signal.SIGKILL)  # it did not come to its point: others were quicker


def fork(path: Path, name: str, chance: random.Random) -> tuple[int, int]:
    """A writer that will be killed; its process and where it tells what it did."""
    reading, told = os.pipe()
    point = chance.choice(list(POINTS))
    count = chance.randrange(POINTS[point])
    pid = os.fork()
    if pid:
        os.close(told)
        return pid, reading
    try:
        random.seed(chance.random())
        compaction.SHORT_LOG = 100_000
        compaction.FACTOR = 0
        points = probe.Probe()
        if count:
            points.arm(point, lambda _point, _facts: None, times=count)
        points.arm(point, die)
        probe.install(points)
        asyncio.run(write(path, name, told))
        os._exit(1)  # it should have been killed
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def read_all(fd: int) -> list[str]:
    text = b""
    while data := os.read(fd, 65_536):
        text += data
    os.close(fd)
    whole, _, _ = text.rpartition(b"\n")
    return whole.decode().split("\n") if whole else []


async def check(path: Path, added: set[str], completed: set[str]) -> None:
    """No acknowledged job is lost, none is completed twice."""
    async with opened(path, synchronous="off") as store:
        jobs = await jobs_of(store)
        lost = added - jobs.keys()
        assert not lost, f"lost: {sorted(lost)[:5]}"
        undone = [job_id for job_id in completed if jobs[job_id].state is not JobState.COMPLETED]
        assert not undone, f"not completed any more: {undone[:5]}"
        history = (await store.execute(rq.ReadHistory(queue="q", limit=1_000_000))).records
        ends = Counter(row.job_id for row in history if row.outcome is AttemptOutcome.COMPLETED)
        twice = [job_id for job_id, count in ends.items() if count > 1]
        assert not twice, f"completed twice: {twice[:5]}"
        assert len({row.run_id for row in history}) == len(history), "a lease was settled twice"
        counts = await store.execute(rq.CountJobs(queue="q"))
        assert sum(counts.values()) == len(jobs)


async def drain(path: Path) -> int:
    """All that is left is run to its end; returns how many jobs there are."""
    async with opened(path, synchronous="off") as store:
        later_ms = 10**14
        await store.execute(rq.Recover(limit=100_000, now_ms=later_ms))
        await store.execute(rq.Promote(limit=100_000, now_ms=later_ms))
        while leased := await claim(store, 1_000):
            await settle(store, *[ended(job) for job in leased])
        jobs = await jobs_of(store)
        assert all(job.state in FINISHED for job in jobs.values())
        return len(jobs)


def main(path: Path, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    killed = rounds = 0
    added: set[str] = set()
    completed: set[str] = set()
    while killed < kills:
        writers = [fork(path, f"r{rounds}w{n}", chance) for n in range(WRITERS)]
        for pid, reading in writers:
            for line in read_all(reading):
                word, job_id = line.split()
                (added if word == "added" else completed).add(job_id)
            _, status = os.waitpid(pid, 0)
            assert os.WIFSIGNALED(status), f"a writer ended by itself with {status}"
            killed += 1
        asyncio.run(check(path, added, completed))
        rounds += 1
    total = asyncio.run(drain(path))
    sys.stdout.write(f"killed {killed} added {len(added)} of {total} completed {len(completed)}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
