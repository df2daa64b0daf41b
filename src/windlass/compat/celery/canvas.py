"""Signatures, and chains, groups and chords of them. Each becomes one flow, added in one atomic step.

A signature is a call that has not been made yet. A step of a chain receives the result of the previous step
as its first argument, the body of a chord the list of its header's results. Immutable signatures (``si``)
receive nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from windlass.compat.celery import calls, signals
from windlass.compat.celery.current import CeleryApp, app_or_current, wait_for
from windlass.compat.celery.result import AsyncResult, GroupResult
from windlass.core.ids import new_id
from windlass.errors import ConfigError
from windlass.flows import FlowProducer, Step

#: Options of a chain, group or chord that are not those of its first tasks.
_AT_THE_END: Final = ("link", "link_error", "task_id")


@dataclass
class LastSteps:
    """The last steps of a part of a flow, and how the next part receives their results."""

    steps: list[Step]
    passing: Literal["value", "list"] | None


@dataclass
class Flow:
    """The steps of a flow that has not been added yet."""

    app: CeleryApp
    steps: list[Step] = field(default_factory=list)

    def send(self) -> None:
        """Add all steps in one atomic step."""
        for one in self.steps:
            signals.before_task_publish.send(one.name, **_facts(one))
        if self.steps:
            wait_for(FlowProducer(self.app.windlass).add_bulk(self.steps))
        for one in self.steps:
            signals.after_task_publish.send(one.name, **_facts(one))

    def call(self, sig: Signature, before: LastSteps | None, parent: Any, trace: Mapping[str, str]) -> Step:
        """Add one call after ``before``."""
        texts = dict(trace)
        passed: tuple[Any, ...] = ()
        if before is not None and before.passing is not None and not sig.immutable:
            texts[calls.PASSING] = before.passing
            passed = (None,)
            for one in before.steps:
                one.options.setdefault("trace", {})[calls.KEPT] = "yes"
        if parent is not None:
            texts[calls.PARENT] = parent.id
        task = self.app.tasks.get(sig.task)
        if task is not None:
            task.check_call((*passed, *sig.args), sig.kwargs)
        later = before is not None
        made = calls.make_step(self.app, sig.task, sig.args, sig.kwargs, sig.options, texts, later=later)
        if before is not None:
            made.after(*before.steps)
        self.steps.append(made)
        return made

    def result_of(self, step: Step, sig: Signature, parent: Any) -> AsyncResult:
        """The result of a step."""
        task = self.app.tasks.get(step.name)
        ignored = sig.options.get("ignore_result")
        if ignored is None and task is not None:
            ignored = task.ignores_result
        return AsyncResult(step.options["job_id"], self.app, parent, step.queue, bool(ignored))


def _facts(step: Step) -> dict[str, Any]:
    body: Any = (step.packed.get("args", []), step.packed.get("kwargs", {}), {})
    headers = {"id": step.options["job_id"], "task": step.name}
    return {"body": body, "headers": headers, "routing_key": step.queue, "exchange": ""}


class Signature:
    """A call of a task: its name, arguments and options."""

    def __init__(
        self,
        task: Any,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        immutable: bool = False,
        app: CeleryApp | None = None,
        **more: Any,
    ) -> None:
        self.task: str = task if isinstance(task, str) else task.name
        self.args: tuple[Any, ...] = tuple(args or ())
        self.kwargs: dict[str, Any] = dict(kwargs or {})
        self.options: dict[str, Any] = {**(options or {}), **more}
        self.immutable = immutable
        self._app: CeleryApp | None = app if app is not None else getattr(task, "app", None)

    def __repr__(self) -> str:
        given = [*map(repr, self.args), *(f"{key}={value!r}" for key, value in self.kwargs.items())]
        return f"{self.task}({', '.join(given)})"

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)

    @property
    def app(self) -> CeleryApp:
        """The app that sends it."""
        return app_or_current(self._app)

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.task

    @property
    def id(self) -> str | None:
        """The job id, if one was set."""
        found = self.options.get("task_id")
        return None if found is None else str(found)

    # --- changes ---------------------------------------------------------------------------------------

    def clone(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """A copy with ``args`` before its own, and other values merged. Immutable ones only take options."""
        made: Any = self._copy()
        made.immutable = self.immutable
        if not self.immutable:
            made.args = (*(args or ()), *made.args)
            made.kwargs |= kwargs or {}
        made.options |= options
        return made

    def _copy(self) -> Any:
        options = {
            key: list(value) if key in ("link", "link_error") and isinstance(value, list) else value
            for key, value in self.options.items()
        }
        return Signature(self.task, self.args, self.kwargs, options, self.immutable, self._app)

    def set(self, immutable: bool | None = None, **options: Any) -> Any:
        """Set options and return the signature itself."""
        if immutable is not None:
            self.immutable = immutable
        self.options |= options
        return self

    def set_immutable(self, immutable: bool) -> None:
        """Set whether it ignores the result of the previous step."""
        self.immutable = immutable

    def link(self, callback: Any) -> Any:
        """Call ``callback`` with the result after success; returns the callback."""
        self.options["link"] = [*as_list(self.options.get("link")), callback]
        return callback

    def link_error(self, errback: Any) -> Any:
        """Call ``errback`` after a failure; returns the errback."""
        self.options["link_error"] = [*as_list(self.options.get("link_error")), errback]
        return errback

    def on_error(self, errback: Any) -> Any:
        """Like ``link_error``, but returns the signature itself."""
        self.link_error(errback)
        return self

    def __or__(self, other: Any) -> Any:
        if not isinstance(other, Signature):
            return NotImplemented
        return chain(self, other)

    # --- verbs -----------------------------------------------------------------------------------------

    def __call__(self, *partial_args: Any, **partial_kwargs: Any) -> Any:
        """Run the task in this process."""
        sig = self.clone(partial_args, partial_kwargs)
        return self.app.tasks[self.task](*sig.args, **sig.kwargs)

    def delay(self, *partial_args: Any, **partial_kwargs: Any) -> Any:
        """Send it, with these arguments before its own."""
        return self.apply_async(partial_args, partial_kwargs)

    def apply_async(
        self,
        args: Iterable[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        route_name: Any = None,
        **options: Any,
    ) -> Any:
        """Send it and return its result."""
        sig = self.clone(args, kwargs, **options)
        if self.app.conf.task_always_eager:
            sig.check()
            return sig.apply()
        flow = Flow(self.app)
        _, result = sig.place(flow, None, None, {})
        flow.send()
        return result

    def apply(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Run it in this process; returns an ``EagerResult``."""
        sig = self.clone(args, kwargs, **options)
        result = self.app.tasks[self.task].apply(sig.args, sig.kwargs, **sig.options)
        return result

    def check(self) -> None:
        """Refuse options and arguments that cannot be sent."""
        if type(self) is Signature:
            calls.check_options(self.options)
            self.app.tasks[self.task].check_call(self.args, self.kwargs)

    def place(
        self, flow: Flow, before: LastSteps | None, parent: Any, trace: Mapping[str, str]
    ) -> tuple[LastSteps, Any]:
        """Add its steps to ``flow``; returns the last steps, and the result for the caller."""
        step = flow.call(self, before, parent, trace)
        result = flow.result_of(step, self, parent)
        for callback in as_list(self.options.get("link")):
            callback.clone().place(flow, LastSteps([step], "value"), result, {})
        for errback in as_list(self.options.get("link_error")):
            if type(errback) is not Signature:
                raise ConfigError("link_error", "the signature of one task", errback)
            texts = {calls.ERRBACK: step.options["job_id"]}
            if errback.immutable:
                texts[calls.IMMUTABLE] = "yes"
            call = (errback.task, errback.args, errback.kwargs, errback.options, texts)
            flow.steps.append(calls.make_step(flow.app, *call, later=True).after(step, on_failure="ignore"))
        return LastSteps([step], "value"), result


