"""``FlowProducer``: adds whole trees and graphs of jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windlass.flows.builder import Part, add_steps, step_of
from windlass.flows.interfaces import FlowApp
from windlass.flows.tree import JobNode
from windlass.jobs.interfaces import as_app
from windlass.jobs.sync import PORTAL


class FlowProducer:
    """Adds flows: jobs of any number of queues that wait for each other.

    ``add`` takes a tree (``{"name": ..., "queue": ..., "data": ..., "children": [...]}``, where the parent
    runs after its children), or a ``Step`` with all steps connected to it.
    """

    def __init__(self, url_or_app: str | FlowApp | None = None) -> None:
        self.app: FlowApp = as_app(url_or_app)
        self._owns_app = self.app is not url_or_app

    async def __aenter__(self) -> FlowProducer:
        await self.app.store.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect if it was created from a URL; later calls raise ``ClosedError``. Idempotent."""
        if self._owns_app:
            await self.app.close()

    async def add(self, flow: Part) -> JobNode:
        """Add one flow atomically. Returns the node of its top, with its children."""
        return (await self.add_bulk([flow]))[0]

    async def add_bulk(self, flows: Iterable[Part]) -> list[JobNode]:
        """Add several flows in one atomic step of at most 10,000 jobs. Returns their top nodes."""
        tops = [step_of(flow) for flow in flows]
        if not tops:
            return []
        nodes = await add_steps(self.app, tops)
        return [nodes[top] for top in tops]

    async def get_flow(self, queue: str, job_id: str, **bounds: Any) -> JobNode:
        """Read a stored flow; see ``Queue.get_flow``."""
        return await self.app.queue(queue).get_flow(job_id, **bounds)

    @property
    def sync(self) -> SyncFlowProducer:
        """The methods of this producer for code without an event loop."""
        return SyncFlowProducer(self)


class SyncFlowProducer:
    """The methods of a flow producer for code without an event loop."""

    def __init__(self, producer: FlowProducer) -> None:
        self._producer = producer

    def add(self, flow: Part) -> JobNode:
        """Add one flow atomically; see ``FlowProducer.add``."""
        return PORTAL.run(self._producer.add(flow))

    def add_bulk(self, flows: Iterable[Part]) -> list[JobNode]:
        """Add several flows in one atomic step; see ``FlowProducer.add_bulk``."""
        return PORTAL.run(self._producer.add_bulk(flows))

    def get_flow(self, queue: str, job_id: str, **bounds: Any) -> JobNode:
        """Read a stored flow; see ``Queue.get_flow``."""
        return PORTAL.run(self._producer.get_flow(queue, job_id, **bounds))

    def close(self) -> None:
        """Disconnect if the producer was created from a URL; see ``FlowProducer.close``."""
        PORTAL.run(self._producer.close())
