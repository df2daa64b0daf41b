"""The server itself: audit, health, live figures."""

from __future__ import annotations

from windlass.dashboard.shapes.base import Shape
from windlass.dashboard.shapes.wire import Queue


class AuditEntry(Shape):
    """One request that was a change, or that was refused."""

    id: int
    at_ms: int
    who: str
    role: str
    client: str
    method: str
    #: The route, such as ``POST /api/dead-jobs/{jid}/retry``, and the actual path.
    action: str
    target: str
    status: int
    #: ``ok``, ``refused`` (4xx) or ``failed`` (5xx).
    outcome: str
    #: The jobs, queue or schedule; the filter and the counts of a bulk action; ``unwritten_before``: how many
    #: refused requests were only counted since the previous entry.
    facts: dict[str, str | float | bool | None]


class Audit(Shape):
    """Newest first. ``next_cursor`` null: there are no older entries."""

    items: list[AuditEntry]
    next_cursor: str | None
    #: Requests that this process refused since it started, by status.
    refused: dict[str, int]


class Health(Shape):
    """Whether the server and the store work. ``ready`` false: see ``reason``."""

    live: bool
    ready: bool
    reason: str
    backend: str


class WorkerLoad(Shape):
    """The load of a worker at its last heartbeat: slots, memory, and percent of one processor."""

    id: str
    busy: int
    rss_kb: int
    cpu_percent: float


class Tick(Shape):
    """The event of ``/api/live``, about once a second."""

    at_ms: int
    counts: dict[str, int]
    #: All queues; with ``changes`` only those that changed since the previous tick.
    queues: list[Queue]
    #: Per second, since the previous tick.
    enqueued_per_s: float
    completed_per_s: float
    failed_per_s: float
    processed_total: int
    failed_total: int
    active_processes: int
    busy_workers: int
    quiet_workers: int
    slots: int
    #: All workers; with ``changes`` only those that changed since the previous tick.
    workers: list[WorkerLoad]
    #: With ``changes``: the names of all queues, if one was added or removed, and the same for workers.
    names: list[str] | None = None
    worker_ids: list[str] | None = None


class Version(Shape):
    """The version of the server, and of its API."""

    version: str
    api: str
