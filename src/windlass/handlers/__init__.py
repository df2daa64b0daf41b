"""Handlers of jobs: which function runs a job, with which arguments and which middleware."""

from windlass.handlers.batch import Batch
from windlass.handlers.hooks import AttemptEnd, Outgoing
from windlass.handlers.inject import INJECTED, Depends
from windlass.handlers.registry import from_callback

__all__ = ["INJECTED", "AttemptEnd", "Batch", "Depends", "Outgoing", "from_callback"]
