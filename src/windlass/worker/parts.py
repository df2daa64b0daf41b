"""What the parts of one worker have in common."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from windlass.api.app import Windlass
from windlass.core.backoff import Strategy
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

    @property
    def lease_ms(self) -> int:
        return self.options.ms("lease")
