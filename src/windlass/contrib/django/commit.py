"""Enqueue after the database has committed, so that a job never runs before its rows exist.

A crash between the commit and the enqueue can lose the job. If that matters, write a row in the transaction
and enqueue from it, or use ``Queue.add_in_transaction`` on SQLite.
"""

from __future__ import annotations

from typing import ParamSpec, TypeVar

from django.db import transaction

from windlass.api.task import BoundTask, Task
from windlass.jobs.sync import PORTAL

P = ParamSpec("P")
R = TypeVar("R")


def enqueue_on_commit(task: Task[P, R] | BoundTask[P, R], /, *args: P.args, **kwargs: P.kwargs) -> str:
    """Add a job for a Windlass task when the current transaction commits; returns the job's id now.

    Arguments are checked and encoded at once. If the transaction rolls back, nothing is added. Outside of a
    transaction, the job is added at once.
    """
    bound = task if isinstance(task, BoundTask) else task.options()
    new = bound.prepare(*args, **kwargs)
    queue = bound.task.queue
    transaction.on_commit(lambda: PORTAL.run(queue.add_new([new])))
    return new.id
