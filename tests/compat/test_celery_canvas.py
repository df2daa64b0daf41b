"""Canvases of Celery's API: what steps receive, which options they take, and which errbacks are called."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from windlass import JobState
from windlass.compat.celery import Celery, Task, chain, chord, group, shared_task
from windlass.compat.celery.app import _shared
from windlass.compat.celery.contrib.testing.worker import start_worker
from windlass.compat.celery.exceptions import Ignore
from windlass.errors import ConfigError
from windlass.jobs.sync import PORTAL
from windlass.testing import ManualClock, drain

pytestmark = pytest.mark.keeps_threads("windlass-*", reason="the portal lives as long as the process")

OPEN = (JobState.WAITING, JobState.ACTIVE, JobState.BLOCKED, JobState.SCHEDULED, JobState.RETRYING)
_numbers = itertools.count()


@pytest.fixture
def app() -> Iterator[Celery]:
    made = Celery("canvas", broker=f"memory://canvas{next(_numbers)}")
    yield made
    made.close()


class Calls:
    """Tasks that write down what they are called with."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.made: list[tuple[str, Any]] = []

        @app.task(name="same")
        def same(*args: Any) -> Any:
            return args

        @app.task(name="quiet", ignore_result=True)
        def quiet(value: Any) -> Any:
            return value

        @app.task(name="boom")
        def boom(*_: Any) -> None:
            raise KeyError("boom")

        @app.task(name="ignored")
        def ignored() -> None:
            raise Ignore()

        self.same, self.quiet, self.boom, self.ignored = same, quiet, boom, ignored

    def noting(self, name: str) -> Task:
        """A task of one argument that notes it."""

        def note(value: Any) -> None:
            self.made.append((name, value))

        return self.app.task(name=name)(note)

    def settle(self) -> None:
        """Wait until no job is open: callbacks end after the result that a caller waits for."""
        for _ in range(1000):
            counts = self.app.windlass.sync.queue("celery").get_job_counts()
            if not any(counts[state] for state in OPEN):
                return
            threading.Event().wait(0.02)
        raise AssertionError(f"still open: {counts}")


@pytest.fixture
def calls(app: Celery) -> Calls:
    return Calls(app)


def run(calls: Calls, canvas: Any) -> Any:
    with start_worker(calls.app, concurrency=4):
        result = canvas.apply_async()
        value = result.get(timeout=20, propagate=False)
        calls.settle()
    return value


# --- results ------------------------------------------------------------------------------------------


def test_a_step_receives_a_result_that_its_task_ignores(calls: Calls) -> None:
    noted = calls.noting("noted")
    made = chain(calls.quiet.s(5), calls.same.s())
    assert run(calls, chord([made, calls.quiet.s(6).set(link=noted.s())], calls.same.s())) == ([(5,), 6],)
    assert calls.made == [("noted", 6)]


def test_a_call_says_whether_its_result_is_ignored(calls: Calls) -> None:
    assert run(calls, calls.quiet.s(5).set(ignore_result=False)) == 5
    with start_worker(calls.app):
        sent = calls.same.apply_async((1,), ignore_result=True)
        calls.settle()
    job = calls.app.windlass.sync.queue("celery").get_job(sent.id)
    assert job is not None
    assert job.job.return_value is None


@pytest.mark.parametrize("expires", [None, 0])
def test_results_that_do_not_expire_stay(app: Celery, expires: int | None) -> None:
    app.conf.result_expires = expires
    app.windlass.clock = clock = ManualClock()
    app.windlass.use_store(f"memory://canvas{next(_numbers)}")
    sent = Calls(app).same.delay(1)
    PORTAL.run(drain(app.windlass))
    PORTAL.run(clock.advance(timedelta(days=400).total_seconds()))
    assert sent.get(timeout=1) == (1,)


def test_a_key_error_has_its_key(calls: Calls) -> None:
    assert run(calls, calls.boom.s()).args == ("boom",)


def test_a_chain_goes_past_an_empty_group_or_header(calls: Calls) -> None:
    assert run(calls, chain(calls.same.s(7), group([]), calls.same.s())) == ((7,),)
    assert run(calls, chain(calls.same.s(7), chord([], calls.same.s()))) == ([],)
    with pytest.raises(ValueError, match="x"):
        start = chain(calls.same.s(), calls.app.task(name="bad")(lambda _: int("x")).s())
        raise run(calls, chain(start, chord([], chain(calls.same.s(), calls.same.s()))))


# --- callbacks and errbacks ---------------------------------------------------------------------------


