"""Flows before they are added: steps that run after other steps.

A ``Step`` is one job of a flow. ``send.s("ada")`` creates one from a task, ``step("send", queue="mail")`` one
by name. ``chain``, ``group`` and ``chord`` combine steps; ``after`` and ``then`` add single edges. A step
that several others wait for is one job. Nothing is stored until ``enqueue`` or ``FlowProducer.add``.

``RESULT`` in the arguments of a step is the result of the previous step: ``chain(fetch.s(5),
double.s(RESULT))``. After a group, or after several steps, it is the list of their results, in their order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from windlass._renamed import old_names
from windlass.core import foreign_names
from windlass.core.edges import (
    FLOW_LIMIT,
    Dependency,
    OnFailure,
    check_cycle,
    check_size,
    to_on_failure,
)
from windlass.core.foreign_names import ForeignNames
from windlass.core.ids import check_queue_name, check_task_name, new_ids
from windlass.core.job import JobRef, NewJob
from windlass.core.option_values import check_known, to_options, to_unique
from windlass.core.options import OPTION_NAMES, JobOptions, JobOptionsDict, StoredOptions, placed
from windlass.errors import ConfigError
from windlass.flows.tree import JobNode
from windlass.jobs.payload import pack_data, pack_taking, places_of_result, with_result_first
from windlass.jobs.prepare import PreparedOptions
from windlass.jobs.sync import PORTAL, SyncJob

if TYPE_CHECKING:
    from windlass.flows.interfaces import FlowApp
    from windlass.jobs.job import Job

_NODE_KEYS = frozenset(
    {"name", "queue", "queue_name", "data", "options", "opts", "on_failure", "children", "then"}
)


class Step(ForeignNames):
    """One job of a flow before it is added, and the steps that it waits for."""

    _called = "a step"
    _elsewhere = foreign_names.STEP

    __slots__ = (
        "accepts",
        "app",
        "base",
        "following",
        "follows",
        "gathers",
        "lacking",
        "name",
        "options",
        "packed",
        "queue",
    )

    def __init__(
        self,
        name: str,
        queue: str,
        packed: dict[str, Any],
        options: Mapping[str, Any],
        *,
        base: JobOptions | None = None,
        app: FlowApp | None = None,
        accepts: Callable[[Sequence[Any], Mapping[str, Any]], bool] | None = None,
    ) -> None:
        check_known(options, OPTION_NAMES, "job option")
        self.name: str = check_task_name(name)
        self.queue: str = check_queue_name(queue)
        self.packed: dict[str, Any] = packed
        self.options: dict[str, Any] = dict(options)
        self.base: JobOptions | None = base
        self.app: FlowApp | None = app
        #: The steps that it waits for, and what to do when they fail.
        self.follows: dict[Step, OnFailure] = {}
        #: The steps that wait for it.
        self.following: list[Step] = []
        #: Checks whether its task accepts given arguments; None when the task is not known here.
        self.accepts: Callable[[Sequence[Any], Mapping[str, Any]], bool] | None = accepts
        #: The error of its call if it does not take the previous result as its first argument.
        self.lacking: ConfigError | None = None
        #: Whether it comes after a group: its ``RESULT`` is a list, even of one.
        self.gathers: bool = False

    def __repr__(self) -> str:
        return f"<Step {self.name} of {self.queue}>"

    def after(self, *steps: Step | FlowGroup, on_failure: str = "fail") -> Step:
        """Run this step only after ``steps`` have ended. Returns this step."""
        self.gathers = self.gathers or any(isinstance(one, FlowGroup) for one in steps)
        for one in _flat(steps):
            if self not in one.following:
                one.following.append(self)
            self.follows[one] = to_on_failure(on_failure)
        return self

    def then(self, *steps: Step | FlowGroup, on_failure: str = "fail") -> Step:
        """Run ``steps`` after this step has ended. Returns this step."""
        for one in _flat(steps):
            one.after(self, on_failure=on_failure)
        return self

    def take_result(self) -> None:
        """Take the result of the previous step as the first argument, unless ``RESULT`` is used already."""
        if places_of_result(self.packed):
            return
        packed = with_result_first(self.packed)
        if self.accepts is not None and not self.accepts(packed.get("args", ()), packed.get("kwargs", {})):
            raise ConfigError(
                "pass_result",
                message=f"pass_result cannot be used here: step {self.name!r} takes no further argument for "
                "the result; write task.s(RESULT, ...) in the steps that take one",
            )
        self.packed, self.lacking = packed, None

    async def enqueue(self) -> Job[Any]:
        """Add this step and all connected steps atomically. Returns the job of this step."""
        return (await add_steps(_app_of(self), [self]))[self].job

    @property
    def sync(self) -> SyncStep:
        """The methods of this step for code without an event loop."""
        return SyncStep(self)


class FlowGroup:
    """Steps that run in parallel."""

    __slots__ = ("steps",)

    def __init__(self, steps: Iterable[Step]) -> None:
        self.steps: list[Step] = list(steps)
        if not self.steps:
            raise ConfigError("group", message="a group needs at least one step")

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    async def enqueue(self) -> list[Job[Any]]:
        """Add all steps, and the steps connected to them, atomically. Returns the jobs of this group."""
        nodes = await add_steps(_app_of(self.steps[0]), self.steps)
        return [nodes[one].job for one in self.steps]

    @property
    def sync(self) -> SyncGroup:
        """The methods of this group for code without an event loop."""
        return SyncGroup(self)


class SyncStep(ForeignNames):
    """The methods of a step, and so of a chain or chord, for code without an event loop."""

    _called = "the .sync of a step"
    _elsewhere = foreign_names.STEP

    def __init__(self, step: Step) -> None:
        self._step = step

    def enqueue(self) -> SyncJob[Any]:
        """Add the step and all connected steps atomically; see ``Step.enqueue``."""
        return SyncJob(PORTAL.run(self._step.enqueue()))


class SyncGroup:
    """The methods of a group for code without an event loop."""

    def __init__(self, group: FlowGroup) -> None:
        self._group = group

    def enqueue(self) -> list[SyncJob[Any]]:
        """Add all steps of the group atomically; see ``FlowGroup.enqueue``."""
        return [SyncJob(job) for job in PORTAL.run(self._group.enqueue())]


Part = Step | FlowGroup | Mapping[str, Any]


def step(name: str, data: Any = None, *, queue: str = "default", **options: Unpack[JobOptionsDict]) -> Step:
    """Return a step for a task by name, which this process need not know."""
    return Step(name, queue, pack_data(data), options)


def group(*parts: Part) -> FlowGroup:
    """Return a group of steps that run in parallel."""
    return FlowGroup(_flat(parts))


def chain(*parts: Part, on_failure: str = "fail", pass_result: bool = False) -> Step:
    """Run each part after the previous one. Returns the last step; the last part must not be a group.

    A group in the middle runs in parallel, and the next part waits for all of it. ``RESULT`` in the arguments
    of a step is the result of the previous part. ``pass_result`` passes it as the first argument to every
    step that does not use ``RESULT``.
    """
    before: Step | FlowGroup | None = None
    for part in parts:
        ends = list(_flat([part]))
        if before is not None:
            for start in {first: None for end in ends for first in _firsts(end)}:
                start.after(before, on_failure=on_failure)
                if pass_result:
                    start.take_result()
        before = FlowGroup(ends) if isinstance(part, FlowGroup) else ends[0]
    if not isinstance(before, Step):
        raise ConfigError(
            "chain", message="a chain must end with one step; use chord for what comes after a group"
        )
    return before


def chord(
    header: FlowGroup | Iterable[Part], body: Part, *, on_failure: str = "fail", pass_result: bool = False
) -> Step:
    """Run ``body`` after all of ``header``. Returns the step of the body.

    ``RESULT`` in the arguments of the body is the list of the header's results. ``pass_result`` passes it as
    the first argument.
    """
    (last,) = _flat([body])
    last.gathers = True
    if pass_result:
        last.take_result()
    return last.after(*_flat(header), on_failure=on_failure)


def step_of(node: Part) -> Step:
    """Return a step for a tree of mappings: ``{"name", "queue", "data", "options", "children": [...]}``.

    ``children`` run before it, ``then`` after it. ``on_failure`` of a child says what its failure means for
    its parent. Job options may also be given in the node itself. ``opts`` and ``queue_name`` are aliases.
    """
    try:
        return _step_of(node)
    except RecursionError:
        message = "the flow has too many levels for one object: build it with chain(...) or after(...)"
        raise ConfigError("flow", message=message) from None


def _step_of(node: Part) -> Step:
    if isinstance(node, Step):
        return node
    if not isinstance(node, Mapping) or "name" not in node:
        raise ConfigError(
            "flow",
            f'steps, or objects like {{"name": ..., "queue": ..., "children": [...]}}{_advice(node)}',
            node,
        )
    options = {key: value for key, value in node.items() if key not in _NODE_KEYS}
    options |= to_options("opts", node.get("opts")) | to_options("options", node.get("options"))
    queue = node.get("queue", node.get("queue_name", "default"))
    made = Step(node["name"], queue, pack_data(node.get("data")), options)
    for child in _parts(node, "children"):
        made.after(_step_of(child), on_failure=_on_failure_of(child))
    for later in _parts(node, "then"):
        _step_of(later).after(made, on_failure=_on_failure_of(later))
    return made


def _parts(node: Mapping[str, Any], key: str) -> Iterable[Part]:
    """Return the parts that a node has under ``key``; none for None."""
    parts = node.get(key)
    if parts is None:
        return ()
    if isinstance(parts, (str, bytes, Mapping)) or not isinstance(parts, Iterable):
        raise ConfigError(key, "a list of steps", parts)
    return parts


def _advice(node: object) -> str:
    """Return advice about something that was given in place of a step."""
    if hasattr(node, "s"):
        return " (a task becomes a step by task.s(...))"
    if isinstance(node, Iterable) and not isinstance(node, str | Mapping):
        return " (unpack a list of steps: group(*steps))"
    return " (task.s(...) is a step; task(...) runs the task here and now)"


def _on_failure_of(node: Part) -> str:
    return node.get("on_failure", "fail") if isinstance(node, Mapping) else "fail"


def _flat(parts: Iterable[Part]) -> Iterator[Step]:
    for part in parts:
        if isinstance(part, FlowGroup):
            yield from part
        else:
            yield step_of(part)


def _firsts(end: Step) -> Iterator[Step]:
    """Iterate over the steps of ``end``'s flow that wait for no other step."""
    seen: dict[Step, None] = {end: None}
    pending = [end]
    while pending:
        one = pending.pop()
        if not one.follows:
            yield one
        for before in one.follows:
            if before not in seen:
                seen[before] = None
                pending.append(before)


