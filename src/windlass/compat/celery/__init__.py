"""Celery's API on Windlass: change the import, keep the code, and migrate the rest task by task.

    from windlass.compat.celery import Celery

    app = Celery("shop", broker="valkey://localhost")     # any store of Windlass

    @app.task(bind=True, max_retries=5)
    def charge(self, order): ...

    charge.delay(7).get(timeout=10)

``windlass worker shop:app`` runs the tasks and the beat schedule. Everything is a job of ``app.windlass``,
with Windlass's own guarantees. A feature that Windlass lacks raises an error that says what to write instead.
"""

from windlass.compat.celery.app import Celery, current_app, current_task, shared_task
from windlass.compat.celery.canvas import Signature, chain, chord, group, maybe_signature, signature, subtask
from windlass.compat.celery.task import Task
from windlass.compat.celery.utils import uuid

__all__ = [
    "Celery",
    "Signature",
    "Task",
    "chain",
    "chord",
    "current_app",
    "current_task",
    "group",
    "maybe_signature",
    "shared_task",
    "signature",
    "subtask",
    "uuid",
]
