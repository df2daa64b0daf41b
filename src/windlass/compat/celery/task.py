"""``Task``: a function, or a class with ``run``, with Celery's API."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from windlass.compat.celery import exceptions, states
from windlass.compat.celery.calls import aware
from windlass.compat.celery.canvas import Signature, as_list
from windlass.compat.celery.current import CeleryApp, Context, run_as, running
from windlass.compat.celery.result import AsyncResult, EagerResult
from windlass.compat.celery.running import errback_arguments, run_here
from windlass.core.limit_rules import Rate
from windlass.errors import ConfigError, JobSignal
from windlass.jobs.context import current_job

#: Maximum number of runs of a task that retries itself: ``self.retry(max_retries=...)`` may raise its limit.
_RETRIES_BY_HAND: Final = 1_000
_FOR_EVER: Final = 1_000_000
_RATE_UNITS: Final = {"s": 1, "m": 60, "h": 3600}

#: Options of ``@app.task`` that become attributes of the task.
TAKEN: Final = frozenset(
    "max_retries default_retry_delay autoretry_for dont_autoretry_for retry_kwargs retry_backoff "
    "retry_backoff_max retry_jitter rate_limit time_limit soft_time_limit ignore_result queue priority "
    "expires track_started typing throws".split()
)
#: Options without effect: Windlass always does this, or has nothing to tune.
NEEDLESS: Final = frozenset(
    "acks_late acks_on_failure_or_timeout reject_on_worker_lost store_errors_even_if_ignored send_events "
    "trail compression resultrepr_maxsize shared lazy".split()
)


class Task:
    """A task of an app. Calling it runs it here; ``delay`` and ``apply_async`` send it to a worker."""

    app: CeleryApp
    name: str = ""
    max_retries: int | None = 3
    default_retry_delay: float = 180
    autoretry_for: tuple[type[BaseException], ...] = ()
    dont_autoretry_for: tuple[type[BaseException], ...] = ()
    retry_kwargs: Mapping[str, Any] = {}
    retry_backoff: bool | float = False
    retry_backoff_max: float = 600
    retry_jitter: bool = True
    rate_limit: str | float | None = None
    time_limit: float | None = None
    soft_time_limit: float | None = None
    ignore_result: bool | None = None
    queue: str | None = None
    priority: int | None = None
    expires: Any = None
    track_started: bool | None = None
    typing: bool = True
    throws: tuple[type[BaseException], ...] = ()
    #: Whether the function takes the task as its first argument.
    bound: bool = True

    def __repr__(self) -> str:
        return f"<@task: {self.name}>"

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The function of the task. Classes override it."""
        raise NotImplementedError("Tasks must define the run method.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run it in this process, as a function."""
        with run_as(self, Context(args=args, kwargs=kwargs, task=self.name)):
            return self.run(*args, **kwargs)

    # --- sending ---------------------------------------------------------------------------------------

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """Send it with these arguments."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        link: Any = None,
        link_error: Any = None,
        **options: Any,
    ) -> Any:
        """Send it: ``countdown``, ``eta``, ``expires``, ``queue``, ``priority``, ``headers`` and so on."""
        given = {"task_id": task_id, "link": link, "link_error": link_error, **options}
        said = {key: value for key, value in given.items() if value is not None}
        return Signature(self, args, kwargs, said).apply_async()

    def apply(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        throw: bool | None = None,
        link: Any = None,
        link_error: Any = None,
        **options: Any,
    ) -> EagerResult:
        """Run it in this process; returns an ``EagerResult``."""
        throws = self.app.conf.task_eager_propagates if throw is None else throw
        result = run_here(self, tuple(args or ()), dict(kwargs or {}), task_id, bool(throws))
        if result.successful():
            for callback in as_list(link):
                callback.apply((result.get(),))
        if result.failed():
            for errback in as_list(link_error):
                self._call_errback(errback, result)
        return result

    def _call_errback(self, errback: Signature, result: EagerResult) -> None:
        task, args = errback.app.tasks[errback.task], errback.args
        if not errback.immutable:
            failed, why = (result.id, self.name), (result.result, result.traceback)
            args = errback_arguments(task, failed, why, args, errback.kwargs)
        task.apply(args, errback.kwargs, **errback.options)

    def signature(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Signature:
        """This call as a signature."""
        immutable = bool(options.pop("immutable", False))
        return Signature(self, args, kwargs, options.pop("options", None), immutable, **options)

    subtask = signature

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """This call as a signature. In a chain, the previous result becomes its first argument."""
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """This call as a signature that ignores results of other tasks."""
        return Signature(self, args, kwargs, immutable=True)

    def AsyncResult(self, task_id: str, **options: Any) -> AsyncResult:
        """The result of that id."""
        return AsyncResult(task_id, app=self.app, **options)

    # --- inside a run ----------------------------------------------------------------------------------

    @property
    def request(self) -> Context:
        """The facts about the current call."""
        found = running()
        return found[1] if found is not None and found[0].name == self.name else Context()

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: BaseException | None = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> exceptions.Retry:
        """Raise ``Retry`` to run again later; after the last retry ``exc`` or ``MaxRetriesExceededError``."""
        if args is not None or kwargs is not None or options or not throw:
            raise ConfigError(
                "retry",
                message="retry takes exc, eta, countdown and max_retries only; send the task again for "
                "anything else",
            )
        request = self.request
        if request.called_directly:
            raise exc or exceptions.Retry("Task can be retried", None)
        most = self.max_retries if max_retries is None else max_retries
        if most is not None and request.retries >= most:
            if exc is not None:
                raise exc
            call = f"{self.name}[{request.id}] args:{request.args} kwargs:{request.kwargs}"
            raise exceptions.MaxRetriesExceededError(
                f"Can't retry {call}", task_args=request.args, task_kwargs=request.kwargs
            )
        pause = self.default_retry_delay if countdown is None else countdown
        when = pause if eta is None or countdown else aware(self.app, eta, "eta")
        raise exceptions.Retry(exc=exc, when=when)

    def update_state(
        self, task_id: str | None = None, state: str | None = None, meta: Any = None, **needless: Any
    ) -> None:
        """Report the state of the run: ``result.state`` and ``result.info`` show it while it runs."""
        request = self.request
        if request.is_eager or request.called_directly:
            return
        if task_id is not None and task_id != request.id:
            raise ConfigError(
                "task_id",
                message=f"a task can update its own state only, not that of {task_id!r}; leave out task_id",
                got=task_id,
            )
        current_job().sync.update_progress({states.STATE_KEY: state, states.META_KEY: meta})

    def replace(self, sig: Any) -> Any:
        """Refused: use a job with children for a task that continues as another one."""
        raise ConfigError(
            "replace",
            message="replace is not supported: use current_job().add_child(...) and raise WaitForChildren()",
        )

    add_to_chord = replace

    # --- hooks for classes ------------------------------------------------------------------------------

    def before_start(self, task_id: Any, args: Any, kwargs: Any) -> None:
        """Called before a run."""

    def on_success(self, retval: Any, task_id: Any, args: Any, kwargs: Any) -> None:
        """Called after a run that returned."""

    def on_failure(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called after a run that raised."""

    def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
        """Called after a run that asked for a retry."""

    def after_return(
        self, status: Any, retval: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called after every run."""

    # --- used by other modules -------------------------------------------------------------------------

    def invoke(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function; errors of ``autoretry_for`` become a retry."""
        call = self.run if type(self).__call__ is Task.__call__ else self
        try:
            return call(*args, **kwargs)
        except tuple(self.autoretry_for) as exc:
            if isinstance(exc, (exceptions.TaskPredicate, JobSignal, *self.dont_autoretry_for)):
                raise
            given = dict(self.retry_kwargs)
            if self.retry_backoff:
                given["countdown"] = self._backoff(self.request.retries)
            self.retry(exc=exc, **given)

    def _backoff(self, retries: int) -> float:
        """Celery's backoff: at least whole seconds, doubled each time, with jitter a random part of it."""
        most = min(self.retry_backoff_max, int(max(1.0, self.retry_backoff)) * 2**retries)
        return random.uniform(0, most) if self.retry_jitter else most

    @property
    def ignores_result(self) -> bool:
        """Whether the return value is dropped."""
        return bool(self.app.conf.task_ignore_result if self.ignore_result is None else self.ignore_result)

    def check_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise ``TypeError`` for arguments that the function does not take."""
        if self.typing:
            inspect.signature(self.run).bind(*args, **kwargs)

    def takes(self, count: int, kwargs: Mapping[str, Any]) -> bool:
        """Whether it can be called with this number of arguments, and ``kwargs``."""
        try:
            inspect.signature(self.run).bind(*[None] * count, **kwargs)
        except TypeError:
            return False
        return True

    def job_options(self) -> dict[str, Any]:
        """The options of its Windlass task, for everything that a call does not set."""
        limits = [self.time_limit or self.app.conf.task_time_limit]
        limits.append(self.soft_time_limit or self.app.conf.task_soft_time_limit)
        found: dict[str, Any] = {"max_attempts": self._most_runs()}
        if any(limits):
            found["timeout"] = min(limit for limit in limits if limit)
        rate = self.rate_limit or self.app.conf.task_default_rate_limit
        if rate:
            found["rate"] = to_rate(rate)
        return found

    def _most_runs(self) -> int:
        if not self.bound and not self.autoretry_for:
            return 1
        if self.max_retries is None:
            return _FOR_EVER
        most = max(self.max_retries, self.retry_kwargs.get("max_retries") or 0)
        return min((max(most, _RETRIES_BY_HAND) if self.bound else most) + 1, _FOR_EVER)


def to_rate(given: str | float) -> Rate:
    """``"10/m"`` as a rate over all workers. A number is per second."""
    count, _, unit = str(given).partition("/")
    try:
        seconds = _RATE_UNITS[unit or "s"]
        number = float(count)
    except (KeyError, ValueError):
        raise ConfigError(
            "rate_limit", "a number per second, or like '10/s', '100/m', '1000/h'", given
        ) from None
    return Rate.every(int(number), seconds) if number >= 1 else Rate.every(1, seconds / number)
