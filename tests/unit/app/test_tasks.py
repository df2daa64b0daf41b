"""Tasks: how they are made, named, checked and called."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.unit.app.support import work_off
from windlass import ConfigError, JobFailedError, JobOptions, JobState, Queue, Windlass, Worker, current_job


def _app(**settings: Any) -> Windlass:
    return Windlass("memory://tasks", **settings)


# --- forms of the decorator ------------------------------------------------------------------------------


async def test_a_bare_decorator_makes_a_task_of_the_default_queue() -> None:
    app = _app()

    @app.task
    async def greet(name: str) -> str:
        """Say hello."""
        return f"hello {name}"

    assert greet.queue_name == "default"
    assert greet.__name__ == "greet"
    assert greet.__doc__ == "Say hello."
    assert greet.name.endswith("greet")
    assert app.tasks == {greet.name: greet}
    assert await greet("ada") == "hello ada"


def test_a_plain_function_is_called_as_it_is() -> None:
    app = _app()

    @app.task(queue="sums")
    def add(a: int, b: int = 1) -> int:
        return a + b

    assert add(2, b=3) == 5
    assert add.queue_name == "sums"


def test_a_task_can_be_given_a_name_with_colons_and_spaces() -> None:
    app = _app()
    task = app.task(name="mail:send now")(lambda: None)
    assert task.name == "mail:send now"


async def test_parameters_may_have_any_name(app: Windlass) -> None:
    @app.task(name="fetch")
    async def fetch(url: str, timeout: int = 1, self: str = "", task: str = "") -> list[object]:
        return [url, timeout, self, task]

    async with Worker("default", url_or_app=app):
        assert await fetch.call("x", timeout=5) == ["x", 5, "", ""]
        assert await fetch.options(tags=["a"]).call("x", self="me", task="t") == ["x", 1, "me", "t"]
        job = await fetch.enqueue("x", timeout=5, self="me", task="t")
        assert await job.result(timeout=10) == ["x", 5, "me", "t"]
    assert await fetch("x", self="me") == ["x", 1, "me", ""]


def test_two_functions_may_not_share_a_name() -> None:
    app = _app()
    app.task(name="twice")(lambda: 1)
    with pytest.raises(ConfigError, match="two tasks named 'twice'"):
        app.task(name="twice")(lambda x: x)


def test_the_same_function_may_be_registered_again() -> None:
    app = _app()

    def work() -> None: ...

    app.task(name="work")(work)
    again = app.task(name="work", queue="other")(work)
    assert app.tasks["work"] is again


def test_a_callable_object_can_be_a_task() -> None:
    class Doubler:
        def __call__(self, value: int) -> int:
            return 2 * value

    task = _app().task(name="double")(Doubler())
    assert task(4) == 8


def test_a_partial_can_be_a_task() -> None:
    def power(base: int, exponent: int) -> int:
        return int(base**exponent)

    task = _app().task(name="square")(functools.partial(power, exponent=2))
    assert task(5) == 25


@pytest.mark.parametrize("what", [3, "text", None])
def test_only_something_callable_can_be_a_task(what: Any) -> None:
    with pytest.raises(ConfigError, match="task must be a function"):
        _app().task(name="x")(what)


# --- options ---------------------------------------------------------------------------------------------


@pytest.mark.feature("A38")
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_atempts": 3}, "did you mean 'max_attempts'"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"max_attempts": True}, "max_attempts must be"),
        ({"priority": 2**20}, "priority must be a whole number"),
        ({"priority": 1.5}, "priority must be a whole number"),
        ({"timeout": -1}, "timeout must be between"),
        ({"timeout": 0}, "timeout must be between"),
        ({"timeout": "30"}, "timeout must be a number of seconds or a timedelta"),
        ({"delay": -1}, "delay must be between"),
        ({"delay": float("nan")}, "delay must be a number"),
        ({"lease": 0.5}, "lease must be between 1"),
        ({"backoff": {"tipe": "fixed"}}, "did you mean 'type'"),
        ({"backoff": {"type": "fixed", "jitter": 2}}, "backoff.jitter must be between 0 and 1"),
        ({"backoff": {"delay": -1}}, "backoff.delay must be"),
        ({"keep_completed": "all"}, "keep_completed must be True, False, a count"),
        ({"keep_failed": {"ages": 3}}, "did you mean 'age'"),
        ({"tags": "urgent"}, "tags must be a list"),
        ({"tags": [""]}, "tags must be texts"),
        ({"trace": {"a": 1}}, "trace must be a mapping of text to text"),
        ({"job_id": "a:b"}, "job_id must be"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at must be a datetime with a timezone"),
        ({"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 3}, "give run_at or delay, not both"),
        ({"isolation": "fork"}, "isolation must be one of"),
        ({"queue": "a b"}, "queue must be 1 to 128"),
        ({"name": "line\nbreak"}, "name must be 1 to 256 printable"),
        ({"backtrace": -1}, "backtrace must be"),
        ({"expires_in": 0}, "expires_in must be"),
        ({"max_stalls": -1}, "max_stalls must be"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_bad_options_are_refused_where_the_task_is_defined(options: dict[str, Any], complaint: str) -> None:
    app = _app()
    with pytest.raises(ConfigError) as refused:
        app.task(**options)(lambda: None)
    assert complaint in str(refused.value)
    assert app.tasks == {}


@pytest.mark.feature("A38")
def test_options_go_from_the_general_to_the_special() -> None:
    app = _app(defaults={"max_attempts": 7, "priority": 1, "timeout": 10, "tags": ["app"]})

    @app.task(priority=2, timeout=20)
    def work() -> None: ...

    assert work.job_options.max_attempts == 7
    assert work.job_options.priority == 2
    special = work.options(timeout=30)
    assert special.job_options.max_attempts == 7
    assert special.job_options.timeout == 30
    assert special.options(max_attempts=1).job_options.timeout == 30
    assert work.job_options.timeout == 20, "the task itself is unchanged"


@pytest.mark.feature("A38")
async def test_a_queues_defaults_stand_between_the_app_and_the_call(app: Windlass) -> None:
    app.defaults = JobOptions(max_attempts=7, priority=1)
    queue = Queue("mail", app, defaults={"priority": 2, "timeout": 9})
    plain = await queue.add("a")
    special = await queue.add("a", priority=3)
    assert (plain.max_attempts, plain.priority, plain.options.timeout_ms) == (7, 2, 9_000)
    assert (special.max_attempts, special.priority, special.options.timeout_ms) == (7, 3, 9_000)


@pytest.mark.feature("A38")
def test_a_queues_defaults_are_checked_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="did you mean 'priority'"):
        Queue("mail", _app(), defaults={"prioritty": 2})
    with pytest.raises(ConfigError, match="timeout must be"):
        Queue("mail", _app(), defaults={"timeout": -2})


@pytest.mark.feature("A38")
def test_an_apps_defaults_are_checked_when_it_is_made() -> None:
    with pytest.raises(ConfigError, match="keep_failed"):
        _app(defaults={"keep_failed": "never"})


def test_a_run_at_overrules_a_general_delay_and_the_other_way_round() -> None:
    when = datetime(2030, 1, 1, tzinfo=UTC)
    late = JobOptions(delay=60)
    assert late.merged({"run_at": when}).delay == 0
    assert JobOptions(run_at=when).merged({"delay": 5}).run_at is None


def test_durations_may_be_timedeltas() -> None:
    stored = JobOptions(timeout=timedelta(minutes=2), keep_completed=timedelta(days=1)).stored()
    assert stored.timeout_ms == 120_000
    assert stored.keep_completed.age_ms == 86_400_000


# --- enqueue: arguments are checked ----------------------------------------------------------------------


@pytest.mark.feature("W4")
@pytest.mark.parametrize(
    ("args", "kwargs", "complaint"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"subjet": "x"}, "subjet"),
        ((5,), {}, "argument 'to'"),
        (("a",), {"count": "5"}, "argument 'count'"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'"),
    ],
)
async def test_wrong_arguments_are_refused_before_anything_is_stored(
    args: tuple[Any, ...], kwargs: dict[str, Any], complaint: str
) -> None:
    app = _app()

    @app.task(queue="checked")
    async def send(to: str, count: int = 1) -> None: ...

    with pytest.raises(ConfigError) as refused:
        await send.enqueue(*args, **kwargs)
    assert complaint in str(refused.value)
    assert await app.queue("checked").count() == 0


async def test_arguments_that_cannot_be_stored_are_refused() -> None:
    app = _app()

    @app.task
    async def work(value: Any) -> None: ...

    with pytest.raises(ConfigError, match="arguments cannot be stored as json"):
        await work.enqueue(object())


# --- arguments come as their annotations say -------------------------------------------------------------


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int


class Order(msgspec.Struct):
    id: UUID
    total: Decimal


@pytest.mark.feature("W4")
async def test_arguments_are_decoded_to_the_annotations(app: Windlass) -> None:
    seen: list[Any] = []

    @app.task
    async def take(
        when: datetime,
        day: date,
        point: Point,
        order: Order,
        colour: Colour,
        blob: bytes,
        spans: list[timedelta],
        maybe: Point | None = None,
        *,
        anything: Any = None,
    ) -> None:
        seen.append((when, day, point, order, colour, blob, spans, maybe, anything))

    given = (
        datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        date(2024, 2, 29),
        Point(1, 2),
        Order(UUID(int=5), Decimal("1.10")),
        Colour.RED,
        b"\x00\xff",
        [timedelta(seconds=90)],
    )
    job = await take.enqueue(*given, maybe=Point(3, 4), anything={"k": [1]})
    await work_off(app)
    assert await job.get_state() is JobState.COMPLETED
    assert seen == [(*given, Point(3, 4), {"k": [1]})]


@pytest.mark.feature("W4", "C17")
async def test_a_stored_argument_that_does_not_fit_fails_the_job_without_retries(app: Windlass) -> None:
    @app.task(name="add", max_attempts=5)
    async def add(a: int, b: int) -> int:
        return a + b

    job = await app.queue("default").add("add", {"a": 1, "b": "two"})
    await work_off(app)
    with pytest.raises(JobFailedError) as failed:
        await job.result()
    assert failed.value.reason == "unrecoverable"
    assert failed.value.error_class == "ArgumentError"
    assert "'b'" in failed.value.error_message


@pytest.mark.feature("Y1")
async def test_call_gives_the_result_as_its_annotation_says(app: Windlass) -> None:
    from tests.unit.app.support import working

    @app.task
    async def move(point: Point) -> Point:
        return Point(point.x + 1, point.y)

    async with working(app):
        assert await move.call(Point(1, 1)) == Point(2, 1)


@pytest.mark.feature("Y1")
async def test_a_jobs_result_is_what_its_task_is_annotated_with(app: Windlass) -> None:
    """``enqueue`` promises ``Job[Point]``: its ``result()`` must be a Point, as that of ``call`` is."""
    from tests.unit.app.support import working

    @app.task
    async def move(point: Point) -> Point:
        return Point(point.x + 1, point.y)

    async with working(app):
        job = await move.enqueue(Point(1, 1))
        assert await job.result() == Point(2, 1)


@pytest.mark.feature("J10", "Y6")
async def test_async_and_plain_functions_run_in_one_worker(app: Windlass) -> None:
    import threading

    @app.task
    async def on_loop() -> str:
        return threading.current_thread().name

    @app.task
    def in_thread() -> str:
        return threading.current_thread().name

    first, second = await on_loop.enqueue(), await in_thread.enqueue()
    await work_off(app)
    assert await first.result() == threading.current_thread().name
    assert (await second.result()).startswith("windlass-job")


async def test_current_job_is_the_job_in_async_and_plain_tasks(app: Windlass) -> None:
    @app.task
    async def one() -> str:
        return current_job().id

    @app.task
    def two() -> str:
        return current_job().id

    jobs = [await one.enqueue(), await two.enqueue()]
    await work_off(app)
    assert [await job.result() for job in jobs] == [job.id for job in jobs]


def test_current_job_outside_of_a_handler_says_so() -> None:
    with pytest.raises(RuntimeError, match="only inside a running task"):
        current_job()


def test_an_unreadable_url_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="memory://"):
        Windlass("nosuch://somewhere")
    with pytest.raises(ConfigError, match="url must begin with the kind of store"):
        Windlass("just-a-path.db")
    with pytest.raises(ConfigError, match="a URL or a Windlass app"):
        Queue("mail", 5)  # type: ignore[arg-type]


@pytest.mark.feature("A4")
async def test_the_app_gives_any_queue_by_name_without_registration(app: Windlass) -> None:
    job = await app.queue("never-seen-before").add("work", {"a": 1})
    assert job.queue_name == "never-seen-before"
    assert app.queue("never-seen-before") is app.queue("never-seen-before")
    assert [info.name for info in await app.queues()] == ["never-seen-before"]


@pytest.mark.feature("A4")
@pytest.mark.parametrize("name", ["", "a b", "a/b", "a{b}", "-a", "x" * 129, "ä", None, 3])
def test_a_name_that_cannot_be_a_queue_is_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="queue must be"):
        _app().queue(name)
