"""The systems that can be imported from, by name."""

from __future__ import annotations

from collections.abc import Callable

from windlass.importing.bullmq import BullReader
from windlass.importing.celery import CeleryReader
from windlass.importing.client import Client
from windlass.importing.model import Reader
from windlass.importing.rq import RqReader

READERS: dict[str, Callable[[Client, str], Reader]] = {
    "celery": CeleryReader,
    "rq": RqReader,
    "bullmq": BullReader,
}


def open_reader(source: str, client: Client, prefix: str = "") -> Reader:
    """The reader of that system."""
    return READERS[source](client, prefix)
