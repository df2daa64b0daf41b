"""The verb ``restore``: store jobs again as they were."""

from __future__ import annotations

from typing import Any

from windlass.backend import requests as rq
from windlass.backends.valkey import sent_records
from windlass.backends.valkey.adds import added
from windlass.backends.valkey.session import SlotGroup, ValkeySession, together


async def restore(session: ValkeySession, request: rq.Restore, now: str) -> list[rq.Added]:
    """One call per slot; the answers are in the order of the jobs."""
    jobs = request.jobs
    answers: list[Any] = [None] * len(jobs)

    async def one(group: SlotGroup) -> None:
        mine = [jobs[at] for at in group.positions]
        packed = [sent_records.restored(index, job) for index, job in zip(group.indexes, mine, strict=True)]
        tails = [sent_records.tail(job) for job in mine]
        now_ms, new, *found = await session.functions.restore(group.roots, now, packed, tails)
        if new:
            await session.list_again([group.names[index - 1] for index in new])
        for at, answer in zip(group.positions, found, strict=True):
            answers[at] = added(answer, now_ms, jobs[at].queue)

    await together(*(one(group) for group in session.grouped(job.queue for job in jobs)))
    return answers