class chain(Signature):
    """Tasks that run one after the other. Each receives the result of the previous one."""

    def __init__(self, *tasks: Any, **options: Any) -> None:
        parts = tasks[0] if len(tasks) == 1 and not isinstance(tasks[0], Signature) else tasks
        self.tasks: list[Any] = []
        for one in parts:
            self.tasks += one.unchained() if isinstance(one, chain) else [one]
        if not self.tasks:
            raise ConfigError("chain", message="a chain needs at least one task")
        super().__init__("celery.chain", options=options, app=self.tasks[0]._app)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.tasks))

    def _copy(self) -> Any:
        return chain(*(one.clone() for one in self.tasks), **self.options)

    def clone(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """A copy whose first task gets these arguments in addition to its own."""
        made = super().clone(None, None, **options)
        made.tasks[0] = made.tasks[0].clone(args, kwargs)
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Send it."""
        return self.apply_async(args, kwargs)

    def place(
        self, flow: Flow, before: LastSteps | None, parent: Any, trace: Mapping[str, str]
    ) -> tuple[LastSteps, Any]:
        """Add its tasks one after the other. As in Celery, the first one takes the chain's own options; the
        last one its id."""
        parts, result = self.unchained(), parent
        parts[0] = parts[0].clone(**_without(self.options, *_AT_THE_END))
        if "task_id" in self.options:
            parts[-1] = parts[-1].clone(task_id=self.options["task_id"])
        for part in parts:
            before, result = part.place(flow, before, result, trace)
        assert before is not None
        return before, result

    def unchained(self) -> list[Any]:
        """Copies of its tasks: the last one with the chain's links, all with its errbacks."""
        parts = [one.clone() for one in self.tasks]
        for callback in as_list(self.options.get("link")):
            parts[-1].link(callback)
        for errback in as_list(self.options.get("link_error")):
            for part in parts:
                part.link_error(errback)
        return parts

    def apply(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Run them in this process, one after the other."""
        result: Any = None
        for one in self.clone(args, kwargs, **options).tasks:
            last, result = result, one.apply(None if result is None else (result.get(),))
            result.parent = last
        return result


class group(Signature):
    """Tasks that run in parallel."""

    def __init__(self, *tasks: Any, **options: Any) -> None:
        parts = tasks[0] if len(tasks) == 1 and not isinstance(tasks[0], Signature) else tasks
        if isinstance(parts, group):
            parts = parts.tasks
        self.tasks: list[Any] = list(parts)
        super().__init__("celery.group", options=options, app=self.tasks[0]._app if self.tasks else None)

    def __repr__(self) -> str:
        return f"group({', '.join(map(repr, self.tasks))})"

    def __len__(self) -> int:
        return len(self.tasks)

    def __bool__(self) -> bool:
        return True

    def _copy(self) -> Any:
        return group([one.clone() for one in self.tasks], **self.options)

    def clone(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """A copy whose tasks get these arguments in addition to their own."""
        made = super().clone(None, None, **options)
        made.tasks = [one.clone(args, kwargs) for one in made.tasks]
        return made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Send it."""
        return self.apply_async(args, kwargs)

    def link(self, callback: Any) -> Any:
        """Refused: use the body of a chord for a task that follows a group."""
        raise ConfigError(
            "link",
            message="a group cannot have a link: link its tasks, or use a chord for what follows all of them",
            got=callback,
        )

    def place(
        self, flow: Flow, before: LastSteps | None, parent: Any, trace: Mapping[str, str]
    ) -> tuple[LastSteps, Any]:
        """Add its tasks in parallel, all after ``before``. A chain goes past an empty group."""
        if not self.tasks and before is not None:
            return before, parent
        group_id = str(self.options.get("task_id") or new_id())
        own = _without(self.options, *_AT_THE_END)
        steps: list[Step] = []
        results: list[Any] = []
        for one in self.tasks:
            part = _with_callbacks(one.clone(**own), self.options)
            ends, result = part.place(flow, before, parent, {**trace, calls.GROUP: group_id})
            if len(ends.steps) != 1:
                raise ConfigError(
                    "group", message=f"{one!r} cannot be in a group: it does not end with one task", got=one
                )
            steps += ends.steps
            results.append(result)
        return LastSteps(steps, "list"), GroupResult(group_id, results, parent)

    def apply(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Run them in this process."""
        sig = self.clone(args, kwargs, **options)
        return GroupResult(new_id(), [one.apply() for one in sig.tasks])


class chord(Signature):
    """A group, and a body that receives the list of its results."""

    def __init__(self, header: Any, body: Any = None, **options: Any) -> None:
        self.header: group = header if isinstance(header, group) else group(header)
        self.body = body
        super().__init__("celery.chord", options=options, app=self.header._app or getattr(body, "_app", None))

    def __repr__(self) -> str:
        return f"chord({self.header!r}, {self.body!r})"

    def _copy(self) -> Any:
        body = None if self.body is None else self.body.clone()
        return chord(self.header.clone(), body, **self.options)

    def clone(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """A copy whose header gets these arguments in addition to its own."""
        made = super().clone(None, None, **options)
        made.header = made.header.clone(args, kwargs)
        return made

    def __call__(self, body: Any = None, **options: Any) -> Any:
        """Send it, with ``body`` if it has none yet."""
        made = self.clone(**options)
        made.body = body or made.body
        return made.apply_async()

    def _whole_body(self) -> Any:
        if self.body is None:
            raise ConfigError("chord", message="this chord has no body: write chord(header, body)")
        return self.body

    def link(self, callback: Any) -> Any:
        """Call ``callback`` with the body's result."""
        return self._whole_body().link(callback)

    def link_error(self, errback: Any) -> Any:
        """Call ``errback`` if the body, or the header before it, fails."""
        return self._whole_body().link_error(errback)

    def place(
        self, flow: Flow, before: LastSteps | None, parent: Any, trace: Mapping[str, str]
    ) -> tuple[LastSteps, Any]:
        """Add the header, then the body. Both take the chord's own options; the body its id and callbacks."""
        own = _without(self.options, "link", "link_error", "countdown", "eta")
        body = _with_callbacks(self._whole_body().clone(**own), self.options)
        if not self.header.tasks:  # as Celery does: the body gets an empty list
            waits = None if before is None else LastSteps(before.steps, None)
            return body.clone(([],)).place(flow, waits, parent, trace)  # type: ignore[no-any-return]
        header = self.header.clone(**_without(self.options, *_AT_THE_END))
        ends, result = header.place(flow, before, parent, trace)
        return body.place(flow, ends, result, trace)  # type: ignore[no-any-return]

    def apply(
        self, args: Iterable[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Any:
        """Run it in this process."""
        made = self.clone(args, kwargs, **options)
        return made._whole_body().apply((made.header.apply().get(),))


def _with_callbacks(part: Any, options: Mapping[str, Any]) -> Any:
    """``part`` with the links and errbacks of ``options`` in addition to its own."""
    for callback in as_list(options.get("link")):
        part.link(callback)
    for errback in as_list(options.get("link_error")):
        part.link_error(errback)
    return part


def _without(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in names}


def as_list(given: Any) -> list[Any]:
    """None, one or several items as a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def signature(task: Any, *args: Any, **options: Any) -> Signature:
    """A signature from a task or its name, with ``args``, ``kwargs``, ``immutable`` and options.

    A signature is returned unchanged.
    """
    return task if isinstance(task, Signature) else Signature(task, *args, **options)


subtask = signature


def maybe_signature(given: Any, app: CeleryApp | None = None) -> Signature | None:
    """``given`` as a signature. None stays None."""
    return None if given is None else signature(given)
