"""Attribute names of other job systems: the ``AttributeError`` says what to write in Windlass instead.

Tasks, jobs, queues, steps and the app use this by inheriting from ``ForeignNames``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar


class ForeignNames:
    """Base class whose ``AttributeError`` suggests our name for an attribute of another system."""

    __slots__ = ()

    #: How error messages call an instance, such as ``a task``.
    _called: ClassVar[str] = "it"
    #: Names in other systems, and what to write instead.
    _elsewhere: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # type checkers refuse every attribute that is not there

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # it is there, and reading it failed: that error is the one to show
                return object.__getattribute__(self, name)
            instead = self._elsewhere.get(name)
            hint = f"; write {instead}" if instead else ""
            raise AttributeError(f"{self._called} has no {name!r}{hint}", name=name, obj=self)


_ENQUEUE = "await task.enqueue(...), or task.sync.enqueue(...) without an event loop"
_WITH_OPTIONS = "await task.options(delay=5, ...).enqueue(...)"
TASK: Mapping[str, str] = {
    "delay": _ENQUEUE,
    "send": _ENQUEUE,
    "kiq": _ENQUEUE,
    "defer": _ENQUEUE,
    "perform_async": _ENQUEUE,
    "apply_async": _WITH_OPTIONS,
    "send_with_options": _WITH_OPTIONS,
    "schedule": "await task.options(delay=60).enqueue(...), or @app.task(cron=...)",
    "si": "task.s(...), which takes the result of the step before only where RESULT stands",
    "apply": "task(...), which runs the function here and now",
    "retry": "raise Retry(delay) in the task",
}
_ENQUEUE_STEP = "await step.enqueue(), or step.sync.enqueue() without an event loop"
STEP: Mapping[str, str] = {
    "delay": _ENQUEUE_STEP,
    "apply_async": _ENQUEUE_STEP,
    "run": _ENQUEUE_STEP,
    "call": "await (await step.enqueue()).result(timeout=10)",
    "get": "await (await step.enqueue()).result(timeout=10)",
    "result": "await (await step.enqueue()).result(timeout=10)",
}
JOB: Mapping[str, str] = {
    "get": "await job.result(timeout=10)",
    "wait": "await job.result(timeout=10)",
    "get_result": "await job.result(timeout=10)",
    "ready": "await job.get_state()",
    "status": "job.state, or await job.get_state()",
    "successful": "await job.get_state()",
    "revoke": "await job.cancel()",
    "abort": "await job.cancel()",
    "delete": "await job.remove()",
    "meta": "job.progress, which await job.update_progress(...) sets",
}
_ADD = 'await queue.add("task.name", {"argument": 1}), or await task.enqueue(1)'
QUEUE: Mapping[str, str] = {
    "enqueue": _ADD,
    "enqueue_job": _ADD,
    "enqueue_in": 'await queue.add("task.name", {...}, delay=60)',
    "enqueue_at": 'await queue.add("task.name", {...}, run_at=...)',
    "purge": "await queue.clear(), which deletes what waits",
    "empty": "await queue.clear(), which deletes what waits",
    "process": "Worker(queue.name, handler)",
}
APP: Mapping[str, str] = {
    "send_task": 'await app.queue("mail").add("task.name", {"argument": 1})',
    "enqueue": "await task.enqueue(...)",
    "enqueue_job": 'await app.queue("mail").add("task.name", {"argument": 1})',
    "actor": "@app.task",
    "periodic_task": '@app.task(cron="0 7 * * *")',
    "cron": '@app.task(cron="0 7 * * *")',
    "shared_task": "@app.task",
    "run": "'windlass worker MODULE:APP' in a shell, or await Worker(queues, url_or_app=app).run()",
    "worker": "'windlass worker MODULE:APP' in a shell, or await Worker(queues, url_or_app=app).run()",
    "start": "'windlass worker MODULE:APP' in a shell, or await Worker(queues, url_or_app=app).run()",
    "connect": "await app.open(), or async with app",
    "shutdown": "await app.close()",
}