def _app_of(one: Step) -> FlowApp:
    for each in _connected([one]):
        if each.app is not None:
            return each.app
    raise ConfigError(
        "flow",
        message="a flow without a task cannot be enqueued by itself: use FlowProducer.add, or at least one "
        "task.s(...)",
    )


def _connected(steps: Iterable[Step]) -> list[Step]:
    """Return ``steps`` and all steps connected to them, each before the steps that it waits for where
    possible.
    """
    seen: dict[Step, None] = {}
    pending = list(reversed(list(steps)))
    while pending:
        one = pending.pop()
        if one not in seen:
            seen[one] = None
            pending += reversed([*one.following, *one.follows])
    return list(seen)


async def add_steps(app: FlowApp, steps: Iterable[Step]) -> dict[Step, JobNode]:
    """Add the flows of ``steps`` atomically. Returns the nodes by step."""
    whole = _connected(steps)
    check_size(len(whole), 0)
    news = _plan(app, whole)
    jobs = await app.queue(whole[0].queue).add_new(list(news.values()), chunk=FLOW_LIMIT)
    nodes = {one: JobNode(job.ref, job) for one, job in zip(news, jobs, strict=True)}
    for one, node in nodes.items():
        node.children = [nodes[before] for before in one.follows]
    return nodes


