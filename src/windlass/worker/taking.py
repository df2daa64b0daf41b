"""Puts the results of previous steps into the arguments of a job when its attempt begins, before hooks."""

from __future__ import annotations

from windlass.api.queue import Queue
from windlass.backend.flow_requests import GetDependencies
from windlass.core.edges import EdgeStatus
from windlass.core.job import JobRecord
from windlass.errors import UnrecoverableError
from windlass.jobs.payload import Call


async def take_results(queue: Queue, record: JobRecord, call: Call) -> None:
    """Replace the placeholders in the arguments of ``call`` by the results of the previous steps.

    Raises ``UnrecoverableError`` when a required result does not exist.
    """
    takes = call.takes
    assert takes is not None
    found = await queue.store.execute(GetDependencies(refs=[record.ref]))
    edges = found[0].depends_on[: takes.of]
    results = [queue.app.codecs.edge_value(edge) for edge in edges if edge.status is EdgeStatus.DONE]
    if not takes.gathered and not results:
        before = "".join(f" ({edge.child.queue}:{edge.child.id}, {edge.reason})" for edge in edges)
        raise UnrecoverableError(f"the step before{before} has no result: retry it first, then this job")
    call.fill(results if takes.gathered else results[0])
