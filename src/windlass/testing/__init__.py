"""Helpers for tests: manual clocks, assertions about enqueued jobs, running jobs at once, injected faults.

``windlass_conformance`` (needs pytest) and ``windlass_conformance.machine`` (needs Hypothesis) are for
authors of backends and must be imported separately.
"""

from windlass.testing import faults
from windlass.testing.clock import ManualClock, SharedClock
from windlass.testing.faults import FaultyBackend
from windlass.testing.kit import all_enqueued, assert_enqueued, drain, inline, refute_enqueued
from windlass.testing.wrapper import WatchedBackend

__all__ = [
    "FaultyBackend",
    "ManualClock",
    "SharedClock",
    "WatchedBackend",
    "all_enqueued",
    "assert_enqueued",
    "drain",
    "faults",
    "inline",
    "refute_enqueued",
]
