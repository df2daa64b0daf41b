"""Celery's API on Windlass: what is refused and how, and what the 25 ways of the example leave open."""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import WorkerProcess
from windlass import JobState, current_job
from windlass.compat.celery import Celery, Task, chain, chord, group, signals
from windlass.compat.celery.contrib.testing.worker import start_worker
from windlass.compat.celery.exceptions import (
    NotRegistered,
    Reject,
    Retry,
    TaskRevokedError,
    TimeLimitExceeded,
    TimeoutError,
)
from windlass.compat.celery.schedules import crontab, schedule, to_windlass
from windlass.errors import ConfigError

pytestmark = pytest.mark.keeps_threads("windlass-*", reason="the portal lives as long as the process")


_numbers = itertools.count()


@pytest.fixture
def app() -> Iterator[Celery]:
    made = Celery("shim", broker=f"memory://shim{next(_numbers)}")
    yield made
    made.close()


def working(app: Celery) -> AbstractContextManager[object]:
    return start_worker(app, concurrency=4)


def make(app: Celery, **options: Any) -> Task:
    @app.task(name="one", **options)
    def one(*args: Any) -> Any:
        return args

    made: Task = one
    return made


# --- refusals ------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[Callable[[Celery], Any], str]] = {
    "an unknown option of a task": (lambda app: make(app, max_retrys=3), "max_retries"),
    "an unknown option of a call": (lambda app: make(app).apply_async(cuntdown=3), "countdown"),
    "a routing key": (lambda app: make(app).apply_async(routing_key="x"), "name the queue"),
    "a pickle": (lambda app: make(app).apply_async(serializer="pickle"), "must be json"),
    "a priority that is none": (lambda app: make(app).apply_async(priority="high"), "0 to 255"),
    "a date that is none": (lambda app: make(app).apply_async(eta="tomorrow"), "a datetime"),
    "an unknown setting": (lambda app: setattr(app.conf, "task_rutes", {}), "task_routes"),
    "a setting of pickles": (lambda app: app.conf.update(accept_content=["pickle"]), "['json']"),
    "annotations": (lambda app: setattr(app.conf, "task_annotations", {}), "@app.task"),
    "an async function": (lambda app: app.task(asyncio.sleep), "app.windlass.task"),
    "a remote control": (lambda app: app.control.inspect(), "windlass workers"),
    "a worker from the code": (lambda app: app.worker_main(), "windlass worker MODULE:APP"),
    "a replaced task": (lambda app: make(app).replace(None), "add_child"),
    "other arguments of a retry": (lambda app: make(app).retry(args=[1]), "send the task again"),
    "a chord without a body": (lambda app: chord([make(app).s()]).delay(), "chord(header, body)"),
    "an empty chain": (lambda app: chain(), "a chain needs at least one task"),
    "a callback of a group": (lambda app: group(make(app).s()).link(make(app).s()), "a chord"),
    "groups in a group": (lambda app: group(group(make(app).s(), make(app).s())).delay(), "not end with one"),
    "a rate that is none": (lambda app: make(app, rate_limit="10/y").job_options(), "'100/m'"),
    "both days of a crontab": (lambda app: crontab(day_of_week=1, day_of_month=1), "check one of the two"),
    "a schedule that is none": (lambda app: to_windlass("daily", "UTC"), "a crontab"),
    "a signal that is never sent": (lambda app: signals.worker_ready, "lifespan"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_counterpart_is_refused_with_what_to_do(app: Celery, what: str) -> None:
    call, advice = REFUSED[what]
    with pytest.raises(ConfigError, match=re.escape(advice)):
        call(app)


def test_a_schedule_of_an_unknown_task_is_refused(app: Celery) -> None:
    app.conf.beat_schedule = {"nightly": {"task": "nope", "schedule": 5}}
    with pytest.raises(ConfigError, match="names task 'nope', which this app does not have"):
        app.finalize()


def test_arguments_that_the_function_does_not_take_are_refused_before_anything_is_sent(app: Celery) -> None:
    @app.task(name="two")
    def two(a: int, b: int) -> int:
        return a + b

    with pytest.raises(TypeError, match="missing a required argument"):
        two.delay(1)
    with pytest.raises(TypeError):
        chain(two.s(1, 2), two.s(1, 2)).apply_async()
    assert app.control.purge() == 0


async def test_a_call_on_an_event_loop_is_refused(app: Celery) -> None:
    with pytest.raises(ConfigError, match=r"asyncio\.to_thread"):
        make(app).delay()


def test_a_task_that_is_not_there_is_named(app: Celery) -> None:
    with pytest.raises(NotRegistered, match="nope"):
        app.tasks["nope"]
    with pytest.raises(TimeoutError, match="never sent"):
        app.AsyncResult("nope").get(timeout=1)


# --- translation ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "cron"),
    [
        (crontab(), "* * * * *"),
        (crontab(minute=0, hour="*/3"), "0 */3 * * *"),
        (crontab(minute="0,30", hour=[8, 17], day_of_week="monday-friday"), "0,30 8,17 * * mon-fri"),
        (crontab(0, 0, day_of_month="1", month_of_year="jan, july"), "0 0 1 jan,jul *"),
    ],
)
def test_crontabs_become_cron(given: crontab, cron: str) -> None:
    assert given.cron == cron
    assert to_windlass(given, "Europe/Berlin").timezone == "Europe/Berlin"


