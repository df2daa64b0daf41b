"""Application code that runs around every enqueue and every run of a job.

An app has one ``Hooks``. Hooks are composed once, when they are registered. Without hooks, producer and
worker each only check one attribute. A hook has one of three forms:

* ``async def hook(subject, proceed)`` awaits ``proceed()`` and returns its value, another one, or raises;
* a generator ``def hook(subject)`` that yields once, with code before and after the ``yield``;
* an async generator of the same form.

``subject`` is an ``Outgoing`` around an enqueue and the ``Job`` around a run.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from windlass.core.job import AttemptOutcome, NewJob
from windlass.core.option_values import check_trace
from windlass.core.outcome import Outcome, Settlement
from windlass.errors import ConfigError, shown
from windlass.handlers.hints import accepts
from windlass.jobs.payload import Call, read_call

if TYPE_CHECKING:
    from windlass.jobs.job import Job
    from windlass.serde.codecs import Codecs

R = TypeVar("R")

Proceed = Callable[[], Awaitable[Any]]
Around = Callable[[Any, Proceed], Awaitable[Any]]
ErrorHook = Callable[["Job[Any]", BaseException, bool], Any]
DeathHook = Callable[["Job[Any]", BaseException], Any]

_OUTCOMES = {
    Outcome.COMPLETE: AttemptOutcome.COMPLETED,
    Outcome.FAIL: AttemptOutcome.FAILED,
    Outcome.RETRY: AttemptOutcome.RETRYING,
    Outcome.CANCEL: AttemptOutcome.CANCELLED,
    Outcome.SNOOZE: AttemptOutcome.SNOOZED,
    Outcome.RELEASE: AttemptOutcome.RELEASED,
}


class Outgoing:
    """The jobs of one ``add`` or ``add_bulk`` before they are sent to the store, for enqueue hooks.

    A hook may change the fields of each ``NewJob`` (not their number), or raise to refuse all of them.
    """

    __slots__ = ("_codecs", "_labels", "added", "jobs")

    def __init__(self, jobs: Sequence[NewJob], codecs: Codecs) -> None:
        self.jobs: tuple[NewJob, ...] = tuple(jobs)
        self._codecs = codecs
        self._labels = [codecs.labels(new) for new in self.jobs]
        #: After the enqueue: the jobs that the caller gets, each with its ``outcome``.
        self.added: list[Job[Any]] = []

    def carry(self, values: dict[str, str]) -> None:
        """Add texts to the ``trace`` of every job. Values that a job already has are kept."""
        changed: dict[int, Any] = {}  # jobs of one add often share their options object
        for new in self.jobs:
            options = new.options
            made = changed.get(id(options))
            if made is None:
                trace = {**values, **(options.trace or {})}
                check_trace(trace)
                made = changed[id(options)] = msgspec.structs.replace(options, trace=trace)
            new.options = made

    def arguments(self, new: NewJob) -> Call:
        """Return the decoded arguments of one of the jobs."""
        return read_call(self._codecs, new)

    def rebind(self) -> None:
        """Seal payloads again after a hook has changed the id, task or queue of their job."""
        for new, labels in zip(self.jobs, self._labels, strict=True):
            self._codecs.rebind(new, labels)


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How a run of a job ended in this worker. Reported once, after the store has accepted the settlement."""

    outcome: AttemptOutcome
    duration_ms: int
    #: The reason: ``unrecoverable``, ``rate_limited``, ``shutdown``, ...; often empty.
    reason: str = ""
    error: BaseException | None = None


def attempt_end(settlement: Settlement, error: BaseException | None) -> AttemptEnd:
    """Return the ``AttemptEnd`` of a settlement."""
    outcome = _OUTCOMES.get(settlement.outcome)
    if outcome is None:
        outcome = AttemptOutcome.SNOOZED  # waiting for children, suspended: no attempt is counted
    return AttemptEnd(outcome, settlement.duration_ms or 0, settlement.reason, error)


