"""Lost workers, whose heartbeats stopped, with the jobs that they held.

The history says which runs ended because their worker was lost. Each queue's log is read from where the last
call stopped, so that a page that polls every few seconds reads only new records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from windlass.api.app import Windlass
from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.core.job import AttemptOutcome, JobRef, QueueInfo, WorkerInfo
from windlass.core.states import JobState
from windlass.dashboard.shapes.workers import LostWorker
from windlass.dashboard.views import lost_worker
from windlass.errors import HistoryTrimmedError

#: How many of a queue's newest attempt records are searched for runs of lost workers.
_HISTORY = 2_000
#: Such runs that are kept for one queue.
_KEPT = 1_000
#: Lost workers that are shown, and jobs for each.
_LOST = 20
_JOBS = 50
_ACTIVE = 1_000


class LostRun(NamedTuple):
    """A run that ended because its worker was lost."""

    worker: str
    ref: JobRef


@dataclass(slots=True)
class _Read:
    """How far the history of a queue was read, and the runs that were found."""

    upto: int = 0
    runs: deque[LostRun] = field(default_factory=lambda: deque(maxlen=_KEPT))


class LostRuns:
    """Runs of lost workers, by queue."""

    def __init__(self, app: Windlass) -> None:
        self._app = app
        self._queues: dict[str, _Read] = {}

    async def entries(self, infos: list[QueueInfo], lost: list[WorkerInfo]) -> list[LostWorker]:
        """Lost workers with the jobs that they held in these queues: jobs that still name them, and jobs that
        were recovered."""
        shown = lost[:_LOST]
        held = await self._held(infos, shown)
        refs = list({ref: None for one in held.values() for ref in one})
        answers = await self._app.store.execute(rq.GetJobs(refs=refs)) if refs else []
        kept = {ref: record for ref, record in zip(refs, answers, strict=True) if record is not None}
        return [
            lost_worker(worker, [kept[ref] for ref in held[worker.id] if ref in kept]) for worker in shown
        ]

    async def _held(self, infos: list[QueueInfo], lost: list[WorkerInfo]) -> dict[str, list[JobRef]]:
        """The jobs that each worker held when it was lost."""
        held: dict[str, dict[JobRef, None]] = {worker.id: {} for worker in lost}
        served = {name for worker in lost for name in worker.queues}
        queues = [info for info in infos if info.name in served]
        for info in queues:
            if info.counts.get(JobState.ACTIVE):
                request = rq.ListJobs(queue=info.name, states=[JobState.ACTIVE], limit=_ACTIVE)
                for job in (await self._app.store.execute(request)).jobs:
                    if job.worker in held:
                        held[job.worker][job.ref] = None
        for run in await self._of(info.name for info in queues):
            if run.worker in held:
                held[run.worker][run.ref] = None
        return {worker: list(refs)[:_JOBS] for worker, refs in held.items()}

    async def _of(self, queues: Iterable[str]) -> list[LostRun]:
        """The lost runs of these queues, from the newest records of the history."""
        wanted = list(queues)
        if not wanted or not self._app.store.capabilities.metrics:
            return []
        ends = {end.queue: end for end in await self._app.store.execute(mq.MetricsProgress())}
        self._queues = {name: read for name, read in self._queues.items() if name in ends}
        found: list[LostRun] = []
        for name in wanted:
            if name in ends:
                found += await self._read_on(name, ends[name].oldest, ends[name].newest)
        return found

    async def _read_on(self, queue: str, oldest: int, newest: int) -> Iterable[LostRun]:
        read = self._queues.setdefault(queue, _Read())
        if newest < read.upto:  # the store lost its data: this is another log
            read = self._queues[queue] = _Read()
        if newest > read.upto:
            after = max(read.upto, newest - _HISTORY, oldest - 1, 0)
            try:
                page = await self._app.store.execute(rq.ReadHistory(queue=queue, after=after, limit=_HISTORY))
            except HistoryTrimmedError:
                return read.runs  # trimmed meanwhile; the next call starts at the new oldest record
            read.upto = max(page.last, read.upto)
            read.runs.extend(
                LostRun(one.worker, JobRef(queue, one.job_id))
                for one in page.records
                if one.outcome is AttemptOutcome.STALLED and one.worker is not None
            )
        return read.runs
