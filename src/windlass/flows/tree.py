"""Reads stored flows: a job, the jobs that it waits for, and so on.

A flow is read level by level, with requests for the edges and the records of each level. The result is not a
snapshot: each record is as it was when its level was read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from windlass.backend import flow_requests as fl
from windlass.backend import requests as rq
from windlass.core.edges import FLOW_LIMIT, Edge, EdgeStatus
from windlass.core.job import JobRecord, JobRef
from windlass.core.option_values import check_flag
from windlass.core.outcome import CancelResult, Changed, to_reason
from windlass.core.states import JobState
from windlass.errors import IllegalTransitionError, JobNotFoundError
from windlass.jobs.job import Job

if TYPE_CHECKING:
    from collections.abc import Iterator

    from windlass.jobs.interfaces import JobQueue

_BATCH = 500


@dataclass(slots=True)
class JobNode:
    """One job of a flow. ``children`` are the jobs that it waits for."""

    ref: JobRef
    #: The job. If its record is gone, only its queue and id are known.
    job: Job[Any]
    children: list[JobNode] = field(default_factory=list)
    #: The edge from its dependent to it; None for the top.
    edge: Edge | None = None
    #: Whether it waits for more jobs than were read.
    truncated: bool = False
    #: Whether the record was pruned or removed.
    gone: bool = False

    @property
    def id(self) -> str:
        """The id of the job."""
        return self.ref.id

    @property
    def queue_name(self) -> str:
        """The name of the job's queue."""
        return self.ref.queue

    @property
    def state(self) -> JobState:
        """The state when it was read. If the record is gone, the outcome that its dependent recorded."""
        if not self.gone:
            return self.job.state
        done = self.edge is not None and self.edge.status is EdgeStatus.DONE
        return JobState.COMPLETED if done else JobState.FAILED

    def walk(self) -> Iterator[JobNode]:
        """Iterate over this node and all nodes below it, from the top down."""
        ahead = [self]
        while ahead:
            node = ahead.pop()
            yield node
            ahead += reversed(node.children)


async def read_flow(queue: JobQueue, root: JobRef, depth: int, limit: int) -> JobNode:
    """Read the tree below ``root``. Raises ``JobNotFoundError`` when it does not exist."""
    records = await _records(queue, [root])
    if records[root] is None:
        raise JobNotFoundError(root.queue, root.id)
    top = _node(queue, root, records[root], None)
    level, count = [top], 1
    for _ in range(depth):
        edges = await _edges(queue, [node.ref for node in level])
        wanted = {edge.child for node in level for edge in edges[node.ref].depends_on}
        records = await _records(queue, list(wanted))
        below: list[JobNode] = []
        for node in level:
            for edge in edges[node.ref].depends_on:
                if count >= limit:
                    node.truncated = True
                    break
                node.children.append(_node(queue, edge.child, records[edge.child], edge))
                below.append(node.children[-1])
                count += 1
        if not below:
            return top
        level = below
    edges = await _edges(queue, [node.ref for node in level])
    for node in level:
        node.truncated = bool(edges[node.ref].depends_on)
    return top


def _node(queue: JobQueue, ref: JobRef, record: JobRecord | None, edge: Edge | None) -> JobNode:
    home = queue if ref.queue == queue.name else queue.app.queue(ref.queue)
    known = record or JobRecord(queue=ref.queue, id=ref.id, task="", payload=b"{}", state=JobState.COMPLETED)
    return JobNode(ref, Job(home, known), edge=edge, gone=record is None)


async def _edges(
    queue: JobQueue, refs: list[JobRef], *, dependents: bool = False
) -> dict[JobRef, fl.Dependencies]:
    found: dict[JobRef, fl.Dependencies] = {}
    unique, limit = list(dict.fromkeys(refs)), 1_000 if dependents else 0
    for start in range(0, len(unique), _BATCH):
        part = unique[start : start + _BATCH]
        answers = await queue.store.execute(fl.GetDependencies(refs=part, values=False, limit=limit))
        found.update(zip(part, answers, strict=True))
    return found


