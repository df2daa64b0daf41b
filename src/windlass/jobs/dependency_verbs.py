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
        """Return the edges to the jobs that this one waits or waited for."""
        return (await self._edges(values=False)).depends_on

    async def get_dependents(self) -> list[Edge]:
        """Return the edges from jobs that wait or waited for this one (1,000 at most)."""
        return (await self._edges(values=False)).dependents

    async def get_children_values(self) -> dict[str, Any]:
        """Return the results of completed jobs that this one waited for: ``"queue:id"`` -> value.

        They are in the order in which the edges were added. The results are stored with this job, so they
        exist even if the children's records are gone.
        """
        return {
            f"{edge.child.queue}:{edge.child.id}": self._codecs.edge_value(edge)
            for edge in (await self._edges()).depends_on
            if edge.status is EdgeStatus.DONE
        }

    async def get_failed_children(self) -> dict[str, str]:
        """Return why jobs that this one waited for did not complete: ``"queue:id"`` -> reason and error."""
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
