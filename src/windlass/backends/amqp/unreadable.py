"""Messages that are not jobs: they go to the dead set with their bytes."""

from __future__ import annotations

import hashlib

import msgspec

from windlass.core import bad_records
from windlass.core.ids import check_queue_name
from windlass.core.job import JobRecord
from windlass.core.states import JobState

#: How many bytes of a message are kept. More would push other entries out of the log, and an answer with
#: several such messages could be larger than the broker accepts.
MOST_KEPT = 16_000_000


def poison(queue: str, body: bytes, problem: str, now_ms: int) -> JobRecord:
    """The dead record of a message that is not a job. It has the bytes of the message."""
    shown = body if len(body) < MOST_KEPT else body + problem.encode()  # the rest of a large one is cut off
    return bad_records.stand_in(
        queue,
        f"bad-{hashlib.sha256(shown).hexdigest()[:32]}",
        body,
        problem,
        state=JobState.FAILED,
        enqueued_ms=now_ms,
        ready_ms=now_ms,
        finished_ms=now_ms,
    )


def queue_of(body: bytes) -> str:
    """The queue that an unreadable message names, or ``default``."""
    try:
        fields = msgspec.json.decode(body)
        return check_queue_name(fields.get("job", fields).get("queue"))
    except bad_records.UNREADABLE:
        return "default"
