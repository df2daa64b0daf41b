"""The jobs that a job waits for, the jobs that wait for it, and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.backend import flow_requests as fl
from windlass.core.edges import Edge, EdgeStatus
from windlass.jobs.fields import RecordFields

if TYPE_CHECKING:
    from windlass.jobs.interfaces import JobQueue


class DependencyVerbs(RecordFields):
    """The part of ``Job`` that reads its edges to other jobs."""

    __slots__ = ()

    if TYPE_CHECKING:
        _queue: JobQueue

    async def get_dependencies(self) -> list[Edge]:
        """The edges to the jobs that this one waits for, or waited for."""
        return (await self._edges(values=False)).depends_on

    async def get_dependents(self) -> list[Edge]:
        """The edges from jobs that wait for this one, or waited for it (1,000 at most)."""
        return (await self._edges(values=False)).dependents

    async def get_children_values(self) -> dict[str, Any]:
        """The results of the jobs that this one waited for and that completed: ``"queue:id"`` -> value.

        In the order in which the edges were made. They are kept with this job, whatever became of the
        children's own records.
        """
        return {
            f"{edge.child.queue}:{edge.child.id}": self._codecs.edge_value(edge)
            for edge in (await self._edges()).depends_on
            if edge.status is EdgeStatus.DONE
        }

    async def get_failed_children(self) -> dict[str, str]:
        """Why jobs that this one waited for did not complete: ``"queue:id"`` -> reason and error."""
        return {
            f"{edge.child.queue}:{edge.child.id}": f"{edge.reason}: {edge.error}"
            if edge.error
            else edge.reason
            for edge in (await self._edges(values=False)).depends_on
            if edge.status in (EdgeStatus.FAILED, EdgeStatus.IGNORED)
        }

    async def _edges(self, *, values: bool = True) -> fl.Dependencies:
        request = fl.GetDependencies(refs=[self.ref], values=values)
        return (await self._queue.store.execute(request))[0]
