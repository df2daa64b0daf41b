"""The features that not every backend supports. Requests that need a missing one are refused."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.errors import UnsupportedByBackendError


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Declared once per backend and checked by the conformance suite."""

    #: Jobs survive the end of the process.
    durable: bool
    #: Several processes can share the store.
    shared: bool
    #: Jobs can be added and completed inside the application's own database transaction.
    transactions: bool = False
    #: Jobs can go to the front of their priority (option ``lifo``).
    lifo: bool = False
    #: Unique keys.
    unique: bool = False
    #: Groups, with fair turns between them and limits per group.
    groups: bool = False
    #: Limits of whole queues: concurrency, rate, holds.
    limits: bool = False
    #: Tasks can be revoked (``RevokeTask``). Needs ``limits``.
    revoked_tasks: bool = False
    #: Recurring schedules (``backend.schedule_requests``).
    schedules: bool = False
    #: Roll-ups of the history by minute and hour (``backend.metric_requests``).
    metrics: bool = False
    #: Commands to workers, delivered with their heartbeat (``CommandWorker``).
    commands: bool = False
    #: Jobs can depend on other jobs.
    flows: bool = False
    #: Jobs can be suspended until a signal arrives.
    signals: bool = False
    #: Running jobs can write live output.
    streams: bool = False
    #: Exported jobs can be imported in the state that they had (``Restore``).
    restore: bool = False
    #: Jobs have priorities. Without it, 0 is the only priority.
    priority: bool = True
    #: Jobs are ordered exactly by priority, also below 0. Without it, a store has a few bands from 0 on.
    exact_priority: bool = True
    #: A recovered job keeps its place in the queue. Without it, the job goes to the back.
    recovered_place: bool = True
    #: A worker that lost its lease cannot complete the job. Without it, the first settlement counts.
    fenced: bool = True

    @classmethod
    def full(cls, *, durable: bool, shared: bool, transactions: bool = False) -> Capabilities:
        """The capabilities of a store that supports every feature."""
        return cls(
            durable=durable,
            shared=shared,
            transactions=transactions,
            lifo=True,
            unique=True,
            groups=True,
            limits=True,
            revoked_tasks=True,
            schedules=True,
            metrics=True,
            commands=True,
            flows=True,
            signals=True,
            streams=True,
            restore=True,
        )

    @property
    def takes_all_jobs(self) -> bool:
        """Whether the backend supports every option of a job, so that adds need no check."""
        return (
            self.lifo and self.unique and self.groups and self.flows and self.priority and self.exact_priority
        )

    def require(self, backend: str, capability: str, advice: str = "") -> None:
        """Raise ``UnsupportedByBackendError``, with ``advice``, unless ``capability`` is declared."""
        if not getattr(self, capability):
            raise UnsupportedByBackendError(backend, capability.replace("_", " "), advice)
