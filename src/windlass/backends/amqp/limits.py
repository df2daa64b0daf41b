"""The list of features that AMQP does not support.

``docs/amqp.md`` shows it as a table (``as_table``), and each row is a capability that this backend declares
missing; a test compares all three.
"""

from __future__ import annotations

from dataclasses import replace

from windlass.backend.capabilities import Capabilities

#: What is missing, by the name of the capability, and what happens instead.
MISSING = {
    "transactions": "refused: the broker cannot take part in your database transaction",
    "lifo": "refused: use a higher priority instead",
    "unique": "refused: set a `job_id` instead",
    "groups": "refused",
    "limits": "refused: a queue cannot have a concurrency or rate limit",
    "revoked_tasks": "refused: cancel the waiting jobs (`queue.cancel_jobs`) or pause the queue",
    "flows": "refused: a job cannot wait for other jobs",
    "signals": "refused: a job cannot be suspended until a signal arrives",
    "streams": "refused: running jobs cannot stream output",
    "restore": "refused: an import adds unfinished jobs and runs them; finished jobs are left out",
    "exact_priority": (
        "rounded to eleven levels: 0 to 7, 8 from 8, 9 from 1,000, 10 from 1,000,000; negative "
        "priorities are refused"
    ),
    "recovered_place": "a job recovered from a dead worker joins the back of the queue",
    "fenced": (
        "a worker that lost its connection can still finish a job that runs elsewhere; the first "
        "result counts"
    ),
}

CAPABILITIES = Capabilities(
    durable=True,
    shared=True,
    schedules=True,
    metrics=True,
    commands=True,
    **dict.fromkeys(MISSING, False),
)

#: What quorum queues do not support in addition.
MISSING_ON_QUORUM = {
    "priority": "refused: use another queue, with a higher weight, for urgent jobs",
}

QUORUM_CAPABILITIES = replace(CAPABILITIES, **dict.fromkeys(MISSING_ON_QUORUM, False))


def as_table(missing: dict[str, str] = MISSING) -> str:
    """The table as it is in ``docs/amqp.md``."""
    rows = [f"| {name.replace('_', ' ')} | {what} |" for name, what in missing.items()]
    return "\n".join(["| not supported | what happens |", "|---|---|", *rows])
