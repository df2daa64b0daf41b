"""Every error and every signal that Windlass raises, in one tree.

::

    WindlassError
    ├── ConfigError (ValueError)          an option, name or URL that cannot work
    │   ├── PayloadTooLargeError          arguments over the size cap
    │   ├── OrderedGroupError             a priority or ``lifo`` in a group that is ordered
    │   └── DependencyError               a job that cannot be waited for, or cannot wait
    │       └── CycleError                jobs that would wait for each other
    ├── GroupFullError                    the job's group has reached its ``max_size``
    ├── UnsupportedByBackendError         the chosen store cannot do this
    ├── StorageError (ConnectionError)    the store is unreachable, locked, full or damaged
    │   ├── HistoryTrimmedError           a cursor points below the oldest kept record
    │   ├── StoreReplacedError            the store's files were deleted or replaced while they were open
    │   ├── StoreFullError                the server has no memory left for more jobs
    │   └── ForkedError                   the store was opened before this process was forked
    ├── ClosedError                       the app, queue or reader of events was closed
    ├── WrongLoopError (RuntimeError)     the worker's own event loop cannot close it
    ├── JobNotFoundError (LookupError)    no job under that id
    ├── ScheduleNotFoundError (LookupError)  no schedule of that name
    ├── IllegalTransitionError            the job's state does not allow the request
    ├── LeaseLostError                    the job belongs to a newer lease
    ├── ResultError                       a handler's result cannot be stored
    ├── ResultExpiredError (LookupError)  the job completed, but its result has expired
    ├── WaitTimeoutError (TimeoutError)   the job did not finish in time; it continues
    ├── JobFailedError                    the awaited job failed permanently
    │   └── MaxRetriesError               ... because no attempt is left
    ├── JobCancelledError                 the awaited job was cancelled
    ├── JobTimeoutError (TimeoutError)    an attempt ran longer than its ``timeout``
    ├── AbortedError                      a handler stopped early because it was asked to
    ├── WorkerCrashError                  the child process of an attempt died
    ├── RemoteError                       an error that a handler raised in another process
    ├── SignatureError (ValueError)       stored bytes are not what their writer signed or encrypted
    ├── BatchError                        raised by a batch handler: some of its jobs failed
    └── UnrecoverableError                raised by a handler: fail now, never retry

    JobSignal                             raised by a handler to control its job; not an error
    ├── Snooze(delay)                     run the job again later; no attempt is counted
    ├── Retry(delay)                      this attempt failed; run the job again after ``delay``
    ├── Cancel(reason)                    end as cancelled
    ├── RateLimitError(delay)             an external service is busy; no attempt is counted
    ├── WaitForChildren()                 run the job again when its children have ended
    └── Suspend(signal, timeout)          run the job again when that signal comes

Each error has a stable ``code`` (for logs, HTTP answers and metrics) and its data as attributes,
so that programs need not parse messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

#: The longest delay of a signal: 100 years, as for all durations.
_MAX_SECONDS = 100 * 366 * 86_400
#: The maximum length of a refused value in a message.
_SHOWN_CHARS = 200


def _rebuild(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Make an exception without calling its ``__init__``, whose parameters are not ``args``."""
    error: BaseException = kind.__new__(kind)
    error.args = args
    return error


class _Picklable(Exception):
    """An exception that survives pickling and copying, whatever the parameters of its ``__init__`` are.

    Without it, an error that is raised in a worker of a ``multiprocessing.Pool`` stops the whole pool.
    """

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.args), self._state()

    def _state(self) -> dict[str, Any]:
        """Return the attributes as they are pickled."""
        return dict(self.__dict__)


class WindlassError(_Picklable):
    """Base of all errors that Windlass raises. ``code`` is a stable name of the kind of error."""

    code: ClassVar[str] = "error"


class ConfigError(WindlassError, ValueError):
    """An option, name or argument is invalid. ``option``, ``want`` and ``got`` say which one and why.

    The message is "``option`` must be ``want``, got ``got``", unless ``message`` is given. Then it is the
    whole message, and also ``want`` if there is none.
    """

    code = "config"

    def __init__(self, option: str, want: str = "", got: object = ..., *, message: str = "") -> None:
        self.option = option
        self.want: str = want or message
        self.got = got
        tail = "" if got is ... else f", got {shown(got)}"
        self.message: str = message or f"{option} must be {want}{tail}"
        super().__init__(self.message)

    def _state(self) -> dict[str, Any]:
        """Return the attributes; a refused value that may not be picklable becomes its text."""
        plain = self.got is ... or isinstance(self.got, str | bytes | int | float | None)
        return {**self.__dict__, "got": self.got if plain else shown(self.got)}


