"""For tests: clocks you drive, what was enqueued, running it now, faults you place.

``windlass_conformance`` (needs pytest) and ``windlass_conformance.machine`` (needs Hypothesis)
are for authors of backends and are imported by themselves.
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
