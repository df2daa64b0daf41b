"""``AsyncResult`` and ``GroupResult``: states and results of tasks, by id."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from typing import Any

from windlass.compat.celery import exceptions, states
from windlass.compat.celery.calls import PASSING
from windlass.compat.celery.current import (
    CeleryApp,
    allow_join_result,
    app_or_current,
    refuse_inside_a_task,
    wait_for,
)
from windlass.core import remote_errors
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.edges import EdgeStatus
from windlass.core.job import ErrorInfo
from windlass.core.states import FINISHED
from windlass.errors import JobNotFoundError, JobTimeoutError, WaitTimeoutError
from windlass.jobs.job import Job

__all__ = ["AsyncResult", "EagerResult", "GroupResult", "ResultSet", "allow_join_result"]


class _Shared:
    """Methods of all results that depend only on ``state``."""

    id: str

    @property
    def state(self) -> str:
        raise NotImplementedError

    @property
    def status(self) -> str:
        """``state``."""
        return self.state

    @property
    def task_id(self) -> str:
        """``id``."""
        return self.id

    def ready(self) -> bool:
        """Whether it has ended."""
        return self.state in states.READY_STATES

    def successful(self) -> bool:
        """Whether it has succeeded."""
        return self.state == states.SUCCESS

    def failed(self) -> bool:
        """Whether it has failed."""
        return self.state == states.FAILURE

    def __str__(self) -> str:
        return self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shared) and other.id == self.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class AsyncResult(_Shared):
    """The result of a job by id, in ``queue`` if known, else in any queue."""

    def __init__(
        self,
        id: str,
        app: CeleryApp | None = None,
        parent: Any = None,
        queue: str | None = None,
        ignored: bool = False,
    ) -> None:
        self.id = str(id)
        self.app = app_or_current(app)
        self.parent = parent
        self.queue = queue
        self.ignored = ignored

    # --- state -----------------------------------------------------------------------------------------

    def _job(self) -> Job[Any] | None:
        return wait_for(self.app.find_job(self.id, self.queue))

    def _state_of(self, job: Job[Any] | None) -> str:
        task = self.app.tasks.get(job.name) if job is not None else None
        tracked = bool(getattr(task, "track_started", None) or self.app.conf.task_track_started)
        return states.state_of(job, track_started=tracked)

    @property
    def state(self) -> str:
        """Celery's name of its state. A task that was never sent is ``PENDING``."""
        return self._state_of(self._job())

    @property
    def result(self) -> Any:
        """The return value, the exception, or the data of ``update_state``; None if there is none yet."""
        job = self._job()
        state = self._state_of(job)
        if job is None:
            return None
        if state == states.SUCCESS:
            return job.return_value
        if state in states.EXCEPTION_STATES:
            return wait_for(_error(self.app, job))
        return states.reported(job)[1]

    @property
    def info(self) -> Any:
        """``result``."""
        return self.result

    @property
    def traceback(self) -> str | None:
        """The traceback of the last error, as text."""
        job = self._job()
        return None if job is None or not job.errors else job.errors[-1].traceback or None

    @property
    def name(self) -> str | None:
        """The name of the task."""
        job = self._job()
        return None if job is None else job.name

    @property
    def args(self) -> list[Any] | None:
        job = self._job()
        return None if job is None else job.args

    @property
    def kwargs(self) -> dict[str, Any] | None:
        job = self._job()
        return None if job is None else job.kwargs

    @property
    def retries(self) -> int | None:
        """How many times it was retried."""
        job = self._job()
        return None if job is None else job.attempts

    # --- verbs -----------------------------------------------------------------------------------------

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        disable_sync_subtasks: bool = True,
        **needless: Any,
    ) -> Any:
        """Wait for the return value. Raises the task's error, unless ``propagate`` is false."""
        if self.ignored:
            return None
        if disable_sync_subtasks:
            refuse_inside_a_task()
        return wait_for(self._finished(timeout, propagate))

    wait = get

    async def _finished(self, timeout: float | None, propagate: bool) -> Any:
        job = await self.app.find_job(self.id, self.queue)
        if job is None:
            raise exceptions.TimeoutError(
                f"no job {self.id} is in the store: it was never sent, or its record is gone"
            )
        try:
            await job.wait_until_finished(timeout)
        except WaitTimeoutError as exc:
            raise exceptions.TimeoutError("The operation timed out.") from exc
        except JobNotFoundError as exc:
            raise exceptions.TaskRevokedError(
                f"the job {self.id} was removed while it was waited for"
            ) from exc
        state = self._state_of(job)
        if state == states.SUCCESS:
            return job.return_value
        if state not in states.PROPAGATE_STATES:
            return None  # ignored or rejected
        error = await _error(self.app, job)
        if propagate:
            raise error
        return error

    def maybe_throw(self, propagate: bool = True, callback: Any = None) -> Any:
        """The current result. Raises the error of a failed task."""
        value = self.result
        if propagate and self.state in states.PROPAGATE_STATES and isinstance(value, BaseException):
            raise value
        return value

    def revoke(self, terminate: bool = False, signal: str | None = None, **needless: Any) -> None:
        """Cancel it; a running task only with ``terminate``."""
        wait_for(revoke(self.app, self.id, self.queue, terminate))

    def forget(self) -> None:
        """Remove the record of a finished task."""
        wait_for(self._forget())

    async def _forget(self) -> None:
        job = await self.app.find_job(self.id, self.queue)
        if job is not None and job.state in FINISHED:
            await job.remove()