def not_installed(option: str, what: str, package: str) -> ConfigError:
    """Return the error for a feature whose packages are not installed."""
    return ConfigError(option, message=f"{what} is not installed; run: pip install '{package}'")


def shown(value: object) -> str:
    """Return a refused value for a message. It may be very long, or its ``repr`` may raise."""
    try:
        text = repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _ids(jobs: Sequence[Any]) -> list[Any]:
    """Return the ids of jobs, which themselves cannot be pickled."""
    return [getattr(job, "id", job) for job in jobs]


class PayloadTooLargeError(ConfigError):
    """The encoded arguments exceed the limit (1 MB unless the app sets another one)."""

    code = "payload_too_large"

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            "payload",
            f"at most {limit} bytes once encoded",
            size,
            message=f"payload is {size} bytes once encoded, over the limit of {limit}; store large data "
            "elsewhere and pass a reference",
        )


class OrderedGroupError(ConfigError):
    """A priority or ``lifo`` is not allowed in an ordered group, whose jobs run in the order of adding.

    ``refused`` are the ids of the jobs that were not added. ``added`` are the jobs of the same call that
    were (in a pickled copy of the error, their ids).
    """

    code = "ordered_group"

    def __init__(
        self,
        queue: str,
        group: str,
        option: str,
        want: str = "",
        *,
        message: str = "",
        refused: Sequence[str] = (),
        added: Sequence[Any] = (),
    ) -> None:
        self.queue = queue
        self.group = group
        self.refused: list[str] = list(refused)
        self.added: list[Any] = list(added)
        super().__init__(option, want, message=message)

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "added": _ids(self.added)}

    @classmethod
    def at_add(
        cls, queue: str, group: str, refused: Sequence[str], added: Sequence[Any]
    ) -> OrderedGroupError:
        """Return the error for jobs with a priority or ``lifo`` that were not added."""
        message = (
            f"group {group!r} of queue {queue!r} is ordered: {len(refused)} job(s) with a priority or lifo "
            "were not added; add them without it, or in another group"
        )
        return cls(queue, group, "priority and lifo", message=message, refused=refused, added=added)

    @classmethod
    def at_change(cls, queue: str, job_id: str) -> OrderedGroupError:
        """Return the error for a job whose priority was not changed."""
        message = (
            f"cannot change the priority of job {job_id!r} of queue {queue!r}: its group is ordered, and "
            "runs "
            "its jobs in the order in which they were added"
        )
        return cls(queue, "", "priority", message=message)

    @classmethod
    def at_switch(cls, queue: str, group: str) -> OrderedGroupError:
        """Return the error for a group that was not made ordered because of its jobs' priorities."""
        message = (
            f"group {group!r} of queue {queue!r} cannot be ordered now: some of its unfinished jobs have a "
            "priority or lifo; wait until they have finished, or remove them, then set ordered again"
        )
        return cls(queue, group, "ordered", message=message)


class GroupFullError(WindlassError):
    """Jobs were not added because their group has reached its ``max_size`` of unfinished jobs.

    ``refused`` are their ids. ``added`` are the jobs of the same call that were added (in a pickled copy of
    the error, their ids).
    """

    code = "group_full"

    def __init__(self, queue: str, group: str, refused: list[str], added: list[Any]) -> None:
        self.queue = queue
        self.group = group
        self.refused = refused
        self.added = added
        super().__init__(
            f"group {group!r} of queue {queue!r} is full: {len(refused)} job(s) were not added; "
            "add them when some of its jobs have finished, or raise its max_size"
        )

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "added": _ids(self.added)}


class DependencyError(ConfigError):
    """A flow names a job that does not exist, or a parent that has finished. Nothing was added."""

    code = "dependency"


