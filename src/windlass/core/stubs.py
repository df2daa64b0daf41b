"""Stubs: what remains of a job whose record was removed when it was settled.

If neither the record nor the result of a job is kept (``retention.goes_at_once``), its record is removed when
it completes. A stub stays for ``STUB_MS``: a record without arguments that is in no listing and no count. It
answers requests that are repeated after a lost reply (the add, the settlement) like the record would, and has
the result for callers that wait for it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from windlass.core.job import JobRecord
from windlass.core.option_values import GRACE_MS

STUB_MS: Final = GRACE_MS
#: How many stubs a store (on Valkey: a queue) keeps, the newest.
STUBS_KEPT: Final = 5_000


def stub_of(job: JobRecord) -> JobRecord:
    """The stub of a job that completed."""
    return msgspec.structs.replace(
        job,
        payload=b"",
        progress=None,
        errors=[],
        signals={},
        awaits=None,
        linked=False,
        turn=0,
        queue_time=None,
    )


def is_over(stub: JobRecord, now_ms: int) -> bool:
    """Whether a stub has expired."""
    return (stub.finished_ms or 0) + STUB_MS <= now_ms