class EagerResult(_Shared):
    """The result of a task that ran in this process."""

    def __init__(
        self, id: str, value: Any, state: str, traceback: str | None = None, name: str | None = None
    ) -> None:
        self.id = id
        self.result = self.info = value
        self.traceback = traceback
        self.name = name
        self.parent: Any = None
        self._state = state

    @property
    def state(self) -> str:
        return self._state

    def get(self, timeout: float | None = None, propagate: bool = True, **needless: Any) -> Any:
        """The return value. Raises the task's error, unless ``propagate`` is false."""
        if self._state in states.PROPAGATE_STATES and propagate:
            raise self.result
        return self.result

    wait = get

    def maybe_throw(self, propagate: bool = True, callback: Any = None) -> Any:
        """``get``."""
        return self.get(propagate=propagate)

    def revoke(self, *args: Any, **needless: Any) -> None:
        """Does nothing: the task has ended."""

    def forget(self) -> None:
        """Does nothing: no record is kept."""


AnyResult = Any


class ResultSet:
    """Several results as one."""

    def __init__(self, results: Sequence[AnyResult]) -> None:
        self.results = list(results)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[AnyResult]:
        return iter(self.results)

    def __getitem__(self, index: int) -> AnyResult:
        return self.results[index]

    def __bool__(self) -> bool:
        return True

    def ready(self) -> bool:
        """Whether all have ended."""
        return all(one.ready() for one in self.results)

    def successful(self) -> bool:
        """Whether all have succeeded."""
        return all(one.successful() for one in self.results)

    def failed(self) -> bool:
        """Whether at least one has failed."""
        return any(one.failed() for one in self.results)

    def waiting(self) -> bool:
        """Whether at least one has not ended."""
        return not self.ready()

    def completed_count(self) -> int:
        """How many have succeeded."""
        return sum(one.successful() for one in self.results)

    def get(self, timeout: float | None = None, propagate: bool = True, **options: Any) -> list[Any]:
        """The return values, in order. Raises the first error, unless ``propagate`` is false."""
        clock = SYSTEM_CLOCK
        until_ms = None if timeout is None else clock.monotonic_ms() + timeout * 1000
        values = []
        for one in self.results:
            left = None if until_ms is None else max(until_ms - clock.monotonic_ms(), 0) / 1000
            values.append(one.get(timeout=left, propagate=propagate, **options))
        return values

    join = get
    join_native = get

    def revoke(self, terminate: bool = False, **needless: Any) -> None:
        """Cancel all of them."""
        for one in self.results:
            one.revoke(terminate=terminate)

    def forget(self) -> None:
        """Remove the records of all of them."""
        for one in self.results:
            one.forget()


class GroupResult(ResultSet):
    """The results of a group."""

    def __init__(self, id: str, results: Sequence[AnyResult], parent: Any = None) -> None:
        super().__init__(results)
        self.id = id
        self.parent = parent

    @property
    def children(self) -> list[AnyResult]:
        """The results of its members."""
        return self.results

    def __repr__(self) -> str:
        return f"<GroupResult {self.id}: {', '.join(str(one) for one in self.results)}>"


async def revoke(app: CeleryApp, job_id: str, queue: str | None, terminate: bool) -> None:
    """Cancel a job, a running one only with ``terminate``. A missing job is not an error."""
    job = await app.find_job(job_id, queue)
    if job is not None and (terminate or job.started_ms is None or not await job.is_active()):
        await job.cancel("revoked")


async def _error(app: CeleryApp, job: Job[Any]) -> BaseException:
    """Why a job failed, as the exception that callers expect."""
    if job.reason == "dependency_failed":
        return await _inherited(app, job)
    if job.errors and job.reason != "expired":
        return _rebuilt(app, job, job.errors[-1])
    return exceptions.TaskRevokedError(job.reason or "revoked")


async def _inherited(app: CeleryApp, job: Job[Any]) -> BaseException:
    """The error of the job that this one waited for: as ``ChordError`` for a chord's body, else unchanged."""
    for edge in await job.get_dependencies():
        if edge.status is EdgeStatus.FAILED:
            before = await app.find_job(edge.child.id, edge.child.queue)
            known = exceptions.TaskError(f"{edge.reason}: {edge.error}")
            error = known if before is None else await _error(app, before)
            if job.trace.get(PASSING) == "list":
                return exceptions.ChordError(f"Dependency {edge.child.id} raised {error!r}")
            return error
    return exceptions.TaskError("a task that it waited for has failed")


def _rebuilt(app: CeleryApp, job: Job[Any], info: ErrorInfo) -> BaseException:
    """An exception of the original class, if the module of the task has one of that name."""
    if info.error_class == JobTimeoutError.__name__:
        return exceptions.TimeLimitExceeded(info.message)
    kind = _known_class(app, job.name, info.error_class)
    if kind is not None:
        try:
            return kind(_key(info.message) if kind is KeyError else info.message)
        except Exception:  # its constructor takes more than a message
            pass
    return remote_errors.of_record(info)


def _key(message: str) -> Any:
    """The key of a ``KeyError``, whose message is its representation."""
    try:
        return ast.literal_eval(message)
    except (ValueError, SyntaxError):
        return message


def _known_class(app: CeleryApp, task_name: str, error_class: str) -> type[Exception] | None:
    task = app.tasks.get(task_name)
    scope: dict[str, Any] = getattr(getattr(task, "run", None), "__globals__", {})
    name = error_class.rpartition(".")[2]
    for found in (scope.get(name), getattr(exceptions, name, None), getattr(builtins, name, None)):
        if isinstance(found, type) and issubclass(found, Exception):
            return found
    return None
