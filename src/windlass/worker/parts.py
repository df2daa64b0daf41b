"""Objects that the parts of one worker share."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass._version import __version__
from windlass.api.app import Windlass
from windlass.core.backoff import BackoffStrategy
from windlass.core.job import WorkerFacts
from windlass.handlers.registry import Registry
from windlass.worker.emitter import Emitter
from windlass.worker.lifecycle import Stop
from windlass.worker.options import WorkerOptions
from windlass.worker.pump import Pump
from windlass.worker.shares import SharePlanner
from windlass.worker.supervisor import TaskSupervisor


@dataclass(slots=True, kw_only=True)
class WorkerParts:
    """Created with the worker. Not bound to an event loop or a connection."""

    worker_id: str
    app: Windlass
    options: WorkerOptions
    registry: Registry
    strategies: Mapping[str, BackoffStrategy]
    #: The value of ``job.context``.
    context: Any
    shares: SharePlanner
    pump: Pump
    emitter: Emitter
    supervisor: TaskSupervisor
    stop: Stop
    rng: random.Random

    def facts(self, max_attempts: int) -> WorkerFacts:
        """Return what the history records about this worker for attempts that used ``max_attempts``."""
        host = socket.gethostname()[:80]
        known = self.worker_id.startswith(f"{host}:")
        return WorkerFacts(__version__, max_attempts, None if known else host)

    @property
    def lease_ms(self) -> int:
        return self.options.ms("lease")
