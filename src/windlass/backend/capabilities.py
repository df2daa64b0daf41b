"""What a backend can do beyond the core verbs. What is missing is refused, and listed in the docs."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.errors import UnsupportedByBackendError


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Declared once per backend, asserted by the conformance suite."""

    #: Survives the end of the process.
    durable: bool
    #: Several processes may share the store.
    shared: bool
    #: Jobs can be added and completed inside the application's own database transaction.
    transactions: bool = False
    #: Jobs can go to the front of their priority (option ``lifo``).
    lifo: bool = False
    #: Unique keys.
    unique: bool = False
    #: Groups: fair turns between them, and limits of their own.
    groups: bool = False
    #: Limits of whole queues: concurrency, rate, holds.
    limits: bool = False
    #: Jobs of a task can be kept from starting (``RevokeTask``). Needs ``limits``.
    revoked_tasks: bool = False
    #: Recurring schedules (``backend.schedule_requests``).
    schedules: bool = False
    #: Roll-ups of the history by minute and hour (``backend.metric_requests``).
    metrics: bool = False
    #: Orders to workers, delivered with their heartbeat (``CommandWorker``).
    commands: bool = False
    #: Jobs may depend on other jobs.
    flows: bool = False
    #: Jobs may be suspended until a signal comes.
    signals: bool = False
    #: Running jobs may write live output.
    streams: bool = False
    #: Jobs of an export can be put back in the state that they had (``Restore``).
    restore: bool = False
    #: Jobs have priorities. Without it, 0 is the only one.
    priority: bool = True
    #: Every priority has its own order, also below 0. Without it a store knows a few bands from 0 on.
    exact_priority: bool = True
    #: A job that is taken back from a silent worker keeps its place in line. Without it, it joins the back.
    recovered_place: bool = True
    #: A worker that lost its lease cannot complete the job. Without it, the first end counts.
    fenced: bool = True

    @property
    def takes_all_jobs(self) -> bool:
        """Whether no option of a job asks for what is missing."""
        return (
            self.lifo and self.unique and self.groups and self.flows and self.priority and self.exact_priority
        )

    def require(self, backend: str, capability: str, advice: str = "") -> None:
        """Raise ``UnsupportedByBackendError`` unless ``capability`` is declared."""
        if not getattr(self, capability):
            raise UnsupportedByBackendError(backend, capability.replace("_", " "), advice)