class Hooks:
    """The hooks of an app."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs
        #: All enqueue hooks as one function; None without hooks.
        self.enqueue: Around | None = None
        #: All hooks around a run as one function; None without hooks.
        self.execute: Around | None = None
        #: Called with ``(job, AttemptEnd)`` after every run.
        self.ended: tuple[Callable[[Job[Any], AttemptEnd], Any], ...] = ()
        #: Called with ``(job, error, final)`` when a run failed.
        self.errors: tuple[ErrorHook, ...] = ()
        #: Called with ``(job, error)`` when a run failed its job permanently.
        self.deaths: tuple[DeathHook, ...] = ()
        #: The middlewares in use, outermost first.
        self.used: tuple[Any, ...] = ()
        self._enqueue: list[Callable[..., Any]] = []
        self._execute: list[Callable[..., Any]] = []

    def use(self, middleware: Any) -> None:
        """Register the methods ``enqueue``, ``execute``, ``ended`` and ``failed`` that ``middleware`` has.

        The first middleware is the outermost.
        """
        given = {name: getattr(middleware, name, None) for name in ("enqueue", "execute", "ended", "failed")}
        if not any(callable(hook) for hook in given.values()):
            raise ConfigError("middleware", "an object with enqueue, execute, ended or failed", middleware)
        if given["enqueue"] is not None:
            self.around_enqueue(given["enqueue"])
        if given["execute"] is not None:
            self.around_execute(given["execute"])
        if given["ended"] is not None:
            if not accepts(given["ended"], None, None):
                raise ConfigError("ended", "a function of (job, end)", given["ended"])
            self.ended = (*self.ended, given["ended"])
        if given["failed"] is not None:
            self.on_error(given["failed"])
        self.used = (*self.used, middleware)

    def around_enqueue(self, hook: Callable[..., Any]) -> None:
        """Run ``hook`` around every enqueue, inside the hooks that were registered before."""
        composed = _compose([*self._enqueue, hook])
        self._enqueue.append(hook)
        self.enqueue = composed

    def around_execute(self, hook: Callable[..., Any]) -> None:
        """Run ``hook`` around every run, inside the hooks that were registered before."""
        composed = _compose([*self._execute, hook])
        self._execute.append(hook)
        self.execute = composed

    def on_error(self, hook: ErrorHook) -> None:
        """Call ``hook(job, error, final)`` after every failed run."""
        if not accepts(hook, None, None, True):
            raise ConfigError("on_error", "a function of (job, error, final)", hook)
        self.errors = (*self.errors, hook)

    def on_death(self, hook: DeathHook) -> None:
        """Call ``hook(job, error)`` after a run that failed its job permanently."""
        if not accepts(hook, None, None):
            raise ConfigError("on_death", "a function of (job, error)", hook)
        self.deaths = (*self.deaths, hook)

    def outgoing(self, jobs: Sequence[NewJob]) -> Outgoing:
        """Return ``jobs`` in the form for hooks."""
        return Outgoing(jobs, self._codecs)

    async def enqueue_through(
        self, jobs: Sequence[NewJob], send: Callable[[list[NewJob]], Awaitable[R]]
    ) -> R:
        """Send the jobs of a schedule with ``send``, through the enqueue hooks.

        The hooks do not get the added jobs. Errors of hooks are raised here.
        """
        if self.enqueue is None:
            return await send(list(jobs))
        outgoing = self.outgoing(jobs)
        answers: list[R] = []

        async def proceed() -> list[Job[Any]]:
            outgoing.rebind()
            answers.append(await send(list(outgoing.jobs)))
            return outgoing.added

        await self.enqueue(outgoing, proceed)
        if not answers:
            raise ConfigError(
                "enqueue hook",
                message="an enqueue hook returned without awaiting proceed(); await it, or raise an error to "
                "refuse the jobs",
            )
        return answers[0]

    def enqueue_now(self, outgoing: Outgoing, send: Callable[[], R]) -> R:
        """Like ``enqueue``, for a caller that cannot await. All hooks must be plain generators."""
        for hook in self._enqueue:
            if not inspect.isgeneratorfunction(hook):
                raise ConfigError(
                    "enqueue hook",
                    message=f"enqueue hook {shown(hook)} must be a plain generator to add jobs inside the "
                    "application's transaction",
                    got=hook,
                )
        with ExitStack() as stack:
            for hook in self._enqueue:
                stack.enter_context(contextmanager(hook)(outgoing))
            return send()
        raise ConfigError(
            "enqueue hook", message="the job was not added: an enqueue hook suppressed the error"
        )


def _compose(hooks: list[Callable[..., Any]]) -> Around:
    """Return one function for all hooks. The first hook is the outermost."""
    *outer, last = map(_as_around, hooks)
    composed = last
    for hook in reversed(outer):
        composed = partial(_nested, hook, composed)
    return composed


def _nested(outer: Around, inner: Around, subject: Any, proceed: Proceed) -> Awaitable[Any]:
    return outer(subject, partial(inner, subject, proceed))


def _as_around(hook: Callable[..., Any]) -> Around:
    """Return a hook of any form as an async function of ``(subject, proceed)``."""
    if inspect.iscoroutinefunction(hook) and accepts(hook, None, None):
        return hook
    if inspect.isgeneratorfunction(hook) and accepts(hook, None):
        manager = contextmanager(hook)

        async def plain(subject: Any, proceed: Proceed) -> Any:
            with manager(subject):
                return await proceed()

        return plain
    if inspect.isasyncgenfunction(hook) and accepts(hook, None):
        async_manager = asynccontextmanager(hook)

        async def asynchronous(subject: Any, proceed: Proceed) -> Any:
            async with async_manager(subject):
                return await proceed()

        return asynchronous
    raise ConfigError(
        "hook", "an async function of (subject, proceed), or a generator that yields once, of (subject)", hook
    )