async def _records(queue: JobQueue, refs: list[JobRef]) -> dict[JobRef, JobRecord | None]:
    found: dict[JobRef, JobRecord | None] = {}
    for start in range(0, len(refs), _BATCH):
        part = refs[start : start + _BATCH]
        answers = await queue.store.execute(rq.GetJobs(refs=part))
        found.update(zip(part, answers, strict=True))
    return found


async def own_jobs(queue: JobQueue, root: JobRef) -> list[list[JobRef]]:
    """Return the jobs of a flow by level, from the top down, without jobs that other flows also need."""
    if (await queue.store.get(root)) is None:
        raise JobNotFoundError(root.queue, root.id)
    seen: dict[JobRef, None] = {root: None}
    levels, level = [[root]], [root]
    while level:
        edges = await _edges(queue, level)
        below = list(dict.fromkeys(edge.child for ref in level for edge in edges[ref].depends_on))
        below = [ref for ref in below if ref not in seen]
        claims = await _edges(queue, below, dependents=True)
        level = [ref for ref in below if not _is_needed_elsewhere(claims[ref], seen, below)]
        seen.update(dict.fromkeys(level))
        levels.append(level)
    return levels


def _is_needed_elsewhere(found: fl.Dependencies, seen: dict[JobRef, None], level: list[JobRef]) -> bool:
    return found.more or any(
        edge.status is EdgeStatus.OPEN and edge.dependent not in seen and edge.dependent not in level
        for edge in found.dependents
    )


async def cancel_flow(queue: JobQueue, root: JobRef, reason: str) -> int:
    """Cancel a flow from the top down, so that no job fails because its child was cancelled."""
    count, reason = 0, to_reason(reason)
    for level in await own_jobs(queue, root):
        for start in range(0, len(level), _BATCH):
            request = rq.CancelJobs(refs=level[start : start + _BATCH], reason=reason)
            answers = await queue.store.execute(request)
            count += sum(answer in (CancelResult.CANCELLED, CancelResult.CANCELLING) for answer in answers)
    return count


async def remove_flow(queue: JobQueue, root: JobRef, force: bool) -> int:
    """Remove a flow from the top down. Unless ``force``, first check that no job of it runs."""
    levels = await own_jobs(queue, root)
    if not force:
        for level in levels:
            for record in (await _records(queue, level)).values():
                if record is not None and record.state is JobState.ACTIVE:
                    raise IllegalTransitionError(
                        record.id, record.state, "remove", "cancel the flow, or force"
                    )
    count = 0
    for level in levels:
        for start in range(0, len(level), _BATCH):
            request = rq.RemoveJobs(refs=level[start : start + _BATCH], force=force)
            count += sum(item.status is Changed.OK for item in await queue.store.execute(request))
    return count


class FlowVerbs:
    """The part of ``Queue`` that reads, cancels and removes flows."""

    if TYPE_CHECKING:

        def _ref(self, job_id: str) -> JobRef: ...

    async def get_flow(self, job_id: str, *, depth: int = 100, limit: int = FLOW_LIMIT) -> JobNode:
        """Return the job and all jobs that it waits for, as a tree; see ``JobNode``.

        A job that several others wait for appears below each of them. At most ``depth`` levels and ``limit``
        nodes are read; ``node.truncated`` is true where there are more. Raises ``JobNotFoundError`` when the
        job is gone.
        """
        return await read_flow(cast("JobQueue", self), self._ref(job_id), depth, limit)

    async def cancel_flow(self, job_id: str, reason: str = "") -> int:
        """Cancel a job and all jobs that it waits for, from the top down. Returns how many.

        Jobs that a job outside of the flow waits for are not cancelled.
        """
        return await cancel_flow(cast("JobQueue", self), self._ref(job_id), reason)

    async def remove_flow(self, job_id: str, *, force: bool = False) -> int:
        """Delete a job and all jobs that it waits for, from the top down. Returns how many.

        Raises ``IllegalTransitionError`` while one of them runs, unless ``force``. Jobs that a job outside of
        the flow waits for are not deleted.
        """
        check_flag("force", force)
        return await remove_flow(cast("JobQueue", self), self._ref(job_id), force)
