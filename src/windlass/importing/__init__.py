"""Imports waiting and scheduled jobs of Celery, RQ, BullMQ, arq, Dramatiq, SAQ and Procrastinate.

A *reader* knows how one system stores its jobs: in which lists and sorted sets (``Shelf``), and the format
of an entry. The *mover* reads the shelves, oldest entry first, and adds what it finds. No code of a message
is ever run: pickles are read by an unpickler that accepts only plain data (``plain``), all else is JSON.

Guarantees: A dry run changes nothing. A message that cannot be moved stays in place and is counted with its
reason. A message is first moved to a holding hash, then added, then released, so a crash at any point loses
nothing, and the next run continues. Ids are derived from the old ones, so nothing is added twice.
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
