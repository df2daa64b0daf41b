"""Fail jobs whose records cannot be read (``core.bad_records``), and let in parked jobs of their groups."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.core import transitions
from windlass.core.job import JobRecord
from windlass.engine.effects import Kind
from windlass.engine.reads import Reads, Verb
from windlass.engine.saving import advance, prepare, save
from windlass.engine.unit_of_work import UnitOfWork


def set_aside(work: UnitOfWork, lost: list[JobRecord]) -> Verb[None]:
    """Fail the jobs behind these placeholder records. Reads: 1."""
    yield Reads(queues=dict.fromkeys(job.queue for job in lost))
    for job in lost:
        before = job.state
        work.jobs[job.queue, job.id] = job
        transitions.set_aside(job, work)
        save(work, job, before, Kind.REPLACED)


def let_in(work: UnitOfWork, groups: Iterable[tuple[str, str]]) -> Verb[None]:
    """Let parked jobs of these groups in, as many as have room now. Reads: 1."""
    yield from prepare(work, (), groups=groups)
    for queue, name in groups:
        advance(work, work.groups[queue, name])
