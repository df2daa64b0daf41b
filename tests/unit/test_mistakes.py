"""Mistakes of newcomers, as one table: each answer says what is wrong, what is near, and what to do."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from windlass import RESULT, Windlass, Worker, chain, current_job
from windlass.backend.urls import register_scheme
from windlass.cli.main import tree

Mistake = Callable[[Windlass, Path], Awaitable[object]]
#: What was done wrong -> how, and words that the answer must have.
TABLE: dict[str, tuple[Mistake, tuple[str, ...]]] = {}


def answers(*words: str) -> Callable[[Mistake], Mistake]:
    """Put a mistake into the table, under its name."""

    def put(mistake: Mistake) -> Mistake:
        TABLE[mistake.__name__] = (mistake, words)
        return mistake

    return put


def task_of(app: Windlass) -> Any:
    @app.task(name="shop.send", queue="mail")
    async def send(to: str, copies: int = 1) -> None: ...

    return send


def loose_task_of(app: Windlass) -> Any:
    @app.task(name="shop.loose")
    async def loose(value) -> None: ...  # type: ignore[no-untyped-def]

    return loose


def command(*words: str) -> str:
    done = CliRunner().invoke(tree, words, prog_name="windlass")
    assert done.exit_code != 0
    raise SystemExit(" ".join(done.output.split()))


# --- where the jobs are ----------------------------------------------------------------------------------


@answers("postgres", "sqlite:///jobs.db", "valkey://host")
async def the_url_of_a_database_that_is_no_store(app: Windlass, folder: Path) -> None:
    Windlass("postgres://localhost/jobs")


@answers("did you mean redis://?")
async def a_misspelt_scheme(app: Windlass, folder: Path) -> None:
    Windlass("redsi://localhost")


@answers("three slashes")
async def a_file_after_two_slashes(app: Windlass, folder: Path) -> None:
    Windlass("sqlite://jobs.db")


@answers("its folder does not exist", "mkdir -p")
async def a_file_in_a_folder_that_is_not_there(app: Windlass, folder: Path) -> None:
    async with Windlass(f"sqlite:///{folder}/nowhere/jobs.db") as other:
        await other.queue("mail").add("x")


@answers("no answer from 127.0.0.1:1", "is the server running and the URL right?")
async def a_server_that_is_down(app: Windlass, folder: Path) -> None:
    async with Windlass("valkey://127.0.0.1:1?timeout=0.2") as other:
        await other.queue("mail").add("x")


@answers("no server accepts connections at 127.0.0.1:1", "start it, or check --url and $WINDLASS_URL")
async def a_command_on_a_server_that_is_down(app: Windlass, folder: Path) -> None:
    await asyncio.to_thread(command, "queues", "--url", "amqp://127.0.0.1:1/")


@answers("pip install 'windlass[amqp]'")
async def a_store_whose_extra_is_not_installed(app: Windlass, folder: Path) -> None:
    register_scheme("absent", "windlass_is_not_there", "windlass[amqp]")
    Windlass("absent://localhost")


@answers("there is no database at", "check --url or $WINDLASS_URL")
async def a_command_on_a_file_that_is_not_there(app: Windlass, folder: Path) -> None:
    await asyncio.to_thread(command, "queues", "--url", f"sqlite:///{folder}/jobs.db")


# --- arguments -------------------------------------------------------------------------------------------


@answers("argument 'copies' of task 'shop.send' must be int", "'two'")
async def an_argument_of_the_wrong_type(app: Windlass, folder: Path) -> None:
    await task_of(app).enqueue("ada", copies="two")


@answers("missing a required argument: 'to'", "(to: 'str', copies: 'int' = 1)")
async def a_missing_argument(app: Windlass, folder: Path) -> None:
    await task_of(app).enqueue()


@answers("job options go first: .options(delay=5).enqueue(...)")
async def an_option_among_the_arguments(app: Windlass, folder: Path) -> None:
    await task_of(app).enqueue("ada", delay=5)


@answers("queue cannot be given here", "app.queue(NAME).add(task.name, ...)")
async def another_queue_among_the_options(app: Windlass, folder: Path) -> None:
    await task_of(app).options(queue="other").enqueue("ada")


@answers("every cannot be given here", '@app.task(schedule={"every": 60})')
async def an_interval_as_an_option_of_a_task(app: Windlass, folder: Path) -> None:
    app.task(every=60)(command)  # type: ignore[call-overload]


@answers("is a method and cannot be a task", "no self", "use a function")
async def a_method_as_a_task(app: Windlass, folder: Path) -> None:
    class Shop:
        @app.task
        async def send(self, to: str) -> None: ...


@answers("an object cannot be stored", "or the id of what is stored elsewhere")
async def an_object_as_argument(app: Windlass, folder: Path) -> None:
    await loose_task_of(app).enqueue(object())


@answers("a function cannot be stored", "pass plain data")
async def a_function_as_argument(app: Windlass, folder: Path) -> None:
    await loose_task_of(app).enqueue(command)


@answers("the Django model Order cannot be stored", "pass its key (.pk)")
async def a_django_model_as_argument(app: Windlass, folder: Path) -> None:
    class Order:
        _meta = "options"
        pk = 7

    await loose_task_of(app).enqueue(Order())


@answers("must be annotated", "would arrive as str", "json+tagged")
async def a_type_that_an_untyped_parameter_would_lose(app: Windlass, folder: Path) -> None:
    await loose_task_of(app).enqueue(datetime(2026, 1, 2))


@answers("must be annotated", "a decimal.Decimal would arrive as str", "write value: decimal.Decimal")
async def a_decimal_for_an_untyped_parameter(app: Windlass, folder: Path) -> None:
    await loose_task_of(app).enqueue(Decimal("1.5"))


@answers("must be annotated", "a uuid.UUID would arrive as str", "write value: uuid.UUID")
async def a_uuid_for_an_untyped_parameter(app: Windlass, folder: Path) -> None:
    await loose_task_of(app).enqueue(UUID(int=7))


@answers("an int64 cannot be stored", "pass plain data")
async def a_numpy_value(app: Windlass, folder: Path) -> None:
    await loose_task_of(app).enqueue(type("int64", (), {"__module__": "numpy"})())


@answers("is RESULT, which only a step of a flow can take", "task.s(RESULT)")
async def the_result_of_a_step_where_none_is(app: Windlass, folder: Path) -> None:
    await loose_task_of(app).enqueue(RESULT)


@answers("missing a required argument: 'to'", "by RESULT, or by chain(..., pass_result=True)")
async def a_chain_that_should_pass_results(app: Windlass, folder: Path) -> None:
    send = task_of(app)
    await chain(send.s("ada"), send.s()).enqueue()


@answers("no NaN and no infinite numbers", "pass None or a text")
async def a_number_that_is_none(app: Windlass, folder: Path) -> None:
    await loose_task_of(app).enqueue(float("nan"))


@answers("store large data elsewhere and pass a reference")
async def two_megabytes(app: Windlass, folder: Path) -> None:
    await loose_task_of(app).enqueue("x" * 2_000_000)


# --- options ---------------------------------------------------------------------------------------------


@answers("'delay'", "await task.enqueue(...)", "task.sync.enqueue(...)")
async def delay_of_celery(app: Windlass, folder: Path) -> None:
    task_of(app).delay("ada")


@answers("'apply_async'", ".options(delay=5, ...).enqueue(...)")
async def apply_async_of_celery(app: Windlass, folder: Path) -> None:
    task_of(app).apply_async(("ada",))


@answers("'send'", "await task.enqueue(...)")
async def send_of_dramatiq(app: Windlass, folder: Path) -> None:
    task_of(app).send("ada")


@answers("'send_with_options'", ".options(delay=5, ...).enqueue(...)")
async def send_with_options_of_dramatiq_after_options(app: Windlass, folder: Path) -> None:
    task_of(app).options(priority=3).send_with_options(args=("ada",))


@answers("'delay'", "task.sync.enqueue(...)")
async def delay_of_celery_without_an_event_loop(app: Windlass, folder: Path) -> None:
    task_of(app).sync.delay("ada")


@answers("a step has no 'apply_async'", "await step.enqueue()")
async def apply_async_of_a_chain(app: Windlass, folder: Path) -> None:
    step: Any = chain(task_of(app).s("ada"))
    step.apply_async()


@answers("a job has no 'get'", "await job.result(timeout=10)")
async def get_of_a_job(app: Windlass, folder: Path) -> None:
    job: Any = await task_of(app).enqueue("ada")
    job.get(timeout=10)


@answers("a queue has no 'enqueue'", "queue.add(", "await task.enqueue(")
async def enqueue_of_rq(app: Windlass, folder: Path) -> None:
    queue: Any = app.queue("mail")
    queue.enqueue(command, "ada")


@answers("an app has no 'send_task'", "app.queue(", ".add(")
async def send_task_of_celery(app: Windlass, folder: Path) -> None:
    anything: Any = app
    anything.send_task("shop.send")


@answers("did you mean 'delay'?")
async def countdown_of_celery(app: Windlass, folder: Path) -> None:
    task_of(app).options(countdown=3)


@answers("did you mean 'max_attempts'?")
async def attempts_by_another_name(app: Windlass, folder: Path) -> None:
    task_of(app).options(max_retries=3)


@answers("did you mean 'max_attempts'?")
async def attempts_by_half_of_the_name(app: Windlass, folder: Path) -> None:
    task_of(app).options(attempts=3)


@answers("did you mean 'max_attempts'?")
async def a_misspelt_option(app: Windlass, folder: Path) -> None:
    task_of(app).options(max_atempts=3)


@answers("did you mean 'concurrency'?")
async def a_misspelt_option_of_a_worker(app: Windlass, folder: Path) -> None:
    wrong: dict[str, Any] = {"concurency": 5}
    Worker("mail", url_or_app=app, **wrong)


@answers("on_failure must be one of fail, ignore, continue")
async def a_misspelt_value(app: Windlass, folder: Path) -> None:
    task_of(app).options(on_failure="explode")


@answers("a datetime with a timezone", "datetime.now(UTC)")
async def a_naive_time(app: Windlass, folder: Path) -> None:
    await task_of(app).options(run_at=datetime(2030, 1, 1)).enqueue("ada")


@answers("delay must be a number of seconds or a timedelta", "'5m'")
async def a_delay_in_words(app: Windlass, folder: Path) -> None:
    await task_of(app).options(delay="5m").enqueue("ada")


@answers("delay must be between 0 seconds")
async def a_negative_delay(app: Windlass, folder: Path) -> None:
    await task_of(app).options(delay=-5).enqueue("ada")


@answers("did you mean 'exponential'?")
async def a_misspelt_backoff(app: Windlass, folder: Path) -> None:
    await task_of(app).options(backoff="expo").enqueue("ada")


@answers("job_id must be", "unique=...")
async def a_colon_in_an_id(app: Windlass, folder: Path) -> None:
    await task_of(app).options(job_id="order:7").enqueue("ada")


# --- tasks -----------------------------------------------------------------------------------------------


@answers("five fields", "Bad minute")
async def a_cron_minute_of_61(app: Windlass, folder: Path) -> None:
    app.task(cron="61 * * * *")


@answers("no month that it names has such a day")
async def the_thirtieth_of_february(app: Windlass, folder: Path) -> None:
    app.task(cron="0 0 30 2 *")


@answers("did you mean 'Europe/Berlin'?")
async def a_misspelt_time_zone(app: Windlass, folder: Path) -> None:
    app.task(cron="0 7 * * *", timezone="Europe/Berln")


@answers("missing a required argument: 'to'", "give each parameter a default, or use app.schedule(")
async def a_schedule_for_a_task_that_needs_an_argument(app: Windlass, folder: Path) -> None:
    @app.task(cron="0 7 * * *")
    async def send(to: str) -> None: ...


@answers("two tasks named", "give one of them another name: @app.task(name=...)")
async def two_tasks_of_one_name(app: Windlass, folder: Path) -> None:
    task_of(app)
    app.task(name="shop.send")(command)


@answers("is defined inside another function", "move it to the top of its module")
async def a_local_function_in_a_process(app: Windlass, folder: Path) -> None:
    @app.task(isolation="process")
    def local() -> None: ...


@answers("is a generator and cannot be a task", "return a value")
async def an_async_generator_as_task(app: Windlass, folder: Path) -> None:
    @app.task
    async def parts() -> Any:
        yield 1


@answers("await the async verb instead of .sync")
async def sync_inside_async_code(app: Windlass, folder: Path) -> None:
    task_of(app).sync.enqueue("ada")


@answers("inline")
async def the_current_job_outside_of_a_task(app: Windlass, folder: Path) -> None:
    current_job()


# --- commands --------------------------------------------------------------------------------------------


@answers("Did you mean 'clear'?")
async def purge(app: Windlass, folder: Path) -> None:
    command("purge", "mail")


@answers("Did you mean 'jobs:app'?")
async def a_dot_where_a_colon_belongs(app: Windlass, folder: Path) -> None:
    (folder / "jobs.py").write_text("from windlass import Windlass\napp = Windlass('memory://')\n")
    command("worker", "jobs.app")


@answers("'jobs' has no 'ap'", "Did you mean 'jobs:app'?")
async def a_misspelt_app(app: Windlass, folder: Path) -> None:
    (folder / "jobs.py").write_text("from windlass import Windlass\napp = Windlass('memory://')\n")
    command("worker", "jobs:ap")


@answers("Importing 'jobs' failed: NameError", "(jobs.py, line 1)", "--debug shows the traceback")
async def a_module_that_cannot_be_imported(app: Windlass, folder: Path) -> None:
    (folder / "jobs.py").write_text("oops\n")
    command("worker", "jobs:app")


@answers("several apps in 'jobs'; choose one: jobs:first, jobs:second")
async def a_module_with_two_apps(app: Windlass, folder: Path) -> None:
    text = "from windlass import Windlass\nfirst = Windlass('memory://')\nsecond = Windlass('memory://')\n"
    (folder / "jobs.py").write_text(text)
    command("worker", "jobs")


@answers("callable with a job, such as a function (an app goes into url_or_app=)")
async def an_app_where_a_handler_belongs(app: Windlass, folder: Path) -> None:
    wrong: Any = app
    Worker("mail", wrong)


@answers("a name, a list of names", "(an app goes into url_or_app=)")
async def an_app_where_queues_belong(app: Windlass, folder: Path) -> None:
    wrong: Any = app
    Worker(wrong)


@answers("task must be a function", "@app.task(name=..., queue=...)")
async def a_name_where_a_function_belongs(app: Windlass, folder: Path) -> None:
    wrong: Any = "mail"
    app.task(wrong)


@answers("there is no queue 'mial' in this store", "did you mean 'mail'?")
async def a_misspelt_queue(app: Windlass, folder: Path) -> None:
    async with Windlass(f"sqlite:///{folder}/jobs.db") as other:
        await other.queue("mail").add("send")
    await asyncio.to_thread(command, "jobs", "mial", "--url", f"sqlite:///{folder}/jobs.db")


@answers("Delete 1 jobs of queue mail (1 waiting)?", "pass --yes")
async def drain_for_running_what_waits(app: Windlass, folder: Path) -> None:
    async with Windlass(f"sqlite:///{folder}/jobs.db") as other:
        await other.queue("mail").add("send")
    await asyncio.to_thread(command, "drain", "mail", "--url", f"sqlite:///{folder}/jobs.db")


@answers("windlass doctor")
async def no_worker_runs(app: Windlass, folder: Path) -> None:
    await (await task_of(app).enqueue("ada")).result(timeout=0.01)


@answers("name the module instead: 'jobs'")
async def a_path_where_a_module_belongs(app: Windlass, folder: Path) -> None:
    command("worker", "jobs.py")


@answers("Name the app, such as shop.jobs:app", "$WINDLASS_WORKER_APP", "[tool.windlass] app")
async def a_worker_without_an_app(app: Windlass, folder: Path) -> None:
    command("worker")


@answers("name the module instead: 'jobs:app'")
async def a_path_and_an_app(app: Windlass, folder: Path) -> None:
    command("worker", "jobs.py:app")


@pytest.mark.parametrize("name", TABLE)
async def test_a_mistake_is_answered_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for module in ("jobs",):
        monkeypatch.delitem(sys.modules, module, raising=False)
    mistake, words = TABLE[name]
    async with Windlass("memory://") as app:
        with pytest.raises((Exception, SystemExit)) as caught:
            await mistake(app, tmp_path)
    said = " ".join(str(caught.value).split())
    assert [word for word in words if word not in said] == [], said


async def test_a_task_that_the_worker_does_not_know_is_logged_with_a_near_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with Windlass("memory://") as app:
        task_of(app)
        await app.queue("mail").add("send", {"to": "ada"})
        logged = asyncio.Event()
        noticed = logging.Handler()
        noticed.emit = lambda record: logged.set()  # type: ignore[method-assign]
        logging.getLogger("windlass.worker").addHandler(noticed)
        try:
            async with Worker("mail", url_or_app=app):
                await logged.wait()
        finally:
            logging.getLogger("windlass.worker").removeHandler(noticed)
    assert "did you mean 'shop.send'?" in caplog.text
    assert "python -m package.module" in caplog.text


async def test_a_worker_without_anything_to_run_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with Windlass("memory://") as app:
        await Worker("mail", url_or_app=app).drain()
    assert "no handler and its app no tasks" in caplog.text


async def test_an_attribute_whose_reading_fails_shows_its_own_error(app_of_a_broken_codec: Windlass) -> None:
    job = await app_of_a_broken_codec.queue("mail").add("send", {"to": "ada"})
    with pytest.raises(AttributeError, match="the codec's own mistake"):
        _ = (await app_of_a_broken_codec.queue("mail").get_job(job.id)).data  # type: ignore[union-attr]


@pytest.fixture
async def app_of_a_broken_codec() -> AsyncIterator[Windlass]:
    class Broken:
        name = "broken"

        def encode(self, value: object) -> bytes:
            return b"x"

        def decode(self, data: bytes) -> object:
            raise AttributeError("the codec's own mistake")

    async with Windlass("memory://", codec=Broken()) as app:
        yield app


def test_an_awaitable_that_was_forgotten_is_named_by_python(app_in_memory: Windlass) -> None:
    with pytest.warns(RuntimeWarning, match=r"coroutine 'Task\.enqueue' was never awaited"):
        task_of(app_in_memory).enqueue("ada")
        gc.collect()


@pytest.fixture
def app_in_memory() -> Windlass:
    return Windlass("memory://")


SCRIPT = """
from windlass import Windlass
app = Windlass("memory://")
@app.task
def hi(): ...
print(hi.name)
"""


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["pkg/mail.py"], "pkg.mail.hi"),
        (["pkg/inner/mail.py"], "pkg.inner.mail.hi"),
        (["-m", "pkg.mail"], "pkg.mail.hi"),
        (["mail.py"], "mail.hi"),
        (["plain/mail.py"], "mail.hi"),
    ],
)
def test_a_script_names_its_tasks_as_the_worker_does(tmp_path: Path, words: list[str], name: str) -> None:
    for folder in ("pkg/inner", "plain"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("pkg/__init__.py", "pkg/inner/__init__.py"):
        (tmp_path / file).touch()
    for file in ("mail.py", "pkg/mail.py", "pkg/inner/mail.py", "plain/mail.py"):
        (tmp_path / file).write_text(SCRIPT)
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == name


def test_a_script_in_the_folder_of_a_package_is_named_without_the_package(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "mail.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "mail.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "mail.hi"
