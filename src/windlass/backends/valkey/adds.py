"""Adding jobs, with the requests of several callers in one call.

While one batch is in flight, new requests are collected for the next one. A single caller is served at once;
a thousand concurrent callers share a few round trips. The jobs of one request are always in the same batch,
so they are added in one step per slot. The time that a request waits for the batch before it counts against
its timeout.
"""

from __future__ import annotations

import asyncio
from typing import Any

from windlass.backend import requests as rq
from windlass.backend.calls import UNKNOWN, StoreCall
from windlass.backends.valkey import records, sent_records
from windlass.backends.valkey.client import ValkeyClient
from windlass.backends.valkey.codes import ADD_OUTCOMES, ALONE, GIVEN_AWAY, NEW_QUEUE, STATES
from windlass.backends.valkey.session import SlotGroup, ValkeySession, together
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import NewJob
from windlass.core.lasting_task import LastingTask
from windlass.core.outcome import AddOutcome
from windlass.core.paths import took
from windlass.core.states import JobState
from windlass.errors import StorageError

#: A batch is sent once it holds this many jobs or bytes of payload.
_MOST_JOBS = 1_000
_MOST_BYTES = 4_000_000


class Waiting(StoreCall[list[rq.Added]]):
    """A request that waits until the batch in flight is answered."""

    __slots__ = ("jobs", "now")

    def __init__(self, jobs: list[NewJob], now: str, client: ValkeyClient) -> None:
        super().__init__(client.settings.timeout_s, client.explain)
        self.jobs, self.now = jobs, now


class Adder:
    """Collects requests into batches and sends them. Belongs to one event loop."""

    def __init__(self, session: ValkeySession) -> None:
        self._session = session
        self._busy = False
        self._waiting: list[Waiting] = []
        self._task: LastingTask | None = None

    async def add(self, jobs: list[NewJob], now: str) -> list[rq.Added]:
        """Add ``jobs``, together with jobs of other callers if a batch is in flight."""
        if not jobs:
            return []
        if self._busy:
            call = Waiting(jobs, now, self._session.client)
            call.watch()
            self._waiting.append(call)
            return await call.future
        self._busy = True
        try:
            return await self._send(jobs, now)
        finally:
            self._start_next()

    async def close(self) -> None:
        """Wait until all collected requests are answered."""
        while self._task is not None:
            await asyncio.wait([self._task.over])

    def _start_next(self) -> None:
        if self._waiting:
            self._task = LastingTask("valkey-add", self._serve, SYSTEM_CLOCK)
        else:
            self._busy = False

    async def _serve(self) -> None:
        batch: list[Waiting] = []
        try:
            while self._waiting:
                batch = self._next_batch()
                if batch:
                    await self._serve_batch(batch)
        except asyncio.CancelledError:  # by other code on this loop: requests that were not sent wait on
            _fail(batch, f"the task that sends the jobs was cancelled: {UNKNOWN}")
            raise
        self._busy, self._task = False, None

    async def _serve_batch(self, batch: list[Waiting]) -> None:
        """Send a batch and answer its callers. The error of an invalid request goes to its caller only."""
        jobs = [job for call in batch for job in call.jobs]
        if len(batch) > 1:
            took("valkey.add_together")
        try:
            answers = await self._send(jobs, batch[0].now)
        except StorageError as exc:
            _fail(batch, str(exc))
            return
        except Exception as exc:
            if len(batch) > 1:  # one request is invalid: find out which
                for one in batch:
                    await self._serve_batch([one])
            else:
                batch[0].answer(None, exc)
            return
        start = 0
        for call in batch:
            end = start + len(call.jobs)
            call.answer(answers[start:end], None)
            start = end

    def _next_batch(self) -> list[Waiting]:
        """Take as many waiting requests as fit into one call. All have the same ``now``."""
        batch: list[Waiting] = []
        taken = jobs = size = 0
        now = self._waiting[0].now
        for call in self._waiting:
            jobs += len(call.jobs)
            size += sum(len(job.payload) for job in call.jobs)
            if batch and (jobs > _MOST_JOBS or size > _MOST_BYTES or call.now != now):
                break
            taken += 1
            if call.begin():
                batch.append(call)
        del self._waiting[:taken]
        return batch

    # --- one batch -------------------------------------------------------------------------------

    async def _send(self, jobs: list[NewJob], now: str) -> list[rq.Added]:
        queue = jobs[0].queue
        if len(jobs) == 1 or all(job.queue == queue for job in jobs):
            if queue not in self._session.listed:
                await self._session.list_queues([queue])
            plain = sent_records.plain_jobs(jobs)
            if plain is not None:
                return await self._send_plain(queue, jobs, plain, now)
            root = self._session.keys.queue(queue)
            return await self._send_group(SlotGroup([root], [], [1] * len(jobs), [queue]), jobs, now)
        await self._session.list_queues(job.queue for job in jobs)
        groups = self._session.grouped(job.queue for job in jobs)
        if len(groups) == 1:
            return await self._send_group(groups[0], jobs, now)
        answers: list[rq.Added | None] = [None] * len(jobs)
        parts = await together(*(self._send_group(group, jobs, now) for group in groups))
        for group, part in zip(groups, parts, strict=True):
            assert isinstance(part, list)
            for at, added in zip(group.positions, part, strict=True):
                answers[at] = added
        return [answer for answer in answers if answer is not None]

    async def _send_plain(
        self, queue: str, jobs: list[NewJob], plain: list[str | bytes], now: str
    ) -> list[rq.Added]:
        root = self._session.keys.queue(queue)
        now_ms, flags, *special = await self._session.functions.add_plain(root, now, plain)
        took("valkey.add_plain")
        if flags & NEW_QUEUE:
            await self._session.list_again([queue])
        if flags & ALONE:
            took("valkey.add_alone")
        if flags & GIVEN_AWAY:
            took("valkey.handoff_assigned")
        answers = [rq.Added(AddOutcome.QUEUED, JobState.WAITING, now_ms)] * len(jobs)
        for at in range(0, len(special), 2):
            answers[special[at] - 1] = added(special[at + 1], now_ms, queue)
        return answers

    async def _send_group(self, group: SlotGroup, jobs: list[NewJob], now: str) -> list[rq.Added]:
        some = 0 < len(group.positions) < len(jobs)
        mine = [jobs[at] for at in group.positions] if some else jobs
        heads = [sent_records.new_job(index, job) for index, job in zip(group.indexes, mine, strict=True)]
        tails = [sent_records.tail(job) for job in mine]
        now_ms, new, *answers = await self._session.functions.add(group.roots, now, heads, tails)
        if new:
            await self._session.list_again([group.names[index - 1] for index in new])
        return [
            added(answer, now_ms, job.queue)
            if answer
            else rq.Added(AddOutcome.QUEUED, JobState.WAITING, now_ms)
            for answer, job in zip(answers, mine, strict=True)
        ]


def _fail(batch: list[Waiting], message: str) -> None:
    """Raise a ``StorageError`` in every caller that has no answer yet."""
    for call in batch:
        call.answer(None, StorageError(message))


def added(answer: list[Any], now_ms: int, queue: str) -> rq.Added:
    """The answer to one job, as ``add.lua``, ``restore.lua`` and ``flow_add.lua`` return it."""
    outcome, state, enqueued_ms, due_ms = answer[:4]
    record = records.viewed(queue, answer[4]) if len(answer) > 4 else None
    left = tuple(name.decode() for name in answer[5]) if len(answer) > 5 else ()
    return rq.Added(ADD_OUTCOMES[outcome], STATES.get(state), enqueued_ms, due_ms or None, record, left)
