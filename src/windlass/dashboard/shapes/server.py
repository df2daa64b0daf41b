"""The server itself: audit, health, live figures."""

from __future__ import annotations

from windlass.dashboard.shapes.base import Shape
from windlass.dashboard.wire import Queue


class AuditEntry(Shape):
    """One request that changed something, or was to, or was refused."""

    id: int
    at_ms: int
    who: str
    role: str
    client: str
    method: str
    #: The route, such as ``POST /api/dead-jobs/{jid}/retry``, and the path as it was.
    action: str
    target: str
    status: int
    #: ``ok``, ``refused`` (4xx) or ``failed`` (5xx).
    outcome: str
    #: Which jobs, queue, schedule; the filter and the counts of a bulk action; ``unwritten_before``: how many
    #: refused requests were only counted since the one that was written before.
    facts: dict[str, str | float | bool | None]


class Audit(Shape):
    """Newest first. ``next_cursor`` null: that was all that is kept."""

    items: list[AuditEntry]
    next_cursor: str | None
    #: Requests that this process refused since it started, by status.
    refused: dict[str, int]


class Health(Shape):
    """``ready`` false: see ``reason``."""

    live: bool
    ready: bool
    reason: str
    backend: str


class WorkerLoad(Shape):
    """What a worker used at its last heartbeat: slots, memory, and percent of one processor."""

    id: str
    busy: int
    rss_kb: int
    cpu_percent: float


class Tick(Shape):
    """What ``/api/live`` sends about once a second."""

    at_ms: int
    counts: dict[str, int]
    #: All of them; with ``changes`` only those that changed since the tick before.
    queues: list[Queue]
    #: Since the tick before, per second.
    enqueued_per_s: float
    completed_per_s: float
    failed_per_s: float
    processed_total: int
    failed_total: int
    active_processes: int
    busy_workers: int
    quiet_workers: int
    slots: int
    #: All of them; with ``changes`` only those that changed since the tick before.
    workers: list[WorkerLoad]
    #: With ``changes``: the names of all queues, when one came or went, and the same of workers.
    names: list[str] | None = None
    worker_ids: list[str] | None = None


class Version(Shape):
    """The release that answers, and the version of the API under which it does."""

    version: str
    api: str
