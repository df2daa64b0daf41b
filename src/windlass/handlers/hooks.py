"""Code of the application around every enqueue and every run of a job.

An app has one ``Hooks``. What is registered is composed once, when it is registered; without anything
registered the producer and the worker each look at one attribute and continue. A hook has one of three forms:

* ``async def hook(subject, proceed)`` awaits ``proceed()`` and returns its value, another one, or raises;
* a generator ``def hook(subject)`` that yields once: code before, code after, ``try`` around the ``yield``;
* an async generator of the same shape.

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
from windlass.errors import ConfigError
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
    """Jobs on their way to the store, as an enqueue hook sees them: all of one ``add`` or ``add_bulk``.

    A hook may change the fields of each ``NewJob`` (not how many there are), or raise to refuse them all.
    """

    __slots__ = ("_codecs", "_labels", "added", "jobs")

    def __init__(self, jobs: Sequence[NewJob], codecs: Codecs) -> None:
        self.jobs: tuple[NewJob, ...] = tuple(jobs)
        self._codecs = codecs
        self._labels = [codecs.labels(new) for new in self.jobs]
        #: After the enqueue: the jobs as the caller gets them, each with its ``outcome``.
        self.added: list[Job[Any]] = []

    def carry(self, values: dict[str, str]) -> None:
        """Add texts to the ``trace`` of every job. Values that a job has already are kept."""
        changed: dict[int, Any] = {}  # jobs of one add often share their options: change them once
        for new in self.jobs:
            options = new.options
            made = changed.get(id(options))
            if made is None:
                trace = {**values, **(options.trace or {})}
                check_trace(trace)
                made = changed[id(options)] = msgspec.structs.replace(options, trace=trace)
            new.options = made

    def arguments(self, new: NewJob) -> Call:
        """The arguments of one of the jobs, decoded."""
        return read_call(self._codecs, new)

    def rebind(self) -> None:
        """Seal payloads again after a hook has changed the id, task or queue of their job."""
        for new, labels in zip(self.jobs, self._labels, strict=True):
            self._codecs.rebind(new, labels)


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """How a run of a job ended in this worker. Reported once, after the store has taken it."""

    outcome: AttemptOutcome
    duration_ms: int
    #: Why it ended so: ``unrecoverable``, ``rate_limited``, ``shutdown``, ...; often empty.
    reason: str = ""
    error: BaseException | None = None


def attempt_end(settlement: Settlement, error: BaseException | None) -> AttemptEnd:
    """The ``AttemptEnd`` that describes a settlement."""
    outcome = _OUTCOMES.get(settlement.outcome)
    if outcome is None:
        outcome = AttemptOutcome.SNOOZED  # ends without a result that cost no attempt
    return AttemptEnd(outcome, settlement.duration_ms or 0, settlement.reason, error)


class Hooks:
    """What an app does around its jobs."""

    def __init__(self, codecs: Codecs) -> None:
        self._codecs = codecs
        #: Everything around an enqueue as one function; None when there is nothing.
        self.enqueue: Around | None = None
        #: Everything around a run as one function; None when there is nothing.
        self.execute: Around | None = None
        #: Called with ``(job, AttemptEnd)`` after every run.
        self.ended: tuple[Callable[[Job[Any], AttemptEnd], Any], ...] = ()
        #: Called with ``(job, error, final)`` when a run failed.
        self.errors: tuple[ErrorHook, ...] = ()
        #: Called with ``(job, error)`` when a run was the last: the job has failed.
        self.deaths: tuple[DeathHook, ...] = ()
        #: The middlewares in use, outermost first.
        self.used: tuple[Any, ...] = ()
        self._enqueue: list[Callable[..., Any]] = []
        self._execute: list[Callable[..., Any]] = []

    def use(self, middleware: Any) -> None:
        """Add what ``middleware`` has of ``enqueue``, ``execute``, ``ended`` and ``failed``.

        The first is outermost.
        """
        given = {name: getattr(middleware, name, None) for name in ("enqueue", "execute", "ended", "failed")}
        if not any(callable(hook) for hook in given.values()):
            raise ConfigError("middleware", "an object with enqueue, execute, ended or failed", middleware)
        if given["enqueue"] is not None:
            self.around_enqueue(given["enqueue"])
        if given["execute"] is not None:
            self.around_execute(given["execute"])
        if given["ended"] is not None:
            self.ended = (*self.ended, given["ended"])
        if given["failed"] is not None:
            self.on_error(given["failed"])
        self.used = (*self.used, middleware)

    def around_enqueue(self, hook: Callable[..., Any]) -> None:
        """Put ``hook`` around every enqueue, inside of those that are there."""
        composed = _compose([*self._enqueue, hook])
        self._enqueue.append(hook)
        self.enqueue = composed

    def around_execute(self, hook: Callable[..., Any]) -> None:
        """Put ``hook`` around every run, inside of those that are there."""
        composed = _compose([*self._execute, hook])
        self._execute.append(hook)
        self.execute = composed

    def on_error(self, hook: ErrorHook) -> None:
        """Call ``hook(job, error, final)`` after every failed run."""
        if not callable(hook):
            raise ConfigError("on_error", "a function of (job, error, final)", hook)
        self.errors = (*self.errors, hook)

    def on_death(self, hook: DeathHook) -> None:
        """Call ``hook(job, error)`` after a run that failed its job for good."""
        if not callable(hook):
            raise ConfigError("on_death", "a function of (job, error)", hook)
        self.deaths = (*self.deaths, hook)

    def outgoing(self, jobs: Sequence[NewJob]) -> Outgoing:
        """``jobs`` as hooks see them."""
        return Outgoing(jobs, self._codecs)

    async def enqueue_through(
        self, jobs: Sequence[NewJob], send: Callable[[list[NewJob]], Awaitable[R]]
    ) -> R:
        """Send ``jobs`` by another way, through the hooks; for jobs that a schedule makes.

        Hooks see them before and after, not the added jobs themselves. What a hook raises is raised here.
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
            raise ConfigError("enqueue hook", "one that awaits proceed(), or raises to refuse the jobs")
        return answers[0]

    def enqueue_now(self, outgoing: Outgoing, send: Callable[[], R]) -> R:
        """``enqueue`` where nothing can be awaited: only plain generators can take part."""
        for hook in self._enqueue:
            if not inspect.isgeneratorfunction(hook):
                raise ConfigError(
                    "enqueue hook", "a plain generator, to add inside the application's transaction", hook
                )
        with ExitStack() as stack:
            for hook in self._enqueue:
                stack.enter_context(contextmanager(hook)(outgoing))
            return send()
        raise ConfigError("enqueue hook", "one that lets errors pass: the job was not added")


def _compose(hooks: list[Callable[..., Any]]) -> Around:
    """One function from many; the first hook is the outermost."""
    *outer, last = map(_as_around, hooks)
    composed = last
    for hook in reversed(outer):
        composed = partial(_nested, hook, composed)
    return composed


def _nested(outer: Around, inner: Around, subject: Any, proceed: Proceed) -> Awaitable[Any]:
    return outer(subject, partial(inner, subject, proceed))


def _as_around(hook: Callable[..., Any]) -> Around:
    """A hook of any form as a function of the subject and the way on."""
    if inspect.iscoroutinefunction(hook):
        return hook
    if inspect.isgeneratorfunction(hook):
        manager = contextmanager(hook)

        async def plain(subject: Any, proceed: Proceed) -> Any:
            with manager(subject):
                return await proceed()

        return plain
    if inspect.isasyncgenfunction(hook):
        async_manager = asynccontextmanager(hook)

        async def asynchronous(subject: Any, proceed: Proceed) -> Any:
            async with async_manager(subject):
                return await proceed()

        return asynchronous
    raise ConfigError("hook", "an async function, or a generator that yields once", hook)
