"""The backend for ``django.tasks``: Django's tasks are jobs of a Windlass store.

The name of a task's job is the path of its function. Django promises one run per enqueue and no retries, so
``max_attempts`` is 1 unless ``OPTIONS`` set it. If a worker dies, this is still detected and its job runs
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from windlass.api.app import Windlass
from windlass.contrib.django import _tasks as dt
from windlass.contrib.django.conf import get_app
from windlass.contrib.django.results import to_result
from windlass.core.ids import check_queue_name, new_id
from windlass.core.job import NewJob
from windlass.core.option_values import check_known
from windlass.core.options import DEFAULT_OPTIONS, JobOptions
from windlass.errors import Cancel, ConfigError, JobSignal, Retry, UnrecoverableError, WindlassError
from windlass.handlers.registry import job_handler
from windlass.jobs.job import Job
from windlass.jobs.payload import pack_call
from windlass.jobs.prepare import PreparedOptions
from windlass.jobs.sync import PORTAL

_OPTIONS = ("enqueue_on_commit", "job_options", "url")


class TaskBackend(dt.BaseTaskBackend):
    """``BACKEND = "windlass.contrib.django.TaskBackend"``.

    ``OPTIONS``: ``url`` (a separate store), ``job_options`` (for every job: ``{"max_attempts": 3}``),
    ``enqueue_on_commit`` (True: jobs are added when the transaction commits. Default: False, because Django
    leaves this to ``transaction.on_commit``).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        check_known(self.options, _OPTIONS, f"key of TASKS[{alias!r}]['OPTIONS']")
        given: dict[str, Any] = {
            "max_attempts": 1,
            "result_ttl": 86_400,
            **self.options.get("job_options", {}),
        }
        self._job_options: JobOptions = DEFAULT_OPTIONS.merged(given)
        self._job_options.check()
        for name in self.queues:
            check_queue_name(name)

    @property
    def jobs(self) -> Windlass:
        """The app whose store holds the jobs."""
        return get_app(self.options.get("url"))

    def check(self, **kwargs: Any) -> list[Any]:
        """The findings of ``manage.py check`` for this backend."""
        from django.core import checks

        found: list[Any] = list(super().check(**kwargs))
        try:
            _ = self.jobs
        except WindlassError as exc:
            hint = f"look at WINDLASS and at TASKS[{self.alias!r}]"
            found.append(checks.Error(str(exc), hint=hint, id="windlass.E002"))
        return found

    def validate_task(self, task: Any) -> None:
        """Refuse tasks that no worker could run, in addition to Django's own checks."""
        super().validate_task(task)
        try:
            check_queue_name(task.queue_name)
        except ConfigError as exc:
            raise dt.InvalidTask(str(exc)) from exc

    # --- enqueue ---------------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Add a job, with ``enqueue_on_commit`` when the transaction commits."""
        new, result = self._prepare(task, args, kwargs)
        queue = self.jobs.queue(task.queue_name)

        def send() -> None:
            PORTAL.run(queue.add_new([new]))
            dt.task_enqueued.send(type(self), task_result=result)

        if self.options.get("enqueue_on_commit", False):
            transaction.on_commit(send)
        else:
            send()
        return result

    async def aenqueue(self, task: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """``enqueue`` on the caller's event loop."""
        if self.options.get("enqueue_on_commit", False):  # a transaction belongs to a thread
            return await sync_to_async(self.enqueue, thread_sensitive=True)(task, args, kwargs)
        new, result = self._prepare(task, args, kwargs)
        await self.jobs.queue(task.queue_name).add_new([new])
        await dt.task_enqueued.asend(type(self), task_result=result)
        return result

    def _prepare(self, task: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[NewJob, Any]:
        """A validated job, and the result for the caller."""
        self.validate_task(task)
        options: dict[str, Any] = {"priority": task.priority}
        if task.run_after is not None:
            options["run_at"] = _aware(task.run_after)
        queue = self.jobs.queue(task.queue_name)
        result = dt.TaskResult(
            task=task,
            id=new_id(),
            status=dt.TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )  # converts the arguments to plain JSON, or refuses them
        plan = PreparedOptions(self._job_options.merged(options), self.jobs.backoff_strategies)
        return plan.new_job(queue, task.module_path, pack_call(result.args, result.kwargs), result.id), result

    # --- results ---------------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        """The result of that id. Raises ``TaskResultDoesNotExist``, also if it has expired."""
        return PORTAL.run(self.aget_result(result_id))

    async def aget_result(self, result_id: str) -> Any:
        """``get_result`` on the caller's event loop."""
        for name in self.queues or [info.name for info in await self.jobs.queues()]:
            job = await self.jobs.queue(name).get_job(result_id)
            if job is not None:
                if job.record.result_expired:
                    break
                return to_result(self._task_of(job), self.alias, job)
        raise dt.TaskResultDoesNotExist(result_id)

    def _task_of(self, job: Job[Any]) -> Any:
        task = find_task(job.name)
        return task.using(priority=job.priority, queue_name=job.queue_name, backend=self.alias)


def find_task(path: str) -> Any:
    """The Django task of a dotted path. Raises ``UnrecoverableError`` if it is not one."""
    try:
        found = import_string(path)
    except ImportError as exc:
        raise UnrecoverableError(f"there is no task {path!r} in this code: {exc}") from exc
    if not isinstance(found, dt.Task):
        raise UnrecoverableError(f"{path!r} is not a task of django.tasks: decorate it with @task")
    return found


def install_runner(app: Windlass) -> None:
    """Let workers of ``app`` run Django's tasks in addition to the app's own."""
    app.registry.fallback = job_handler(run_task)
    app.registry.others = ("every task of django.tasks",)


def run_task(job: Job[Any]) -> Any:
    """Run a Django task in a thread, with Django's signals and its handling of database connections."""
    backend = _backend_of(job)
    task = find_task(job.name).using(queue_name=job.queue_name, priority=job.priority)
    result = to_result(task, backend.alias, job)
    _set(result, "status", dt.TaskResultStatus.RUNNING)
    close_old_connections()
    dt.task_started.send(type(backend), task_result=result)
    context = [dt.TaskContext(task_result=result)] if task.takes_context else []
    try:
        value = task.call(*context, *job.args, **job.kwargs)
    except BaseException as exc:
        if _is_final(job, exc):
            _finish(backend, result, dt.TaskResultStatus.FAILED)
        raise
    else:
        if not _is_storable(job, value):  # the worker will end the job as failed
            _finish(backend, result, dt.TaskResultStatus.FAILED)
            return value
        _set(result, "_return_value", value)
        _finish(backend, result, dt.TaskResultStatus.SUCCESSFUL)
        return value
    finally:
        close_old_connections()


def _is_final(job: Job[Any], error: BaseException) -> bool:
    """Whether the job has ended after ``error`` and will not be retried automatically."""
    spent = job.attempt >= job.max_attempts
    if isinstance(error, JobSignal):
        return isinstance(error, Cancel) or (isinstance(error, Retry) and spent)
    return spent or isinstance(error, UnrecoverableError)


def _is_storable(job: Job[Any], value: Any) -> bool:
    """Whether the store can hold a return value."""
    app = job.queue.app
    try:
        return len(app.codecs.write_result(job.record, value)) <= app.max_payload_bytes
    except Exception:  # a codec may raise anything
        return False


def _finish(backend: TaskBackend, result: Any, status: Any) -> None:
    _set(result, "status", status)
    _set(result, "finished_at", timezone.now())
    dt.task_finished.send(type(backend), task_result=result)


def _backend_of(job: Job[Any]) -> TaskBackend:
    """The configured backend of this job: on its store, with its queue."""
    ours = windlass_backends()
    for backend in ours:
        if backend.jobs is job.queue.app and (not backend.queues or job.queue_name in backend.queues):
            return backend
    if ours:
        return ours[0]
    raise UnrecoverableError(f"no task backend of the setting TASKS is for queue {job.queue_name!r}")


def windlass_backends() -> list[TaskBackend]:
    """The backends in the setting ``TASKS`` that belong to Windlass."""
    aliases = getattr(settings, "TASKS", None) or {}
    found = [dt.task_backends[alias] for alias in aliases]
    return [backend for backend in found if isinstance(backend, TaskBackend)]


def _set(result: Any, name: str, value: Any) -> None:
    object.__setattr__(result, name, value)  # the dataclass is frozen


def _aware(moment: datetime) -> datetime:
    return moment if timezone.is_aware(moment) else cast("datetime", timezone.make_aware(moment))
