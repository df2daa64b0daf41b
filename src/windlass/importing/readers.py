"""The supported systems, by name."""

from __future__ import annotations

from collections.abc import Callable

from windlass.importing.arq import ArqReader
from windlass.importing.bullmq import BullReader
from windlass.importing.celery import CeleryReader
from windlass.importing.client import SourceClient
from windlass.importing.dramatiq import DramatiqReader
from windlass.importing.model import Source, SourceReader
from windlass.importing.procrastinate import PostgresClient, ProcrastinateReader
from windlass.importing.rq import RqReader
from windlass.importing.saq import SaqReader

#: Systems that keep their jobs in Redis.
READERS: dict[str, Callable[[SourceClient, str], SourceReader]] = {
    "celery": CeleryReader,
    "rq": RqReader,
    "bullmq": BullReader,
    "arq": ArqReader,
    "dramatiq": DramatiqReader,
    "saq": SaqReader,
}


def open_source(source: str, url: str, prefix: str = "") -> tuple[Source, SourceReader]:
    """The connection to that system's server, and the reader of its jobs."""
    if source == ProcrastinateReader.source:
        database = PostgresClient(url, prefix)
        return database, ProcrastinateReader(database)
    client = SourceClient(url)
    return client, READERS[source](client, prefix)
