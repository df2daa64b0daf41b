"""Seeded storms: random work by many processes, faults on purpose, and a checker of named invariants.

``plan`` decides everything from a seed; ``actors`` are the workers, producers and meddlers; ``weather``
carries out the faults; ``evidence`` is what is left afterwards and ``invariants`` judges it. ``mutants``
break the code on purpose, to see each invariant fail. ``scripts/storm`` runs one by hand.
"""

from windlass.testing.storm.invariants import INVARIANTS, Violation
from windlass.testing.storm.mutants import MUTANTS
from windlass.testing.storm.plan import BY_NAME, FAULTS, Settings
from windlass.testing.storm.runner import Report, run_storm
from windlass.testing.storm.stores import EMBEDDED, FileStorm, MemoryStorm, SqliteStorm, StormStore

__all__ = [
    "BY_NAME",
    "EMBEDDED",
    "FAULTS",
    "INVARIANTS",
    "MUTANTS",
    "FileStorm",
    "MemoryStorm",
    "Report",
    "Settings",
    "SqliteStorm",
    "StormStore",
    "Violation",
    "run_storm",
]
