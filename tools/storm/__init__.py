"""Seeded storms: random work by many processes, faults on purpose, and a checker of named invariants.

``plan`` decides everything from a seed; ``actors`` are the workers, producers and meddlers; ``weather``
carries out the faults; ``evidence`` is what is left afterwards and ``invariants`` judges it. ``mutants``
break the code on purpose, to see each invariant fail. ``scripts/storm`` runs one by hand.
"""

from tools.storm.invariants import INVARIANTS, Violation
from tools.storm.mutants import MUTANTS
from tools.storm.plan import BY_NAME, FAULTS, Settings
from tools.storm.runner import Report, run_storm
from tools.storm.stores import EMBEDDED, FileStorm, MemoryStorm, SqliteStorm, StormStore

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