class CycleError(DependencyError):
    """Jobs would wait for each other in a cycle. ``path`` names them. Nothing was added."""

    code = "cycle"

    def __init__(self, path: list[str]) -> None:
        self.path = path
        super().__init__("depends_on", message=f"dependencies form a cycle: {' -> '.join(path)}")


class UnsupportedByBackendError(WindlassError):
    """The store does not support this feature. Nothing was changed."""

    code = "unsupported"

    def __init__(self, backend: str, capability: str, advice: str = "") -> None:
        self.backend = backend
        self.capability = capability
        super().__init__(
            f"the {backend} backend does not support {capability}" + (f"; {advice}" if advice else "")
        )


class StorageError(WindlassError, ConnectionError):
    """The store did not answer, refused the request, or is damaged. The message says what to do.

    A write may or may not have happened. Every request can be repeated safely.
    """

    code = "storage"


class HistoryTrimmedError(StorageError):
    """The log was trimmed past the requested position, so records in between are gone."""

    code = "history_trimmed"

    def __init__(self, log: str, queue: str, after: int, oldest: int) -> None:
        self.log = log
        self.queue = queue
        self.after = after
        self.oldest = oldest
        super().__init__(
            f"the {log} of queue {queue!r} was trimmed: it was read up to {after}, and its oldest record is "
            f"{oldest}; those between are gone. Continue from {oldest - 1} to accept the gap"
        )


class StoreReplacedError(StorageError):
    """A file of the store was deleted or replaced while this process had it open.

    Writes since then went to a file that no other process reads. ``path`` names the file.
    """

    code = "store_replaced"

    def __init__(self, store: str, path: str) -> None:
        self.path = path
        super().__init__(
            f"{store}: {path} was deleted or replaced while this process had it open; what this call wrote "
            "is not in the store. Put the file back, or close this app and open it again (restart the "
            "process) to continue with what is there now, then repeat the call"
        )


class StoreFullError(StorageError):
    """The server has no memory left and refuses requests that need more. Nothing was changed."""

    code = "store_full"


class ForkedError(StorageError):
    """The store was opened before this process was forked from its parent. Nothing was changed."""

    code = "forked"

    def __init__(self, store: str, parent: int, child: int) -> None:
        self.parent = parent
        self.child = child
        super().__init__(
            f"this {store} store was opened by process {parent}, and this is its fork {child}: connections "
            "and threads cannot be shared. Make a new Windlass, Queue or Worker in each process after the "
            "fork (one that was never used before works, too), or close the app before the fork and open it "
            "again in each process"
        )


class ClosedError(WindlassError):
    """A closed object was used, or it was closed during a wait. ``what`` names it."""

    code = "closed"

    def __init__(self, what: str, advice: str) -> None:
        self.what = what
        super().__init__(f"{what} was closed; {advice}")


class WrongLoopError(WindlassError, RuntimeError):
    """A worker was closed from another event loop than its own, and its own loop cannot close it."""

    code = "wrong_loop"

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"the event loop of the worker {problem}; {advice}")


class JobNotFoundError(WindlassError, LookupError):
    """The job does not exist: the id is wrong, or the record was pruned or removed."""

    code = "job_not_found"

    def __init__(self, queue: str, job_id: str) -> None:
        self.queue = queue
        self.job_id = job_id
        super().__init__(f"queue {queue!r} has no job {job_id!r} (never added, pruned, or removed)")


class ScheduleNotFoundError(WindlassError, LookupError):
    """The schedule does not exist: the name is wrong, or it was removed."""

    code = "schedule_not_found"

    def __init__(self, queue: str, name: str) -> None:
        self.queue = queue
        self.name = name
        super().__init__(
            f"queue {queue!r} has no schedule {name!r} (never made, or removed); "
            "'windlass schedules' lists those that are there"
        )


class IllegalTransitionError(WindlassError):
    """The job's state does not allow the request. Nothing was changed."""

    code = "illegal_transition"

    def __init__(self, job_id: str, state: str, action: str, advice: str = "", *, message: str = "") -> None:
        self.job_id = job_id
        self.state = state
        self.action = action
        tail = f"; {advice}" if advice else ""
        super().__init__(message or f"cannot {action} job {job_id!r}: it is {state}{tail}")


