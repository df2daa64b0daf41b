"""The worker: one pool of slots for any number of queues. See ``docs/internals/worker.md``."""

from windlass.worker.options import QueueSpec, WorkerOptions
from windlass.worker.worker import Worker

__all__ = ["QueueSpec", "Worker", "WorkerOptions"]
