"""Restart a broker repeatedly under load, then check every job.

    scripts/restarts --restarts 20 --jobs 20

Two restarts of three are ``kill -9``, the third is an orderly shutdown. In each round ``--jobs`` jobs of each
kind are added while the broker restarts, and a worker runs them: *plain*, *later* (scheduled), *stumbles*
(fail once and are retried), *dies* (fail permanently), *far* (scheduled for much later) and, in a queue
without a worker, *waits*. At the end each job must be in the state of its kind. If the same attempt of a job
starts twice, that is a repeat. Repeats are counted by cause.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tools.restart_repeats import SETTLED, Repeats
from tools.services.rabbitmq import Server, rabbitmq_binary, running
from windlass import Job, JobState, Queue, Windlass, Worker
from windlass.errors import StorageError

_TWICE = {"max_attempts": 2, "backoff": {"type": "fixed", "delay": 0.1}}
#: Kind of job -> its queue, its options, the state in which it must end.
KINDS: dict[str, tuple[str, dict[str, Any], JobState]] = {
    "plain": ("q", {}, JobState.COMPLETED),
    "later": ("q", {"delay": 0.5}, JobState.COMPLETED),
    "stumbles": ("q", _TWICE, JobState.COMPLETED),
    "dies": ("q", {"max_attempts": 1}, JobState.FAILED),
    "far": ("q", {"delay": 90_000}, JobState.SCHEDULED),
    "waits": ("still", {}, JobState.WAITING),
}
#: A restart counts as a stall of the running jobs. Stalls alone must not fail a job here.
_STALLS: dict[str, Any] = {"max_stalls": 1_000}


@dataclass
class Tally:
    """The result of a campaign."""

    restarts: int = 0
    kills: int = 0
    added: Counter[str] = field(default_factory=Counter)
    #: Adds that were not acknowledged and therefore repeated with the same ids.
    repeated_adds: int = 0
    repeats: Repeats = field(default_factory=Repeats)
    lost: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    #: Jobs that should have run and did not, or ran and should not have.
    not_run: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.elsewhere or self.not_run)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.added.items()))
        return (
            f"{self.restarts} restarts ({self.kills} by kill -9), {self.added.total()} jobs ({kinds}); "
            f"{len(self.lost)} lost, {len(self.elsewhere)} not where they belong, {len(self.not_run)} "
            f"wrongly run or not run; {self.repeats.starts} starts, {self.repeats.count} of them repeats "
            f"of the same (job, attempt); {self.repeated_adds} adds repeated"
        )


class Campaign:
    """Restarts one broker under load, and checks the jobs."""

    def __init__(self, server: Server, *, restarts: int, jobs: int, queue_type: str = "classic") -> None:
        self._server = server
        self._url = f"{server.url}?heartbeat=5&queue_type={queue_type}"
        self._restarts = restarts
        self._jobs = jobs
        self.tally = Tally()
        self._wanted: dict[str, str] = {}

    async def run(self, *, settle_s: float = 120) -> Tally:
        """Do all restarts, then check the jobs."""
        async with Windlass(self._url) as app:
            worker = Worker("q", self._handle, url_or_app=app, poll=0.5, concurrency=20)
            for event in SETTLED:
                worker.on(event, lambda job, _: self.tally.repeats.settle(job))
            worker.on("lease_lost", self.tally.repeats.refuse)
            async with worker:
                for number in range(self._restarts):
                    # Begin with an orderly restart: RabbitMQ 3.10 loses new streams if it is killed at once.
                    await self._round(app, kill=number % 3 > 0)
                await self._settle(app, settle_s)
            await self._count(app)
        return self.tally

    async def _handle(self, job: Job[Any]) -> str:
        run = self.tally.repeats.start(job)
        await asyncio.sleep(0.005)
        run.ended = time.monotonic()
        if job.name == "dies" or (job.name == "stumbles" and job.attempt == 1):
            raise ValueError("on purpose")
        return job.id

    async def _round(self, app: Windlass, *, kill: bool) -> None:
        tasks = [asyncio.create_task(self._add(app, kind, n)) for kind in KINDS for n in range(self._jobs)]
        down = time.monotonic()
        await asyncio.to_thread(self._server.restart, kill=kill)
        self.tally.repeats.outages.append((down, time.monotonic()))
        await asyncio.gather(*tasks)
        self.tally.restarts += 1
        self.tally.kills += kill

    async def _add(self, app: Windlass, kind: str, number: int) -> None:
        """Add a job, and repeat the add until it is acknowledged."""
        job_id = f"{kind}-{self.tally.restarts}-{number}"
        self._wanted[job_id] = kind
        queue, options, _ = KINDS[kind]
        await asyncio.sleep(number * 0.02)  # spread the adds over the whole restart
        async with asyncio.timeout(120):
            while True:
                try:
                    await app.queue(queue).add(kind, {"n": number}, job_id=job_id, **options, **_STALLS)
                    break
                except StorageError:
                    self.tally.repeated_adds += 1
                    await asyncio.sleep(0.2)
        self.tally.added[kind] += 1

    async def _find(self, app: Windlass) -> dict[str, Job[Any] | None]:
        found: dict[str, Job[Any] | None] = {}
        for job_id, kind in self._wanted.items():
            queue: Queue = app.queue(KINDS[kind][0])
            found[job_id] = await queue.get_job(job_id)
        return found

    async def _settle(self, app: Windlass, limit_s: float) -> None:
        """Wait until the counts show that all jobs are finished, at most ``limit_s`` seconds."""
        end = time.monotonic() + limit_s
        busy = (JobState.WAITING, JobState.ACTIVE, JobState.RETRYING)
        while time.monotonic() < end:
            try:
                counts = await app.queue("q").get_job_counts()
                due = counts[JobState.SCHEDULED] - self.tally.added["far"]
                if not due and not any(counts[state] for state in busy):
                    return
            except StorageError:
                pass
            await asyncio.sleep(0.2)

    async def _count(self, app: Windlass) -> None:
        ran = {job_id for job_id, _ in self.tally.repeats.runs}
        for job_id, job in (await self._find(app)).items():
            _, _, state = KINDS[self._wanted[job_id]]
            if job is None:
                self.tally.lost.append(job_id)
            elif job.state is not state:
                self.tally.elsewhere.append(f"{job_id}: {job.state}, not {state}")
            if (job_id in ran) != (state in (JobState.COMPLETED, JobState.FAILED)):
                self.tally.not_run.append(job_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--restarts", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=20, help="of each kind, in each round")
    parser.add_argument("--queue-type", choices=["classic", "quorum"], default="classic")
    arguments = parser.parse_args()
    binary = rabbitmq_binary()
    if binary is None:
        sys.exit("rabbitmq-server is missing: apt-get install rabbitmq-server")
    with running(binary) as server:
        campaign = Campaign(
            server, restarts=arguments.restarts, jobs=arguments.jobs, queue_type=arguments.queue_type
        )
        tally = asyncio.run(campaign.run())
    print(tally)
    print(tally.repeats.table())
    for wrong in (*tally.lost, *tally.elsewhere, *tally.not_run):
        print(wrong)
    sys.exit(0 if tally.is_good else 1)


if __name__ == "__main__":
    main()
