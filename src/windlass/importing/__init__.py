"""Imports waiting and scheduled jobs of Celery, RQ, BullMQ, arq, Dramatiq, SAQ and Procrastinate.

A *reader* knows how one system stores its jobs: on which shelves (lists and sorted sets), and what an entry
means. The *mover* walks the shelves, oldest first, and adds what it finds. Nothing of a message is ever run:
pickles are read by an unpickler that knows plain data only (``plain``), everything else is JSON.

What always holds: a dry run changes nothing; a message that cannot be moved stays where it is and is counted
with its reason; a message is first taken from its shelf into a holding hash, then added, then released, so a
crash at any point loses nothing, and the next run continues; ids are derived, so nothing is added twice.
"""

from windlass.importing.model import ForeignJob, Found, Refusal, Shelf
from windlass.importing.mover import ImportReport, Mode, Mover, ShelfReport
from windlass.importing.readers import READERS, open_source

__all__ = [
    "READERS",
    "ForeignJob",
    "Found",
    "ImportReport",
    "Mode",
    "Mover",
    "Refusal",
    "Shelf",
    "ShelfReport",
    "open_source",
]
