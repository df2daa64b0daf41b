"""For tests of applications: find enqueued jobs, run them at once, run everything that is due.

async def test_signup_sends_a_mail():
    app = make_app("memory://", clock=ManualClock())
    await signup(app, "ada@example.com")
    await assert_enqueued(send_mail, data={"to": "ada@example.com"}, delay=60)
    await drain(app, ahead=60)
    assert outbox == ["ada@example.com"]
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windlass import ConfigError, Job, JobNotFoundError, JobState, Queue, Task, Windlass, Worker
from windlass.api.task import BoundTask
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.option_values import Duration, check_known, check_tags, seconds_to_ms
from windlass.core.states import FINISHED
from windlass.errors import MaxRetriesError
from windlass.testing.clock import ManualClock
from windlass.worker.duty import all_steps
from windlass.worker.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

Where = Queue | Task[..., Any] | BoundTask[..., Any]

_UNFINISHED = tuple(state for state in JobState if state not in FINISHED)
_FIELDS: dict[str, Callable[[Job[Any]], Any]] = {
    "args": lambda job: job.args,
    "kwargs": lambda job: job.kwargs,
    "delay": lambda job: None if job.run_at_ms is None else (job.run_at_ms - job.enqueued_ms) / 1000,
    "id": lambda job: job.id,
    "max_attempts": lambda job: job.max_attempts,
    "priority": lambda job: job.priority,
    "run_at_ms": lambda job: job.run_at_ms,
    "state": lambda job: job.state,
    "tags": lambda job: list(job.tags),
}
_NOTHING: Any = object()


# --- what was enqueued ----------------------------------------------------------------------------


async def all_enqueued(
    where: Where,
    name: str | None = None,
    *,
    data: Any = _NOTHING,
    states: Iterable[JobState | str] = _UNFINISHED,
    **match: Any,
) -> list[Job[Any]]:
    """Matching jobs of a queue (or of a task), oldest first. Finished ones only if ``states`` includes them.

    ``data`` is what was added (for an object, the keys to compare). ``match`` compares ``args``, ``kwargs``,
    ``delay`` (seconds), ``id``, ``max_attempts``, ``priority``, ``run_at_ms``, ``state`` or ``tags``.
    """
    check_known(match, _FIELDS, "field to match")
    queue, name = _place(where, name)
    match = {key: _stored(queue, key, value) for key, value in match.items()}
    data = data if data is _NOTHING else _as_read(queue, data)
    found: list[Job[Any]] = []
    cursor: str | None = None
    while True:
        page = await queue.get_jobs(states, cursor, 1_000, newest_first=False)
        found += [job for job in page if _matches(job, name, data, match)]
        cursor = page.cursor
        if cursor is None:
            return found


async def assert_enqueued(where: Where, name: str | None = None, **match: Any) -> Job[Any]:
    """The first matching job (see ``all_enqueued``). ``AssertionError`` with a list of all jobs if none."""
    found = await all_enqueued(where, name, **match)
    if not found:
        raise AssertionError(await _mismatch_text("no job", where, name, match))
    return found[0]


async def refute_enqueued(where: Where, name: str | None = None, **match: Any) -> None:
    """Raise ``AssertionError`` if a job matches (see ``all_enqueued``)."""
    if await all_enqueued(where, name, **match):
        raise AssertionError(await _mismatch_text("a job", where, name, match))


def _place(where: Where, name: str | None) -> tuple[Queue, str | None]:
    if isinstance(where, Queue):
        return where, name
    if not isinstance(where, (Task, BoundTask)):
        raise ConfigError("where", "a task, or a queue: assert_enqueued(app.queue(NAME), TASK_NAME)", where)
    task = where.task if isinstance(where, BoundTask) else where
    if name is not None and name != task.name:
        raise ConfigError(
            "name", message=f"name {name!r} is not that of the task, {task.name!r}; leave it out", got=name
        )
    return task.queue, task.name


def _matches(job: Job[Any], name: str | None, data: Any, match: Mapping[str, Any]) -> bool:
    if name is not None and job.name != name:
        return False
    if data is not _NOTHING and not _covers(job.data, data):
        return False
    return all(_FIELDS[key](job) == value for key, value in match.items())


def _stored(queue: Queue, key: str, value: Any) -> Any:
    """A value to match as a job has it. A wrong one matches none, so ``refute_enqueued`` would pass."""
    if key == "state":
        check_known([value], list(JobState), "job state")
    elif key == "tags":
        check_tags(value if isinstance(value, str) else list(value))
    elif key == "delay" and value is not None:
        return seconds_to_ms(value, "delay") / 1000
    elif key == "kwargs":
        return _as_read(queue, value)
    return list(_as_read(queue, value) if key == "args" else value) if key in ("args", "tags") else value


def _as_read(queue: Queue, value: Any) -> Any:
    """``value`` as handlers would read it: a dataclass as an object, a date as text (unless the codec keeps
    them). One that cannot be stored, such as ``mock.ANY``, is compared as it is."""
    try:
        return queue.app.codecs.as_read(value)
    except Exception:  # a codec may raise anything
        return value


def _covers(have: Any, want: Any) -> bool:
    """Whether ``have`` equals ``want``, or is an object with at least its keys."""
    if isinstance(have, dict) and isinstance(want, dict):
        return all(key in have and have[key] == value for key, value in want.items())
    return bool(have == want or (isinstance(want, tuple) and have == list(want)))


async def _mismatch_text(what: str, where: Where, name: str | None, match: Mapping[str, Any]) -> str:
    queue, name = _place(where, name)
    wanted = ", ".join(
        f"{key}={value!r}" for key, value in {"name": name, **match}.items() if value is not None
    )
    page = await queue.get_jobs(_UNFINISHED, limit=20)
    there = "\n".join(f"  {job.name} {job.data!r} ({job.state.value})" for job in page) or "  (nothing)"
    return f"{what} of queue {queue.name!r} matches {wanted}; it holds:\n{there}"


# --- running --------------------------------------------------------------------------------------


async def drain(target: Windlass | Worker, *, ahead: Duration = 0) -> int:
    """Run everything that is due, and jobs that this enqueues, until none is left; returns the attempts.

    Retries, delayed jobs and schedules (including those in code) wait for their time. ``ahead`` advances a
    manual clock by that many seconds, from one due time to the next. If a handler waits for something else,
    the test must release it.
    """
    worker = target if isinstance(target, Worker) else None
    app = target.app if isinstance(target, Worker) else target
    clock = app.clock
    if ahead and not isinstance(clock, ManualClock):
        raise ConfigError("ahead", message="ahead needs an app with a ManualClock")
    end_ms = clock.monotonic_ms() + seconds_to_ms(ahead, "ahead")
    attempts = 0
    if worker is None:
        await app.deploy_schedules()  # as a worker does when it starts
    while True:
        await _fire_schedules(app)
        attempts += await _run_due(app, worker)
        due_ms = await _next_due_ms(app)
        left_ms = end_ms - clock.monotonic_ms()
        if not isinstance(clock, ManualClock) or due_ms is None or due_ms > left_ms:
            break
        await clock.advance(ms=max(due_ms, 1))
    if isinstance(clock, ManualClock) and ahead:
        await clock.advance(ms=max(end_ms - clock.monotonic_ms(), 0))
    return attempts


async def _run_due(app: Windlass, given: Worker | None) -> int:
    attempts = 0

    def count(job: Job[Any]) -> None:
        nonlocal attempts
        attempts += 1

    while busy := await _busy_queues(app):
        worker = given or _worker(app, busy)
        # A job that ends in one queue may release jobs of another that was already checked: check twice.
        served = given.info().queues if given else busy
        worker.on("active", count)
        await worker.start()
        listener = await app.store.listen(
            [f"done:{name}" for name in busy] + [f"ready:{name}" for name in busy]
        )
        try:
            while await _busy_queues(app, served) or await _busy_queues(app, served):
                if isinstance(app.clock, ManualClock):
                    await app.clock.settle()
                await listener.wait(5, SYSTEM_CLOCK)
        finally:
            listener.close()
            if given is None:
                await worker.close()
        if given is not None:
            break
    return attempts


async def _busy_queues(app: Windlass, among: Iterable[str] | None = None) -> list[str]:
    """Queues with jobs to run now: waiting (and not paused), active, or due."""
    await app.store.execute(rq.Promote())
    return [
        info.name
        for info in await app.queues()
        if (among is None or info.name in among)
        and ((info.counts["waiting"] and not info.paused) or info.counts["active"])
    ]


async def _fire_schedules(app: Windlass) -> None:
    if app.store.capabilities.schedules:
        await all_steps(Scheduler(app.store, app.schedule_strategies, hooks=app.hooks))


async def _next_due_ms(app: Windlass) -> int | None:
    """The time until the next job or the next slot of a schedule is due."""
    due = [(await app.store.execute(rq.Promote(limit=0))).next_due_in_ms]
    if app.store.capabilities.schedules:
        due.append((await app.store.execute(sq.DueSchedules())).next_in_ms)
    return min((one for one in due if one is not None), default=None)


def _worker(app: Windlass, queues: Iterable[str]) -> Worker:
    return Worker(list(queues), url_or_app=app, duties=False, heartbeat=3_600, poll=3_600)


@contextmanager
def inline(app: Windlass, *, raise_errors: bool = True) -> Iterator[None]:
    """In this block, jobs run before the ``enqueue`` or ``add`` that created them returns.

    A job that is due later stays in its queue. A handler's error is raised to the caller of ``enqueue``. With
    ``raise_errors=False`` the job is instead left as a worker would leave it (retrying or failed).
    """

    async def run(jobs: list[Job[Any]]) -> None:
        errors = await _run_jobs(app, jobs)
        if errors and raise_errors:
            raise errors[0]

    before, app.after_add = app.after_add, run
    try:
        yield
    finally:
        app.after_add = before


async def _run_jobs(app: Windlass, jobs: list[Job[Any]]) -> list[BaseException]:
    """Run ``jobs`` until none of them waits or runs; returns the errors of their handlers."""
    ready = [job for job in jobs if job.state is JobState.WAITING]
    errors: list[BaseException] = []
    if not ready:
        return errors
    ids = {job.id for job in ready}

    def keep(job: Job[Any], error: BaseException | None) -> None:
        if job.id in ids and error is not None:
            spent = isinstance(error, MaxRetriesError) and error.__cause__ is not None
            errors.append(error.__cause__ or error if spent else error)

    worker = _worker(app, sorted({job.queue_name for job in ready}))
    worker.on("failed", keep)
    worker.on("retrying", keep)
    listener = await app.store.listen(
        [f"{kind}:{job.queue_name}" for job in ready for kind in ("done", "ready")]
    )
    await worker.start()
    try:
        while await _any_runs(ready):
            await listener.wait(5, SYSTEM_CLOCK)
    finally:
        listener.close()
        await worker.close()
    return errors


async def _any_runs(jobs: list[Job[Any]]) -> bool:
    """Read ``jobs`` again and return whether one of them still waits or runs."""
    found = False
    for job in jobs:
        try:
            await job.refresh()
        except JobNotFoundError:
            continue
        found = found or job.state in (JobState.WAITING, JobState.ACTIVE)
    return found
