"""Mistakes of newcomers, as one table: each answer says what is wrong, what is near, and what to do."""

from __future__ import annotations

import asyncio
import gc
import importlib
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

from windlass import RESULT, ConfigError, Queue, Suspend, Windlass, Worker, chain, current_job, group
from windlass.backend.urls import register_scheme
from windlass.cli.main import tree
from windlass.cli.worker import misspelt_queues

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


@answers("url must begin with the kind of store", "valkey://localhost:6379")
async def a_host_without_a_scheme(app: Windlass, folder: Path) -> None:
    Windlass("localhost:6379")


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


@answers("there is no database at", "check --url or $WINDLASS_URL")
async def a_pipeline_from_a_file_that_is_not_there(app: Windlass, folder: Path) -> None:
    url = f"sqlite:///{folder}/jobs.db"
    await asyncio.to_thread(command, "pipeline", "run", "--url", url, "--lake", f"{folder}/lake")


@answers("there is no store at", "check --url or $WINDLASS_URL")
async def a_replay_into_a_folder_that_is_not_there(app: Windlass, folder: Path) -> None:
    replay = ("pipeline", "replay", "--lake", f"{folder}/lake", "--where", "true")
    await asyncio.to_thread(command, *replay, "--url", f"file://{folder}/jobs")


@answers("the pipeline is not installed", "pip install 'windlass[spark]'")
async def a_pipeline_without_its_packages(app: Windlass, folder: Path) -> None:
    async with Windlass(f"sqlite:///{folder}/jobs.db") as other:
        await other.queue("mail").add("send")
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "pyspark", None)
        for name in [name for name in sys.modules if name.startswith(("pyspark.", "windlass.pipeline"))]:
            patched.delitem(sys.modules, name)
        url = f"sqlite:///{folder}/jobs.db"
        await asyncio.to_thread(command, "pipeline", "run", "--url", url, "--lake", f"{folder}/lake")


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


@answers("bind cannot be given here", "current_job()")
async def bind_of_celery(app: Windlass, folder: Path) -> None:
    app.task(bind=True)(command)  # type: ignore[call-overload]


@answers("autoretry_for cannot be given here", "every exception is retried", "max_attempts=")
async def autoretry_for_of_celery(app: Windlass, folder: Path) -> None:
    app.task(autoretry_for=(OSError,))(command)  # type: ignore[call-overload]


@answers("rate_limit cannot be given here", "set_global_rate_limit((10, 60))")
async def rate_limit_of_celery(app: Windlass, folder: Path) -> None:
    app.task(rate_limit="10/m")(command)  # type: ignore[call-overload]


@answers("tz cannot be given here", 'timezone="Europe/Berlin"')
async def a_time_zone_by_half_of_the_name(app: Windlass, folder: Path) -> None:
    app.task(cron="0 7 * * *", tz="UTC")(command)  # type: ignore[call-overload]


@answers("did you mean 'backoff'?")
async def default_retry_delay_of_celery(app: Windlass, folder: Path) -> None:
    app.task(default_retry_delay=5)(command)  # type: ignore[call-overload]


@answers("an app has no 'run'", "windlass worker MODULE:APP")
async def run_of_an_app(app: Windlass, folder: Path) -> None:
    app.run()  # type: ignore[attr-defined]


@answers("is a method and cannot be a task", "no self", "use a function")
async def a_method_as_a_task(app: Windlass, folder: Path) -> None:
    class Shop:
        @app.task
        async def send(self, to: str) -> None: ...


@answers(
    "hook must be an async function of (subject, proceed)", "or a generator that yields once, of (subject)"
)
async def a_hook_without_proceed(app: Windlass, folder: Path) -> None:
    @app.around_execute
    async def hook(job: Any) -> None: ...


@answers("or a generator that yields once, of (subject)")
async def the_class_of_a_middleware(app: Windlass, folder: Path) -> None:
    class Logged:
        def execute(self, job: Any) -> Any:
            yield

    app.use(Logged)


@answers("ended must be a function of (job, end)")
async def a_middleware_that_is_not_told_how_a_run_ended(app: Windlass, folder: Path) -> None:
    class Logged:
        def ended(self, job: Any) -> None: ...

    app.use(Logged())


@answers("on_error must be a function of (job, error, final)")
async def an_error_hook_without_final(app: Windlass, folder: Path) -> None:
    @app.on_error
    def report(job: Any, error: BaseException) -> None: ...


@answers("on_death must be a function of (job, error)")
async def a_death_hook_with_final(app: Windlass, folder: Path) -> None:
    @app.on_death
    def report(job: Any, error: BaseException, final: bool) -> None: ...


@answers("carry must be a context variable", "ContextVar('tenant')", "got 'tenant'")
async def the_name_of_a_context_variable(app: Windlass, folder: Path) -> None:
    app.carry("tenant")  # type: ignore[arg-type]


@answers("lifespan must be an async generator of one parameter, the app")
async def a_lifespan_without_the_app(app: Windlass, folder: Path) -> None:
    @app.lifespan
    async def resources() -> AsyncIterator[None]:
        yield


@answers("handler must be a function of one parameter, the job")
async def a_handler_of_bullmq_with_a_token(app: Windlass, folder: Path) -> None:
    async def handle(job: Any, token: str) -> None: ...

    Worker("mail", handle, url_or_app=app)  # type: ignore[arg-type]