def _plan(app: FlowApp, whole: list[Step]) -> dict[Step, NewJob]:
    """Return the checked jobs to add, dependents first.

    A store that adds them in parts then never starts a job before the jobs that it waits for are known.
    """
    ids = new_ids(len(whole))
    news: dict[Step, NewJob] = {}
    for one, fresh_id in zip(whole, ids, strict=True):
        queue = app.queue(one.queue)
        options = (one.base or queue.defaults).merged(one.options)
        news[one] = PreparedOptions(options, queue.app.backoff_strategies).new_job(
            queue, one.name, _packed(one, options), fresh_id
        )
    for one, new in news.items():
        for before, on_failure in one.follows.items():
            child = news[before]
            new.depends_on = [*new.depends_on, Dependency(child.queue, child.id, on_failure)]
    graph = {
        JobRef(new.queue, new.id): [dependency.ref for dependency in new.depends_on] for new in news.values()
    }
    if len(graph) < len(news):
        raise ConfigError(
            "job_id", message=f"two jobs of the flow have the job_id {_doubled(news.values())!r}"
        )
    check_cycle(graph)
    _set_places(list(news.values()), graph)
    order = _levels(graph)
    return dict(sorted(news.items(), key=lambda item: -order[JobRef(item[1].queue, item[1].id)]))


