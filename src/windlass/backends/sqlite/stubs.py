"""Stubs in the database: see ``core.stubs``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from windlass.backends.sqlite.rows import Row, pack
from windlass.core import damage
from windlass.core.job import JobRecord
from windlass.core.stubs import STUB_MS, STUBS_KEPT, is_over, stub_of

if TYPE_CHECKING:
    from windlass.backends.sqlite.tx import Step
    from windlass.core.job import JobRef, NewJob

#: Most stubs that one step forgets because their time has passed.
SCAN = 10_000

_unpack = msgspec.msgpack.Decoder(JobRecord).decode


def find(select: Callable[..., list[Row]], num: int | None, ref: JobRef, now_ms: int) -> JobRecord | None:
    """The stub that the job ``ref`` of queue ``num`` left, if its time has not passed."""
    rows = [] if num is None else select("stub", num, ref.id)
    found = damage.read_or_none(rows[0][0], _unpack, f"the stub of job {ref.id}") if rows else None
    return None if found is None or is_over(found, now_ms) else found


def put(step: Step, job: JobRecord) -> None:
    """Keep the stub of a job; the oldest make way when there are too many."""
    stub = stub_of(job)
    step.run("stub_save", step.queue(job.queue), job.id, stub.finished_ms, pack(stub))
    step.run("stub_trim", STUBS_KEPT)
    step.queues.no_stubs = False


def any_of(step: Step, jobs: list[NewJob]) -> bool:
    """Whether one of these ids may have left a stub."""
    queues = step.queues
    if queues.no_stubs is None:
        queues.no_stubs = step.one("stub_any") is None
    if queues.no_stubs:
        return False
    ids: dict[str, list[str]] = {}
    for new in jobs:
        ids.setdefault(new.queue, []).append(new.id)
    return any(
        step.one("stub_among", num, msgspec.json.encode(some).decode())
        for queue, some in ids.items()
        if (num := queues.num(queue)) is not None
    )


def prune(step: Step) -> None:
    """Forget those whose time has passed."""
    if step.run("stub_prune", SCAN, step.now_ms - STUB_MS):
        step.queues.no_stubs = None