def test_the_callbacks_of_a_canvas_are_added_to_those_of_its_tasks(calls: Calls) -> None:
    first, second, third = calls.noting("first"), calls.noting("second"), calls.noting("third")
    made = chain(calls.same.s(), calls.same.s().set(link=first.si(1)))
    made.link(second.si(2))
    assert run(calls, made) == ((),)
    assert sorted(calls.made) == [("first", 1), ("second", 2)]
    calls.made.clear()
    several = group(calls.boom.s().set(link_error=first.si(1)))
    several.link_error(second.si(2))
    run(calls, several)
    run(calls, chord([calls.same.s()], calls.boom.s().on_error(third.si(3))).set(link_error=[first.si(4)]))
    assert sorted(calls.made) == [("first", 1), ("first", 4), ("second", 2), ("third", 3)]


@pytest.mark.parametrize("extend", [lambda one, two: one | two, chain], ids=["or", "chain"])
def test_a_chain_that_is_extended_keeps_its_callbacks(calls: Calls, extend: Callable[..., Any]) -> None:
    failed, done = calls.noting("failed"), calls.noting("done")
    made = chain(calls.same.s(), calls.boom.s()).on_error(failed.si(1))
    run(calls, extend(made, calls.same.s()))
    assert calls.made == [("failed", 1)]
    made = chain(calls.same.s(), calls.same.s())
    made.link(done.si(2))
    run(calls, extend(made, calls.same.s()))
    assert calls.made == [("failed", 1), ("done", 2)]


def test_an_errback_takes_what_its_signature_says(calls: Calls) -> None:
    own = calls.noting("own")

    @calls.app.task(name="told")
    def told(request: Any, exc: Any, traceback: Any, order: int) -> None:
        calls.made.append((type(exc).__name__, order))

    run(calls, calls.boom.s().set(link_error=[own.si(7), told.s(order=8)]))
    assert sorted(calls.made) == [("KeyError", 8), ("own", 7)]


def test_errbacks_are_not_called_for_what_did_not_fail(calls: Calls) -> None:
    errback = calls.noting("errback")
    run(calls, calls.ignored.s().set(link_error=errback.s()))
    run(calls, calls.same.s().set(link_error=errback.s(), countdown=0.05, expires=0.01))
    with start_worker(calls.app):
        calls.same.apply_async(link_error=errback.s(), countdown=3600).revoke()
        calls.settle()
    assert calls.made == []


def test_errbacks_are_called_by_eager_tasks_too(calls: Calls) -> None:
    own, named = calls.noting("own"), calls.noting("named")
    calls.app.conf.task_always_eager = True
    result = calls.boom.apply_async(link_error=[own.si(7), named.s()])
    assert (result.state, calls.made) == ("FAILURE", [("own", 7), ("named", result.id)])
    with pytest.raises(TypeError, match="missing a required argument"):
        own.delay()


# --- options ------------------------------------------------------------------------------------------


def jobs_of(app: Celery, canvas: Any) -> dict[tuple[str, str], int]:
    """Name and queue of the jobs of a canvas, and how many."""
    canvas.apply_async(queue="chosen")
    found: dict[tuple[str, str], int] = {}
    for queue in ("celery", "chosen"):
        for state in OPEN:
            for job in app.windlass.sync.queue(queue).get_jobs([state]):
                found[job.name, queue] = found.get((job.name, queue), 0) + 1
    return found


def test_the_options_of_a_chain_are_those_of_its_first_task(calls: Calls) -> None:
    found = jobs_of(calls.app, chain(calls.same.s(), calls.boom.s()))
    assert found == {("same", "chosen"): 1, ("boom", "celery"): 1}


def test_the_options_of_a_chord_are_those_of_header_and_body(calls: Calls) -> None:
    found = jobs_of(calls.app, chord([calls.same.s(), calls.same.s()], calls.boom.s()))
    assert found == {("same", "chosen"): 2, ("boom", "chosen"): 1}


def test_countdown_and_expiry_of_a_later_step_begin_when_it_may_run(app: Celery) -> None:
    app.windlass.clock = clock = ManualClock()
    app.windlass.use_store(f"memory://canvas{next(_numbers)}")
    same = Calls(app).same
    late = same.s().set(countdown=60, expires=30)
    last = chain(same.s(1), same.s(2).set(countdown=60, expires=90), late).apply_async(countdown=300)
    PORTAL.run(drain(app.windlass))
    PORTAL.run(clock.advance(301))
    PORTAL.run(drain(app.windlass))
    assert (last.parent.parent.state, last.parent.state) == ("SUCCESS", "PENDING")
    PORTAL.run(clock.advance(61))
    PORTAL.run(drain(app.windlass))
    assert last.parent.get(timeout=1) == ((1,), 2)
    assert last.state == "PENDING"
    PORTAL.run(clock.advance(61))
    PORTAL.run(drain(app.windlass))
    assert last.get(timeout=1) == (((1,), 2),)