def _doubled(news: Iterable[NewJob]) -> str:
    """Return the first id that two jobs of the same queue have."""
    counts = Counter(JobRef(new.queue, new.id) for new in news)
    return counts.most_common(1)[0][0].id


def _packed(one: Step, options: JobOptions) -> dict[str, Any]:
    """Return the stored arguments of a step, with the positions where it takes results."""
    if one.lacking is not None:
        how = "a step takes the result of the one before by RESULT, or by chain(..., pass_result=True)"
        raise ConfigError(one.lacking.option, message=f"{one.lacking}; {how}") from one.lacking
    at = places_of_result(one.packed)
    if not at:
        return one.packed
    count = len(one.follows) + len(options.dependencies(one.queue)[0])
    gathered = one.gathers or count > 1
    if not count and not gathered:
        raise ConfigError(
            "RESULT", message=f"step {one.name!r} takes RESULT, but it comes after no other step"
        )
    refused = {OnFailure.CONTINUE} if gathered else {OnFailure.CONTINUE, OnFailure.IGNORE}
    for on_failure in [*one.follows.values(), to_on_failure(options.on_failure)]:
        if on_failure in refused:
            want = "fail or ignore" if gathered else "fail"
            raise ConfigError(
                "on_failure",
                message=f"on_failure must be {want} where a step takes RESULT, got {on_failure.value!r}: a "
                "step that failed has no result",
                got=on_failure.value,
            )
    unique = to_unique(options.unique)
    if unique is not None and unique.key is None:
        raise ConfigError(
            "unique",
            message="a step that takes RESULT needs a unique key of its own (unique='...'): its arguments "
            "are not known yet",
            got=options.unique,
        )
    return pack_taking(one.packed, at, count, gathered=gathered)


def _set_places(news: list[NewJob], graph: dict[JobRef, list[JobRef]]) -> None:
    """Set parent and top of the flow in the options of every job, for the history.

    If several jobs wait for one, the first is its parent.
    """
    above: dict[JobRef, JobRef] = {}
    for ref, children in graph.items():
        for child in children:
            above.setdefault(child, ref)
    made: dict[tuple[int, JobRef | None, JobRef], StoredOptions] = {}
    tops: dict[JobRef, JobRef] = {}
    for new in news:
        ref = JobRef(new.queue, new.id)
        top = _top_of(ref, above, tops)
        key = (id(new.options), above.get(ref), top)
        if key not in made:
            made[key] = placed(new.options, above.get(ref), top)
        new.options = made[key]


def _top_of(ref: JobRef, above: dict[JobRef, JobRef], tops: dict[JobRef, JobRef]) -> JobRef:
    """Return the end of a line of parents, which may be long. ``tops`` has the ends that are known."""
    passed, top = [], ref
    while top not in tops and top in above:
        passed.append(top)
        top = above[top]
    top = tops.get(top, top)
    tops.update(dict.fromkeys(passed, top))
    return top


def _levels(graph: dict[JobRef, list[JobRef]]) -> dict[JobRef, int]:
    """Return the distance of each job from a job that waits for nothing in the flow."""
    levels: dict[JobRef, int] = {}
    for start in graph:
        stack = [start]
        while stack:
            ref = stack[-1]
            open_children = [c for c in graph.get(ref, ()) if c in graph and c not in levels]
            if open_children:
                stack += open_children
                continue
            stack.pop()
            levels[ref] = 1 + max((levels[c] for c in graph.get(ref, ()) if c in levels), default=0)
    return levels


if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