def test_intervals_become_schedules() -> None:
    for given in (90, 90.0, timedelta(seconds=90), schedule(90)):
        assert to_windlass(given, "UTC").rule.every_ms == 90_000


def test_the_beat_schedule_is_declared_with_its_options(app: Celery) -> None:
    make(app)

    @app.on_after_configure.connect
    def more(sender: Celery, **_: Any) -> None:
        sender.add_periodic_task(30, make(app).s(1), name="often")

    app.conf.timezone = "Europe/Berlin"
    app.conf.beat_schedule = {
        "nightly": {"task": "one", "schedule": crontab(minute=0, hour=3), "options": {"expires": 60}}
    }
    app.windlass.sync.deploy_schedules()
    found = {info.name: info for info in app.windlass.sync.schedules()}
    assert sorted(found) == ["nightly", "often"]
    rule = found["nightly"].record.rule
    assert (rule.cron, rule.timezone) == ("0 3 * * *", "Europe/Berlin")


@pytest.mark.parametrize(
    "routes",
    [
        {"shop.*": {"queue": "shop"}},
        {"shop.*": "shop"},
        [(re.compile(r"shop\..*"), {"queue": "shop"})],
        [{"other": "x"}, ("shop.pay", "shop")],
        lambda name, args, kwargs, options, task=None: {"queue": "shop"} if name == "shop.pay" else None,
    ],
)
def test_every_form_of_task_routes(app: Celery, routes: Any) -> None:
    app.conf.task_routes = routes

    @app.task(name="shop.pay")
    def pay() -> None: ...

    @app.task(name="elsewhere")
    def elsewhere() -> None: ...

    assert [pay.delay().queue, elsewhere.delay().queue] == ["shop", "celery"]
    assert pay.apply_async(queue="chosen").queue == "chosen"


def test_the_options_of_a_call_are_those_of_its_job(app: Celery) -> None:
    at = datetime.now(UTC) + timedelta(hours=1)
    sent = make(app).apply_async(eta=at, expires=7200, priority=3, time_limit=60, soft_time_limit=50)
    job = app.windlass.sync.queue("celery").get_job(sent.id)
    assert job is not None
    assert job.run_at_ms == round(at.timestamp() * 1000)
    assert (job.priority, job.options.timeout_ms) == (-3, 50_000)
    assert job.record.expires_ms is not None


def test_a_naive_eta_is_in_the_time_zone_of_the_app(app: Celery) -> None:
    app.conf.timezone = "Asia/Tokyo"
    sent = make(app).apply_async(eta=datetime(2040, 1, 1, 9))
    job = app.windlass.sync.queue("celery").get_job(sent.id)
    assert job is not None
    assert job.run_at_ms == round(datetime(2040, 1, 1, 0, tzinfo=UTC).timestamp() * 1000)


def test_settings_come_from_objects_and_namespaces(app: Celery) -> None:
    class Django:
        CELERY_TASK_DEFAULT_QUEUE = "django"
        CELERY_TASK_TRACK_STARTED = True
        DEBUG = True

    app.config_from_object(Django, namespace="CELERY")
    assert (app.conf.task_default_queue, app.conf["task_track_started"]) == ("django", True)
    app.config_from_object({"task_ignore_result": True})
    assert make(app).ignores_result


# --- behaviour -----------------------------------------------------------------------------------------


def test_a_task_may_ask_for_more_retries_than_its_own_limit(app: Celery) -> None:
    @app.task(bind=True, max_retries=1, name="patient")
    def patient(self: Task) -> int:
        if self.request.retries < 5:
            raise self.retry(countdown=0, max_retries=10)
        return self.request.retries

    with working(app):
        assert patient.delay().get(timeout=20) == 5


def test_an_error_that_is_not_asked_to_be_retried_fails_at_once(app: Celery) -> None:
    runs: list[int] = []

    @app.task(bind=True, name="wrong")
    def wrong(self: Task) -> None:
        runs.append(self.request.retries)
        raise ValueError("no")

    with working(app):
        assert isinstance(wrong.delay().get(timeout=20, propagate=False), ValueError)
    assert runs == [0]


def test_a_run_over_its_time_limit_fails_and_is_not_repeated(app: Celery) -> None:
    runs = []

    @app.task(bind=True, time_limit=0.1, name="slow")
    def slow(self: Task) -> None:
        runs.append(1)
        asked = current_job().abort_signal
        assert asked is not None
        assert asked.wait(20)
        asked.raise_if_aborted()

    with working(app), pytest.raises(TimeLimitExceeded):
        slow.delay().get(timeout=20)
    assert runs == [1]