@pytest.mark.parametrize("options", [{"countdown": 1e300}, {"countdown": float("nan")}, {"expires": "1 h"}])
def test_a_wrong_countdown_of_a_later_step_is_refused(calls: Calls, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        chain(calls.same.s(), calls.same.s().set(**options)).delay()


def test_a_later_step_expires_if_it_waits_too_long_for_a_worker(app: Celery) -> None:
    app.windlass.clock = clock = ManualClock()
    app.windlass.use_store(f"memory://canvas{next(_numbers)}")
    same = Calls(app).same
    last = chain(same.s(1), same.s(2).set(queue="idle", expires=timedelta(seconds=30))).apply_async()
    app.windlass.sync.queue("idle").pause()
    PORTAL.run(drain(app.windlass))
    PORTAL.run(clock.advance(31))
    app.windlass.sync.queue("idle").resume()
    PORTAL.run(drain(app.windlass))
    assert last.state == "REVOKED"


def test_the_priority_of_a_route_is_used(app: Celery) -> None:
    app.conf.task_routes = {"same": {"queue": "celery", "priority": 3}, "urgent": {"priority": 3}}
    same = Calls(app).same
    urgent = app.task(name="urgent", priority=1)(lambda: None)
    priorities = []
    for sent in (same.delay(), same.apply_async(priority=2), urgent.delay()):
        job = app.windlass.sync.queue("celery").get_job(sent.id)
        assert job is not None
        priorities.append(job.priority)
    assert priorities == [-3, -2, -1]


def test_a_scheduled_task_has_the_options_of_its_task(app: Celery) -> None:
    app.task(name="nightly", priority=4, expires=60)(lambda: None)
    app.task(name="hourly")(lambda: None)
    app.conf.beat_schedule = {
        "one": {"task": "nightly", "schedule": 30},
        "two": {"task": "hourly", "schedule": 30, "options": {"priority": 7}},
    }
    app.windlass.sync.deploy_schedules()
    made = {info.name: info.record.template for info in app.windlass.sync.schedules()}
    assert (made["one"].priority, made["one"].options.expires_total_ms) == (-4, 60_000)
    assert made["two"].priority == -7


def test_a_retry_after_the_expiry_does_not_run(app: Celery) -> None:
    app.windlass.clock = clock = ManualClock()
    app.windlass.use_store(f"memory://canvas{next(_numbers)}")

    @app.task(name="late", bind=True, expires=60)
    def late(self: Task) -> None:
        raise self.retry(countdown=90)

    sent = late.delay()
    PORTAL.run(drain(app.windlass))
    assert sent.state == "RETRY"
    PORTAL.run(clock.advance(91))
    PORTAL.run(drain(app.windlass))
    assert sent.state == "REVOKED"


def test_a_countdown_counts_more_than_an_eta(app: Celery) -> None:
    app.windlass.clock = clock = ManualClock()
    app.windlass.use_store(f"memory://canvas{next(_numbers)}")
    late = datetime.fromtimestamp(clock.now_ms() / 1000, UTC) + timedelta(hours=1)
    same = Calls(app).same

    @app.task(name="again", bind=True)
    def again(self: Task) -> int:
        if self.request.retries == 0:
            raise self.retry(eta=late, countdown=5)
        return self.request.retries

    both: dict[str, Any] = {"eta": late, "countdown": 5}
    results = [same.apply_async(**both), chain(same.s(), same.s().set(**both)).delay(), again.delay()]
    PORTAL.run(drain(app.windlass))
    PORTAL.run(clock.advance(6))
    PORTAL.run(drain(app.windlass))
    assert [result.state for result in results] == ["SUCCESS"] * 3


def test_a_shared_task_of_the_script_is_found(app: Celery) -> None:
    def add(a: int, b: int) -> int:
        return a + b

    add.__module__ = "__main__"
    shared = shared_task(add)
    try:
        assert shared.name == "canvas.add"
        with start_worker(app):
            assert shared.delay(1, 2).get(timeout=20) == 3
    finally:
        _shared.pop()


# --- hooks --------------------------------------------------------------------------------------------


def test_hooks_of_a_retry_receive_the_error_and_not_the_end(app: Celery) -> None:
    called: list[tuple[str, str]] = []

    class Hooked(Task):
        def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
            called.append(("on_retry", repr(exc)))

        def after_return(self, status: Any, retval: Any, *_: Any) -> None:
            called.append((status, repr(retval)))

    @app.task(name="again", bind=True, base=Hooked)
    def again(self: Task) -> int:
        if self.request.retries == 0:
            raise self.retry(exc=ValueError("no"), countdown=0)
        return self.request.retries

    with start_worker(app):
        assert again.delay().get(timeout=20) == 1
        calls = Calls(app)
        calls.settle()
    assert called == [("on_retry", "ValueError('no')"), ("SUCCESS", "1")]
