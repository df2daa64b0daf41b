"""What a broker cannot promise: the one list.

``docs/amqp.md`` shows it as a table (``as_table``), and each row is a capability that this backend declares
missing; a test compares all three.
"""

from __future__ import annotations

from windlass.backend.capabilities import Capabilities

#: What is missing, by the name of the capability, and what happens instead.
MISSING = {
    "transactions": "refused: a job is added outside the application's own database transaction",
    "lifo": "refused: use a higher priority",
    "unique": "refused: a `job_id` of your own works",
    "groups": "refused",
    "limits": "refused: no limits of concurrency or rate for whole queues",
    "revoked_tasks": "refused: cancel the jobs that wait (`queue.cancel_jobs`), or pause the queue",
    "flows": "refused: a job cannot wait for others",
    "signals": "refused: a job cannot be suspended until a signal comes",
    "streams": "refused: no live output of running jobs",
    "restore": "refused: jobs of an export are added and run; those that ended stay behind",
    "exact_priority": "eleven bands: 0 to 7, 8 from 8 on, 9 from 1,000, 10 from 1,000,000; below 0 refused",
    "recovered_place": "a job that is taken back from a silent worker joins the back of the line",
    "fenced": "a worker without its connection may end a job that runs elsewhere; the first end counts",
}

CAPABILITIES = Capabilities(
    durable=True,
    shared=True,
    schedules=True,
    metrics=True,
    commands=True,
    **dict.fromkeys(MISSING, False),
)


def as_table() -> str:
    """The rows as they stand in the docs."""
    rows = [f"| {name.replace('_', ' ')} | {what} |" for name, what in MISSING.items()]
    return "\n".join(["| cannot be promised | what happens |", "|---|---|", *rows])
