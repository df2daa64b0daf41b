"""Storms: seeded stress tests with random work by many processes, injected faults and checked invariants.

``plan`` derives everything from a seed. ``actors`` are the workers, the producers and a process that pauses
queues; ``actor_handles`` starts and stops them. ``fault_injection`` injects the faults. ``recording`` records
what the store acknowledged. ``evidence`` collects the journals and the contents of the store afterwards, and
``invariants`` checks them. ``mutants`` break the code on purpose, to see each invariant fail.
``scripts/storm`` runs one storm.
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
