"""One run of a task, as a worker's job or eagerly in this process."""

from __future__ import annotations

import json
import traceback
from typing import Any

from windlass import errors
from windlass.compat.celery import calls, exceptions, signals, states
from windlass.compat.celery.current import Context, run_as
from windlass.compat.celery.result import EagerResult
from windlass.core.ids import new_id
from windlass.errors import Cancel, JobSignal, Snooze
from windlass.jobs.context import current_job
from windlass.jobs.job import Job


class ExceptionInfo:
    """An exception and its traceback as text, for hooks and signals."""

    def __init__(self, exception: BaseException) -> None:
        self.exception = exception
        self.type = type(exception)
        self.traceback = "".join(traceback.format_exception(exception))

    def __str__(self) -> str:
        return self.traceback


def run_job(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``task`` for the current job, and end the job according to what the task did.

    Only ``self.retry()`` and ``autoretry_for`` retry. Any other error, including a timeout, fails the job.
    """
    job = current_job()
    job.discard()
    if calls.ERRBACK in job.trace:
        args = _errback_arguments(task, job, args)
    elif calls.PASSING in job.trace:
        args = (_passed(job), *args)
    _pause(job)
    request = _request(task, job, args, kwargs)
    try:
        value = perform(task, request)
    except exceptions.Retry as retry:
        job.discarded = False
        raise errors.Retry(_delay(retry), str(retry)) from retry
    except exceptions.Ignore:
        raise Cancel(states.IGNORED_REASON) from None
    except exceptions.Reject as reject:
        raise (Snooze(0) if reject.requeue else Cancel(states.REJECTED_REASON)) from None
    return None if _is_dropped(task, job) else value


def run_here(
    task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], task_id: str | None, throw: bool
) -> EagerResult:
    """Run ``task`` in this process, with its retries but without delays between them."""
    facts = {"id": task_id or new_id(), "is_eager": True, "called_directly": False, "task": task.name}
    retries = 0
    while True:
        request = Context(
            **facts, args=args, kwargs=kwargs, retries=retries, delivery_info={"is_eager": True}
        )
        try:
            value = perform(task, request)
        except exceptions.Retry:
            retries += 1
        except exceptions.Ignore:
            return EagerResult(facts["id"], None, states.IGNORED, name=task.name)
        except exceptions.Reject as reject:
            return EagerResult(facts["id"], reject, states.REJECTED, name=task.name)
        except Exception as exc:
            if throw:
                raise
            text = ExceptionInfo(exc).traceback
            return EagerResult(facts["id"], exc, states.FAILURE, text, name=task.name)
        else:
            return EagerResult(facts["id"], value, states.SUCCESS, name=task.name)


def perform(task: Any, request: Context) -> Any:
    """Call the task with its hooks and signals. Raises the task's error."""
    args, kwargs, task_id = request.args, request.kwargs, request.id
    call = {"task_id": task_id, "task": task, "args": args, "kwargs": kwargs}
    state, value, info = states.SUCCESS, None, None
    with run_as(task, request):
        signals.task_prerun.send(task, **call)
        try:
            task.before_start(task_id, args, kwargs)
            value = task.invoke(args, kwargs)
            task.on_success(value, task_id, args, kwargs)
            signals.task_success.send(task, result=value)
            return value
        except exceptions.Retry as retry:
            state, value, info = states.RETRY, retry, ExceptionInfo(retry)
            task.on_retry(retry.exc, task_id, args, kwargs, info)
            signals.task_retry.send(task, request=request, reason=retry, einfo=info)
            raise
        except exceptions.TaskPredicate as said:
            state, value = states.IGNORED, said
            raise
        except JobSignal:  # the task raised a signal of Windlass itself
            state = states.IGNORED
            raise
        except Exception as exc:
            state, value, info = states.FAILURE, exc, ExceptionInfo(exc)
            task.on_failure(exc, task_id, args, kwargs, info)
            facts = {"exception": exc, "traceback": exc.__traceback__, "einfo": info}
            signals.task_failure.send(task, task_id=task_id, args=args, kwargs=kwargs, **facts)
            raise
        finally:
            signals.task_postrun.send(task, **call, retval=value, state=state)
            if state in (states.SUCCESS, states.FAILURE):
                task.after_return(state, value, task_id, args, kwargs, info)


def _request(task: Any, job: Job[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Context:
    trace = job.trace
    headers = json.loads(trace[calls.HEADERS]) if calls.HEADERS in trace else None
    facts = {
        "id": job.id,
        "task": task.name,
        "args": args,
        "kwargs": kwargs,
        "retries": job.attempts,
        "called_directly": False,
        "hostname": job.worker_id,
        "group": trace.get(calls.GROUP),
        "parent_id": trace.get(calls.PARENT),
        "root_id": (job.options.root or "").partition("/")[2] or job.id,
        "correlation_id": job.id,
        "headers": headers,
        "delivery_info": {"routing_key": job.queue_name, "priority": abs(job.priority), "exchange": ""},
        "timelimit": (job.options.timeout_ms and job.options.timeout_ms / 1000, None),
    }
    return Context(**{**(headers or {}), **facts})


def _passed(job: Job[Any]) -> Any:
    """The results of the previous steps: one value, or a list."""
    values = list(job.sync.get_children_values().values())
    return values if job.trace[calls.PASSING] == "list" else values[0]


def _pause(job: Job[Any]) -> None:
    """Apply the countdown and the expiry of a step that follows others, on its first delivery."""
    if job.deliveries > 1:
        return
    expires, countdown = job.trace.get(calls.EXPIRES), job.trace.get(calls.COUNTDOWN)
    record = job.record
    waited = ((record.started_ms or record.ready_ms) - record.ready_ms) / 1000
    if expires is not None and waited > float(expires):
        raise Cancel("expired")
    if countdown is not None and waited < float(countdown):
        raise Snooze(float(countdown) - waited)


def _is_dropped(task: Any, job: Job[Any]) -> bool:
    """Whether nothing needs the return value: no later step, and not the caller."""
    if calls.KEPT in job.trace:
        return False
    said = job.trace.get(calls.IGNORED)
    return bool(task.ignores_result) if said is None else said == "yes"


def _errback_arguments(task: Any, job: Job[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an errback: (request, exception, traceback) if it takes them, else the task's id.

    Raises ``Cancel`` if the task did not fail itself: it succeeded, was revoked, ignored or rejected, or an
    earlier task of its chain failed.
    """
    failed = job.sync.get_failed_children()
    if not failed:
        raise Cancel("not needed: its task has succeeded")
    (reference, reason), task_id = next(iter(failed.items())), job.trace[calls.ERRBACK]
    before = task.app.AsyncResult(task_id, queue=reference.partition(":")[0])
    if before.state in (states.REVOKED, states.IGNORED, states.REJECTED):
        raise Cancel("not needed: its task has not failed, it was revoked, ignored or rejected")
    error = before.result
    if reason.startswith("dependency_failed") and not isinstance(error, exceptions.ChordError):
        raise Cancel("not needed: an earlier task of the chain has failed, and its errback was called")
    if calls.IMMUTABLE in job.trace:
        return args
    return errback_arguments(task, (task_id, before.name), (error, before.traceback), args, job.kwargs)


def errback_arguments(
    task: Any,
    failed: tuple[str, str | None],
    why: tuple[Any, str | None],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, ...]:
    """All arguments of an errback, for the id and name of a failed task, and its exception and traceback."""
    if task.takes(3 + len(args), kwargs):
        return (Context(id=failed[0], task=failed[1]), *why, *args)
    return (failed[0], *args)


def _delay(retry: exceptions.Retry) -> float:
    if retry.when is None:
        return 0
    if isinstance(retry.when, (int, float)):
        return max(retry.when, 0)
    return max((retry.when - calls.now()).total_seconds(), 0)