class LeaseLostError(WindlassError):
    """The lease of this attempt was lost: another one is newer, or the job has ended. It cannot change the
    job.
    """

    code = "lease_lost"

    def __init__(self, queue: str, job_id: str) -> None:
        self.queue = queue
        self.job_id = job_id
        super().__init__(
            f"the lease on job {job_id!r} of queue {queue!r} was lost: it expired and the job was "
            "recovered, or the job has ended or was removed; this attempt must stop (a handler that blocks "
            "the interpreter for longer than its lease needs isolation='process')"
        )


class ResultError(WindlassError):
    """A handler's return value cannot be encoded, or is too large to store."""

    code = "result"


class ResultExpiredError(WindlassError, LookupError):
    """The job completed, but its result is past its ``result_ttl`` and was not kept."""

    code = "result_expired"

    def __init__(self, queue: str, job_id: str) -> None:
        self.queue = queue
        self.job_id = job_id
        super().__init__(
            f"job {job_id!r} of queue {queue!r} completed, but its result has expired; raise its result_ttl, "
            "or wait for the result while the job runs"
        )


class WaitTimeoutError(WindlassError, TimeoutError):
    """The awaited job did not finish in time. The job continues."""

    code = "wait_timeout"

    def __init__(self, job_id: str, timeout_s: float) -> None:
        self.job_id = job_id
        self.timeout_s = timeout_s
        super().__init__(
            f"job {job_id!r} did not finish within {timeout_s:g} s and continues; wait longer (timeout=), or "
            "see with 'windlass doctor' whether a worker serves its queue"
        )


class LimiterTimeoutError(WindlassError, TimeoutError):
    """A ``Limiter`` could not be acquired in time."""

    code = "limiter_timeout"

    def __init__(self, name: str, timeout_s: float) -> None:
        self.name = name
        self.timeout_s = timeout_s
        super().__init__(
            f"the limiter {name!r} had no room within {timeout_s:g} s; wait longer (timeout=), raise "
            "its limits, or let the job come back later (raise Snooze)"
        )


class JobFailedError(WindlassError):
    """The awaited job failed permanently.

    ``__cause__`` (``original_error``) is the original error: a ``RemoteError`` with its class name, message
    and traceback, which is also an instance of the built-in class of that name. In callbacks of a worker it
    is the raised object itself.
    """

    code = "job_failed"

    def __init__(
        self, job_id: str, reason: str, error_class: str = "", error_message: str = "", traceback: str = ""
    ) -> None:
        self.job_id = job_id
        self.reason = reason
        self.error_class = error_class
        self.error_message = error_message
        self.traceback = traceback
        detail = f": {error_class}: {error_message}" if error_class else ""
        super().__init__(f"job {job_id!r} failed ({reason}){detail}")

    @property
    def original_error(self) -> BaseException | None:
        """The last error that the handler raised; None when the job failed without a run."""
        return self.__cause__


class MaxRetriesError(JobFailedError):
    """The job failed because all its attempts failed. It carries the job's ``attempts`` and ``payload``."""

    code = "max_retries"

    def __init__(
        self,
        job_id: str,
        attempts: int,
        error_class: str = "",
        error_message: str = "",
        traceback: str = "",
        payload: Any = None,
    ) -> None:
        super().__init__(job_id, f"all {attempts} attempts failed", error_class, error_message, traceback)
        self.attempts = attempts
        self.payload = payload


class JobCancelledError(WindlassError):
    """The awaited job was cancelled."""

    code = "job_cancelled"

    def __init__(self, job_id: str, reason: str = "") -> None:
        self.job_id = job_id
        self.reason = reason
        super().__init__(f"job {job_id!r} was cancelled" + (f": {reason}" if reason else ""))


class JobTimeoutError(WindlassError, TimeoutError):
    """An attempt ran longer than the job's ``timeout``. Counts as a failed attempt."""

    code = "job_timeout"


class AbortedError(WindlassError):
    """A handler stopped early because its ``abort_signal`` was set. ``reason`` is the reason of the stop.

    A handler may raise any other error instead. The reason of the stop decides how the job continues.
    """

    code = "aborted"

    def __init__(self, reason: str) -> None:
        self.reason: str = str(reason)
        super().__init__(f"the attempt was asked to stop ({self.reason}) and left its work undone")


class WorkerCrashError(WindlassError):
    """The child process that ran an attempt died (crash, memory limit, hard timeout)."""

    code = "worker_crash"


