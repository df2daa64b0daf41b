"""What stays of a job whose record went with its settlement.

A job that completes and may leave nothing behind (``retention.goes_at_once``) loses its record in the same
step. For ``STUB_MS`` a stub stays: a record without arguments, in no listing and no count. It answers what
may be repeated after a lost reply (the add, the settlement) as the record would, and gives the result to
those that waited for it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from windlass.core.job import JobRecord
from windlass.core.option_values import GRACE_MS

STUB_MS: Final = GRACE_MS
#: The newest that a store (Valkey: a queue) keeps.
STUBS_KEPT: Final = 5_000


def stub_of(job: JobRecord) -> JobRecord:
    """The stub of a job that completed."""
    return msgspec.structs.replace(
        job, payload=b"", progress=None, errors=[], signals={}, awaits=None, linked=False, turn=0
    )


def is_over(stub: JobRecord, now_ms: int) -> bool:
    """Whether its time has passed."""
    return (stub.finished_ms or 0) + STUB_MS <= now_ms
