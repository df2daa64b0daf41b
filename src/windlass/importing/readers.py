"""The systems that can be imported from, by name."""

from __future__ import annotations

from collections.abc import Callable

from windlass.importing.arq import ArqReader
from windlass.importing.bullmq import BullReader
from windlass.importing.celery import CeleryReader
from windlass.importing.client import SourceClient
from windlass.importing.dramatiq import DramatiqReader
from windlass.importing.model import SourceReader
from windlass.importing.rq import RqReader
from windlass.importing.saq import SaqReader

READERS: dict[str, Callable[[SourceClient, str], SourceReader]] = {
    "celery": CeleryReader,
    "rq": RqReader,
    "bullmq": BullReader,
    "arq": ArqReader,
    "dramatiq": DramatiqReader,
    "saq": SaqReader,
}


def open_reader(source: str, client: SourceClient, prefix: str = "") -> SourceReader:
    """The reader of that system."""
    return READERS[source](client, prefix)
