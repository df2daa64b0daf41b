"""What the parts of one worker have in common."""

from __future__ import annotations

import random
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass._version import __version__
from windlass.api.app import Windlass
from windlass.core.backoff import Strategy
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
    """Made with the worker; nothing in it is bound to an event loop or to a connection."""

    worker_id: str
    app: Windlass
    options: WorkerOptions
    registry: Registry
    strategies: Mapping[str, Strategy]
    #: What handlers get as ``job.context``.
    context: Any
    shares: SharePlanner
    pump: Pump
    emitter: Emitter
    supervisor: TaskSupervisor
    stop: Stop
    rng: random.Random

    def facts(self, max_attempts: int) -> WorkerFacts:
        """What history is to say of attempts that this worker settles, which went by ``max_attempts``."""
        host = socket.gethostname()[:80]
        known = self.worker_id.startswith(f"{host}:")
        return WorkerFacts(__version__, max_attempts, None if known else host)

    @property
    def lease_ms(self) -> int:
        return self.options.ms("lease")