class RemoteError(WindlassError):
    """An exception that a handler raised in another process.

    ``error_class`` and ``module`` name the original class, ``message`` is its text and ``remote_traceback``
    its traceback. ``type(error).__name__`` is also the name of the original class.
    """

    code = "remote"

    def __init__(self, error_class: str, module: str, message: str, remote_traceback: str) -> None:
        self.error_class = error_class
        self.module = module
        self.message = message
        self.remote_traceback = remote_traceback
        Exception.__init__(self, message)
        if remote_traceback:
            self.add_note(remote_traceback)  # so that every log and every traceback shows it

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Any:
        return (RemoteError, (self.error_class, self.module, self.message, self.remote_traceback))


class UnrecoverableError(WindlassError):
    """Raise this in a handler to fail the job at once, without further attempts."""

    code = "unrecoverable"


class SignatureError(WindlassError, ValueError):
    """Stored bytes were changed, or were written with a key that is not known here."""

    code = "signature"


class BatchError(WindlassError):
    """Raise this in a batch handler when some of its jobs failed. The others are completed.

    ``errors`` maps a job's position in the batch, or its id, to an exception, which may be ``Snooze``,
    ``Retry`` or ``Cancel``. ``results`` are the results of the whole batch, if there are any; those of failed
    jobs are ignored.
    """

    code = "batch"

    def __init__(
        self, errors: Mapping[int | str, BaseException], results: Sequence[Any] | None = None
    ) -> None:
        if not errors or not all(isinstance(error, BaseException) for error in errors.values()):
            raise ConfigError("errors", "a mapping from a job's number or id to its exception", errors)
        self.errors: dict[int | str, BaseException] = dict(errors)
        self.results = results
        super().__init__(f"{len(errors)} jobs of the batch failed; each keeps its own error")


class JobSignal(_Picklable):
    """Base of exceptions that a handler raises to control its job. They are not logged as failures."""


def _signal_ms(name: str, value: float | timedelta) -> int:
    """Return a duration that a handler gave to a signal, in milliseconds."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= _MAX_SECONDS:
        raise ConfigError(name, "a number of seconds or a timedelta, not negative, at most 100 years", value)
    return round(seconds * 1000)


class _DelaySignal(JobSignal):
    """Base of signals with a delay in seconds."""

    def __init__(self, delay: float | timedelta = 0) -> None:
        self.delay_ms: int = _signal_ms("delay", delay)
        super().__init__(f"{type(self).__name__} for {self.delay_ms / 1000:g} s")


class Snooze(_DelaySignal):
    """Run the job again after ``delay``. No attempt is counted."""


class Retry(_DelaySignal):
    """Count this attempt as failed and run the job again after ``delay``, if attempts are left."""

    def __init__(self, delay: float | timedelta = 0, reason: str = "") -> None:
        super().__init__(delay)
        self.reason = reason


class RateLimitError(_DelaySignal):
    """An external service is rate limiting: run the job again after ``delay``. No attempt is counted."""


class Cancel(JobSignal):
    """End the running job as ``cancelled``, with a reason."""

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason or "cancelled by its handler")


class WaitForChildren(JobSignal):
    """Block the running job until its children have ended, then run it again. No attempt is counted.

    Without an open child the job runs again at once. If that happens again without a new child, the job
    fails.
    """

    def __init__(self) -> None:
        super().__init__("waits for its children")


class Suspend(JobSignal):
    """Suspend the running job until ``queue.signal(job_id, signal, data)``, or until ``timeout`` has passed.

    Then the job runs again from the start, with the received signals in ``job.signals``. No attempt is
    counted. A signal that was received before ends the suspension at once.
    """

    def __init__(self, signal: str, timeout: float | timedelta | None = None) -> None:
        if not isinstance(signal, str) or not 1 <= len(signal) <= 128 or not _is_text(signal):
            raise ConfigError("signal", "a text of 1 to 128 characters", signal)
        self.signal = signal
        self.delay_ms: int = 0 if timeout is None else max(_signal_ms("timeout", timeout), 1)
        super().__init__(f"suspended until {signal!r}")


def _is_text(value: str) -> bool:
    """Whether the text can be encoded. An unpaired surrogate cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