def test_waiting_for_a_result_inside_a_task_is_refused(app: Celery) -> None:
    one = make(app)

    @app.task(name="outer")
    def outer() -> Any:
        with pytest.raises(RuntimeError, match="within a task"):
            one.delay().get(timeout=5)
        return one.delay(1).get(timeout=20, disable_sync_subtasks=False)

    with working(app):
        assert outer.delay().get(timeout=20) == (1,)


def test_the_errback_of_a_chain_is_called_once_for_the_task_that_failed(app: Celery) -> None:
    called: list[Any] = []
    done = threading.Event()

    @app.task(name="boom")
    def boom(*args: Any) -> None:
        raise ValueError("boom")

    @app.task(name="errback")
    def errback(task_id: str) -> None:
        called.append(task_id)

    @app.task(name="last")
    def last() -> None:
        done.set()

    with working(app):
        result = chain(make(app).s(1), boom.s(), make(app).s(2)).on_error(errback.s()).apply_async()
        with pytest.raises(ValueError, match="boom"):
            result.get(timeout=20)
        app.windlass.sync.queue("celery")
        last.delay().get(timeout=20)
        counts = {}
        for _ in range(400):  # the errbacks come after the chain's own end
            counts = app.windlass.sync.queue("celery").get_job_counts()
            if not (counts[JobState.WAITING] or counts[JobState.ACTIVE] or counts[JobState.BLOCKED]):
                break
            threading.Event().wait(0.02)
    assert called == [result.parent.id]


def test_a_rejected_task_is_dropped_or_comes_back(app: Celery) -> None:
    runs: list[str] = []

    @app.task(name="picky", acks_late=True)
    def picky(requeue: bool) -> str:
        runs.append("run")
        if len(runs) < 2 or not requeue:
            raise Reject("not now", requeue=requeue)
        return "taken"

    with working(app):
        assert picky.delay(True).get(timeout=20) == "taken"
        dropped = picky.delay(False)
        assert dropped.get(timeout=20) is None
    assert dropped.state == "REJECTED"


def test_a_running_task_is_revoked_only_with_terminate(app: Celery) -> None:
    started, stop = threading.Event(), threading.Event()

    @app.task(name="long")
    def long() -> str:
        started.set()
        stop.wait(20)
        return "done"

    with working(app):
        first = long.delay()
        started.wait(20)
        first.revoke()
        stop.set()
        assert first.get(timeout=20) == "done"
        waiting = long.apply_async(countdown=3600)
        app.control.terminate([waiting.id])
        with pytest.raises(TaskRevokedError):
            waiting.get(timeout=20)


def test_a_task_called_as_a_function_raises_what_it_would_retry_for(app: Celery) -> None:
    @app.task(bind=True, name="direct")
    def direct(self: Task, exc: Exception | None = None) -> None:
        self.retry(exc=exc)

    with pytest.raises(KeyError):
        direct(KeyError("x"))
    with pytest.raises(Retry):
        direct()


def test_a_job_that_was_added_by_name_takes_the_options_of_its_task(app: Celery) -> None:
    @app.task(bind=True, name="shop.add", max_retries=None)
    def add(self: Task, a: int, b: int) -> int:
        if self.request.retries < 4:
            raise self.retry(countdown=0)
        return a + b

    job = app.windlass.sync.queue("celery").add("shop.add", [20, 22])  # as an import of old messages does
    with working(app):
        assert app.AsyncResult(job.id).get(timeout=20) == 42


def test_groups_and_chords_of_nothing(app: Celery) -> None:
    with working(app):
        assert group([]).apply_async().get(timeout=5) == []
        assert chord([], make(app).s()).apply_async().get(timeout=20) == ([],)


MODULE = """
from windlass.compat.celery import Celery

app = Celery("tasks", broker="{url}")
app.conf.beat_schedule = {{"beat": {{"task": "beat", "schedule": 0.2}}}}

@app.task(name="add")
def add(a, b):
    open("added", "w").write(str(a + b))

@app.task(name="beat")
def beat():
    open("beaten", "w").write("yes")
"""


@pytest.mark.parametrize("name", ["tasks", "tasks:app", "tasks:app.windlass"])
def test_the_worker_command_runs_the_tasks_and_the_schedule(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    (tmp_path / "tasks.py").write_text(MODULE.format(url=url))
    app = Celery("tasks", broker=url)
    sent = app.send_task("add", (1, 2))
    worker = WorkerProcess(tmp_path, url, name)
    try:
        assert sent.get(timeout=40) is None
        for _ in range(1000):
            if (tmp_path / "beaten").exists():
                break
            threading.Event().wait(0.02)
    finally:
        worker.clean_up()
        app.close()
    assert (tmp_path / "added").read_text() == "3"
    assert (tmp_path / "beaten").read_text() == "yes"