@answers("task 'shop.index' must be a function of one parameter, the list")
async def a_batch_of_two_parameters(app: Windlass, folder: Path) -> None:
    @app.task(name="shop.index", batch=10)  # type: ignore[arg-type]
    async def index(texts: list[str], language: str) -> None: ...


@answers("each job needs its own id: pass job_id with a single job", "use unique")
async def one_id_for_all_jobs_of_a_task(app: Windlass, folder: Path) -> None:
    app.task(name="shop.nightly", job_id="nightly")(command)


@answers("each job needs its own id: pass job_id with a single job")
async def one_id_for_all_jobs_of_a_queue(app: Windlass, folder: Path) -> None:
    Queue("mail", app, defaults={"job_id": "x"})


@answers("timezone needs cron", 'schedule={"cron": "0 7 * * *", "timezone": ...}')
async def a_time_zone_beside_a_schedule(app: Windlass, folder: Path) -> None:
    app.task(schedule={"cron": "0 7 * * *"}, timezone="Europe/Berlin")(command)


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


@answers("the .sync of a step has no 'apply_async'", "step.sync.enqueue()")
async def apply_async_of_a_chain_without_an_event_loop(app: Windlass, folder: Path) -> None:
    step: Any = chain(task_of(app).s("ada"))
    step.sync.apply_async()


@answers("RESULT must be a whole argument of a step", "task.s(RESULT)")
async def the_result_of_a_step_inside_an_argument(app: Windlass, folder: Path) -> None:
    loose = loose_task_of(app)
    await chain(loose.s(1), loose.s({"value": RESULT})).enqueue()


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


@answers("opts cannot be given here", "delay=5")
async def opts_of_bullmq(app: Windlass, folder: Path) -> None:
    await app.queue("mail").add("send", {"to": "ada"}, opts={"delay": 5})  # type: ignore[call-arg]


@answers("did you mean 'url_or_app'?")
async def the_app_of_a_worker_by_half_of_the_name(app: Windlass, folder: Path) -> None:
    Worker("mail", app=app)  # type: ignore[call-arg]


@answers("timeout must be a number of seconds", "got '1h'")
async def a_suspension_for_a_text(app: Windlass, folder: Path) -> None:
    raise Suspend("approved", timeout="1h")  # type: ignore[arg-type]


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


@answers("Write the app without -A: windlass worker MODULE:APP")
async def the_app_option_of_celery(app: Windlass, folder: Path) -> None:
    command("worker", "-A", "shop")


@answers("flow must be steps", "unpack a list of steps: group(*steps)")
async def a_list_in_a_group(app: Windlass, folder: Path) -> None:
    steps: Any = [task_of(app).s("ada")]
    group(steps)


@answers("flow must be steps", "a task becomes a step by task.s(...)")
async def a_task_in_a_chain(app: Windlass, folder: Path) -> None:
    chain(task_of(app))


@answers("flow must be steps", "task(...) runs the task here and now")
async def a_result_in_a_chain(app: Windlass, folder: Path) -> None:
    wrong: Any = 7
    chain(wrong, task_of(app).s("ada"))


@answers("a step has no 'result'", "await (await step.enqueue()).result(timeout=10)")
async def the_result_of_a_chain_that_was_not_added(app: Windlass, folder: Path) -> None:
    chain(task_of(app).s("ada")).result()  # type: ignore[attr-defined]


@answers("There is no command 'version'", "--version")
async def version_as_a_command(app: Windlass, folder: Path) -> None:
    command("version")


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


async def test_a_burst_that_waits_for_a_paused_queue_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with Windlass("memory://") as app:
        task_of(app)
        queue = app.queue("mail")
        await queue.pause()
        job = await queue.add("shop.send", {"to": "ada"})
        logged = asyncio.Event()
        noticed = logging.Handler()
        noticed.emit = lambda record: logged.set()  # type: ignore[method-assign]
        logging.getLogger("windlass.worker").addHandler(noticed)
        drained = asyncio.create_task(Worker("mail", url_or_app=app).drain())
        try:
            await asyncio.wait_for(logged.wait(), 10)
        finally:
            logging.getLogger("windlass.worker").removeHandler(noticed)
            await queue.resume()
            await drained
        assert await job.get_state() == "completed"
    assert "waiting for the jobs of queue mail, which is paused: windlass resume mail" in caplog.text


async def test_a_worker_without_anything_to_run_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with Windlass("memory://") as app:
        await Worker("mail", url_or_app=app).drain()
    assert "no handler and its app no tasks" in caplog.text


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("windlass.contrib.fastapi", "fastapi", "fastapi"),
        ("windlass.contrib.starlette", "starlette.authentication", "starlette"),
        ("windlass.contrib.flask", "flask", "flask"),
    ],
)
def test_an_integration_whose_extra_is_not_installed_says_so(
    module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(ConfigError, match=rf"pip install 'windlass\[{extra}\]'"):
        importlib.import_module(module)


def test_a_worker_is_told_that_it_serves_a_misspelt_queue(app_in_memory: Windlass) -> None:
    task_of(app_in_memory)
    assert misspelt_queues(app_in_memory, ["mail"]) == []
    assert misspelt_queues(app_in_memory, ["images"]) == []
    (warning,) = misspelt_queues(app_in_memory, ["mial"])
    assert "no task belongs to queue 'mial' (did you mean 'mail'?)" in warning


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
