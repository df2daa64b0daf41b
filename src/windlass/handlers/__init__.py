"""Handlers of jobs: the function that runs a job, its arguments and its middleware."""

from windlass.handlers.batch import Batch
from windlass.handlers.hooks import AttemptEnd, Outgoing
from windlass.handlers.inject import INJECTED, Depends
from windlass.handlers.registry import from_callback

__all__ = ["INJECTED", "AttemptEnd", "Batch", "Depends", "Outgoing", "from_callback"]
