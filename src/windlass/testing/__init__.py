"""For tests: clocks you drive, faults you place, and the suite that every backend passes.

``windlass.testing.conformance`` (which needs pytest) is imported by itself.
"""

from windlass.testing import faults
from windlass.testing.clock import ManualClock, SharedClock
from windlass.testing.faults import FaultyBackend
from windlass.testing.wrapper import WatchedBackend

__all__ = ["FaultyBackend", "ManualClock", "SharedClock", "WatchedBackend", "faults"]
