"""``windlass worker``: runs the tasks of an app."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import click

from windlass.cli.app_loading import LoadError, add_current_folder, load_app
from windlass.cli.banner import announce
from windlass.cli.output import Out
from windlass.cli.process_supervisor import INTERRUPTED, ProcessPlan, ProcessSupervisor
from windlass.cli.stop_signals import Stopper
from windlass.cli.store_commands import carry_out, examples_epilog, loop_factory, url_option
from windlass.cli.values import DURATION, parse_duration
from windlass.cli.worker_settings import ENVIRONMENT, ConfiguredCommand, misspelt_variables
from windlass.core.limit_rules import to_rate
from windlass.core.option_values import nearest
from windlass.errors import ClosedError
from windlass.telemetry import logs
from windlass.worker.options import WorkerOptions

if TYPE_CHECKING:
    from windlass.api.app import Windlass
    from windlass.worker import QueueSpec, Worker

log = logging.getLogger("windlass.cli")

#: How long to wait for hanging threads at the end, before the process exits without them.
_EXIT_SECONDS = 2.0
#: How long closing the store may take after the worker has stopped.
_CLOSE_SECONDS = 0.5
#: The exit code if something could not be stopped: threads, child processes, the client of the store.
LEFT_BEHIND = 1
#: Thresholds of the garbage collector: new objects, and collections of the younger generations.
_WORKER_THRESHOLD = (10_000, 20, 20)
_DEFAULT_THRESHOLD = gc.get_threshold()
#: Settings of ``Worker`` that are options of the command. ``id`` is not, since every process has its own.
_SETTINGS = tuple(name for name in WorkerOptions.__struct_fields__ if name != "id")


@dataclass(frozen=True, kw_only=True)
class WorkerCommandOptions:
    """The options of the command. Durations are in seconds."""

    app: str
    url: str | None = None
    #: Queue name to weight, in order; empty: all queues of the app's tasks.
    weights: dict[str, float] = field(default_factory=dict)
    caps: dict[str, int] = field(default_factory=dict)
    reserves: dict[str, int] = field(default_factory=dict)
    concurrency: int = 16
    order: Literal["weighted", "strict"] = "weighted"
    grace: float = 20
    cancel_wait: float = 5
    lease: float = 30
    burst: bool = False
    tag: str = ""
    #: Starts and seconds, for example ``100/60``.
    limiter: str | None = None
    global_concurrency: int | None = None
    poll: float = 2
    recover_every: float | None = None
    prune_every: float = 30
    heartbeat: float = 10
    process_slots: int | None = None
    max_jobs_per_child: int | None = None
    duties: bool = True
    processes: int = 1
    reload: bool = False
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    log_level: str = "info"
    log_format: logs.LogFormat = "text"
    debug: bool = False
    #: A file descriptor. Its end of file means that the parent process has exited.
    lifeline: int | None = None

    def child_command(self, number: int, lifeline: int) -> list[str]:
        """The argument list for a child process of several, or of one that is reloaded."""
        command = [sys.executable, "-m", "windlass", "worker", self.app, "--lifeline", str(lifeline)]
        if self.url is not None:
            command += ["--url", self.url]
        if self.weights:
            command += ["--queues", ",".join(f"{name}:{weight:g}" for name, weight in self.weights.items())]
        command += [f"--cap={name}={cap}" for name, cap in self.caps.items()]
        command += [f"--reserve={name}={reserve}" for name, reserve in self.reserves.items()]
        said = {name: getattr(self, name) for name in (*_SETTINGS, "health_host", "log_level", "log_format")}
        command += [
            f"--{name.replace('_', '-')}={value}"
            for name, value in said.items()
            if value is not None and not isinstance(value, bool)
        ]
        if self.health_port is not None:
            command.append(f"--health-port={self.health_port + number if self.health_port else 0}")
        duties = "--duties" if self.duties else "--no-duties"  # overrides the environment in the child
        flags = {"--burst": self.burst, "--debug": self.debug, duties: True}
        return command + [flag for flag, given in flags.items() if given]

    def settings(self) -> dict[str, Any]:
        """The options of ``Worker``."""
        said = {name: getattr(self, name) for name in _SETTINGS}
        if self.limiter is not None:
            said["limiter"] = parse_rate(self.limiter)
        return {name: value for name, value in said.items() if value is not None}


def launch(options: WorkerCommandOptions, out: Out) -> int:
    """Run the worker, or the parent of several workers; returns the exit code."""
    logs.set_up(options.log_level, options.log_format)
    if options.lifeline is None:
        for warning in misspelt_variables(command, os.environ):
            log.warning("%s", warning)
    if options.processes > 1 or options.reload:
        add_current_folder()
        plan = ProcessPlan(
            command=options.child_command,
            processes=options.processes,
            burst=options.burst,
            watch=options.app.partition(":")[0] if options.reload else None,
        )
        return asyncio.run(ProcessSupervisor(plan).run())
    if os.environ.get("WINDLASS_PROBES"):
        importlib.import_module("windlass.testing.faults").install_from_environment()
    try:
        app = load_app(options.app, options.url)  # before our loop starts: user code may run its own
    except LoadError as exc:
        if options.debug and exc.__cause__ is not None:
            raise exc.__cause__ from None
        raise
    _tune_garbage_collector()
    return _run_loop(lambda: run(app, options, out))


async def run(app: Windlass, options: WorkerCommandOptions, out: Out) -> int:
    """Run jobs until a signal arrives, or with ``burst`` until all jobs are done."""
    worker = make_worker(app, options)
    stopper = Stopper(worker)
    stopper.install(options.lifeline)
    health = await _start_health(worker, options)
    try:
        await worker.start()
        terminal = sys.stderr.isatty() and options.log_format == "text" and options.lifeline is None
        announce(worker, queue_specs(app, options), out if terminal else None)
        for warning in misspelt_queues(app, options.weights):
            log.warning("%s", warning)
        await worker.run()
    except ClosedError:
        if not stopper.asked:
            raise
        await worker.close()  # a stop signal arrived during the start
    finally:
        stopper.uninstall()
        if health is not None:
            await health.stop()
        if not worker.left_behind and not await _closes(app):
            worker.left_behind.append("the client of the store")
    log.info("stopped")
    if stopper.asked > 1:
        return INTERRUPTED
    return LEFT_BEHIND if worker.left_behind else 0


async def _closes(app: Windlass) -> bool:
    """Close the store. Returns False if it does not answer."""
    try:
        async with asyncio.timeout(_CLOSE_SECONDS):
            await app.close()
    except TimeoutError:
        log.error("the store did not confirm the close in time; its client was abandoned")
        return False
    finally:
        app.store.allow_open()  # code in this process may continue to use the app
    return True


def make_worker(app: Windlass, options: WorkerCommandOptions) -> Worker:
    """The worker that the options describe."""
    from windlass.worker import Worker

    return Worker(queue_specs(app, options), url_or_app=app, **options.settings())


def queue_specs(app: Windlass, options: WorkerCommandOptions) -> dict[str, QueueSpec]:
    """The named queues, or those of the app's tasks, with weight, cap and reserve."""
    from windlass.worker import QueueSpec

    weights = options.weights or {task.queue_name: 1.0 for task in app.tasks.values()}
    if not weights:
        raise click.UsageError(f"'{options.app}' has no tasks, so name the queues to serve: --queues a,b.")
    strange = {**options.caps, **options.reserves}.keys() - weights.keys()
    if strange:
        raise click.UsageError(f"--cap or --reserve names queues that are not served: {', '.join(strange)}.")
    return {
        name: QueueSpec(weight, options.caps.get(name), options.reserves.get(name, 0))
        for name, weight in weights.items()
    }


def misspelt_queues(app: Windlass, names: Iterable[str]) -> list[str]:
    """Warnings about queues without tasks whose names are similar to a queue that has some."""
    served = set(names)
    ours = {task.queue_name for task in app.tasks.values()}
    return [
        f"no task belongs to queue {name!r} (did you mean {near!r}?): this worker does not serve {near!r}"
        for name in sorted(served - ours)
        if (near := nearest(name, sorted(ours - served)))
    ]


async def _start_health(worker: Worker, options: WorkerCommandOptions) -> Any:
    if options.health_port is None:
        return None
    from windlass.worker.health_server import HealthServer

    server = HealthServer(worker, options.health_port, host=options.health_host)
    try:
        await server.start()
    except OSError as exc:
        raise click.ClickException(
            f"Port {options.health_port} cannot be used for probes: {exc.strerror}"
        ) from exc
    log.info("probes on %s:%d: /live, /ready and /metrics", options.health_host, server.port)
    return server


def _run_loop(work: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run on uvloop if it is installed. Hanging threads do not keep the process alive at the end."""
    before = set(threading.enumerate())
    runner = asyncio.Runner(loop_factory=loop_factory())
    try:
        code = runner.run(work())
    except BaseException:
        runner.close()
        raise
    if code:
        _exit_now(code)  # do not wait for abandoned threads
    watchdog = threading.Timer(_EXIT_SECONDS, _exit_now, [code])
    watchdog.daemon = True
    watchdog.start()
    runner.close()
    for thread in set(threading.enumerate()) - before - {watchdog}:
        if not thread.daemon:
            thread.join()
    watchdog.cancel()
    return code


def _tune_garbage_collector() -> None:
    """Collect garbage less often, and skip objects of imported modules. Saves a tenth of a quick job's time.

    Thresholds that the application has set stay.
    """
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _DEFAULT_THRESHOLD:
        gc.set_threshold(*_WORKER_THRESHOLD)


def _exit_now(code: int) -> None:
    """End this process at once, without waiting for threads."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# --- the command -----------------------------------------------------------------------------------------


def parse_weights(text: str | None) -> dict[str, float]:
    """Queue names and weights from ``a,b:3,c:1``."""
    weights: dict[str, float] = {}
    for part in (text or "").split(","):
        name, colon, weight = part.strip().partition(":")
        if not name and not colon:
            continue
        try:
            weights[name] = float(weight) if colon else 1.0
        except ValueError:
            weights[name] = 0.0
        if not name or not 0 < weights[name] < 1e9:
            raise click.BadParameter(f"write NAME or NAME:WEIGHT, got {part!r}", param_hint="'--queues'")
    return weights


def _counts(pairs: tuple[str, ...], option: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        if not name or not number.isdecimal():
            raise click.BadParameter(f"write QUEUE=NUMBER, got {pair!r}", param_hint=f"'{option}'")
        found[name] = int(number)
    return found


def parse_rate(text: str) -> tuple[int, float]:
    """Starts and seconds from ``100/60s`` or ``5/1``; else ``ValueError``."""
    starts, _, window = text.partition("/")
    if not starts.strip().isdecimal() or not window:
        raise ValueError(f"{text!r} is not a rate: write STARTS/DURATION, such as 100/60s")
    return int(starts), parse_duration(window)


EXAMPLES = """
windlass worker shop:app                            all queues of the app's tasks
windlass worker shop:app --queues mail:3,images --concurrency 50
windlass worker shop:app --processes 4 --log-format json --health-port 8081
windlass worker shop:app --reload                   restart when the code changes
windlass worker shop:app --burst                    stop when everything is done
"""


def _check_levels(_context: click.Context, _param: click.Parameter, value: str) -> str:
    try:
        logs.parse_levels(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc
    return value


def _check_rate(_context: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    try:
        if value is not None:
            to_rate(parse_rate(value), "limiter")
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc
    return value


@click.command("worker", cls=ConfiguredCommand, epilog=examples_epilog(EXAMPLES))
@click.argument("app", metavar="MODULE:APP", envvar=f"{ENVIRONMENT}_APP")
@click.option(
    "--queues",
    "-q",
    metavar="NAME[:WEIGHT],...",
    help="Queues to serve, with weights.  [default: those of the app's tasks]",
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 10_000),
    default=16,
    show_default=True,
    help="Jobs at once, over all queues.",
)
@click.option(
    "--processes",
    "-p",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Worker processes, to use all cores.",
)
@click.option(
    "--order",
    type=click.Choice(["weighted", "strict"]),
    default="weighted",
    show_default=True,
    help="Share slots by weight, or earlier queues first.",
)
@click.option(
    "--cap",
    "caps",
    multiple=True,
    envvar=[f"{ENVIRONMENT}_CAP", f"{ENVIRONMENT}_CAPS"],
    metavar="QUEUE=N",
    help="At most N slots for a queue (repeatable).",
)
@click.option(
    "--reserve",
    "reserves",
    multiple=True,
    envvar=[f"{ENVIRONMENT}_RESERVE", f"{ENVIRONMENT}_RESERVES"],
    metavar="QUEUE=N",
    help="N slots kept free for a queue (repeatable).",
)
@click.option("--burst", "-b", is_flag=True, help="Stop when nothing is waiting, running or retrying.")
@click.option("--reload", is_flag=True, help="Restart when a .py file of the app changes.")
@click.option(
    "--grace",
    type=DURATION,
    default="20s",
    show_default=True,
    help="How long running jobs may continue after a stop signal.",
)
@click.option(
    "--lease",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long a worker may be silent before another one gets its jobs.",
)
@click.option("--tag", default="", help="A label, shown by 'windlass workers'.")
@click.option(
    "--health-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve /live, /ready and /metrics; process N uses PORT+N-1.",
)
@click.option(
    "--health-host",
    default="127.0.0.1",
    show_default=True,
    metavar="HOST",
    help="Address of the health endpoints.",
)
@click.option(
    "--log-level",
    default="info",
    show_default=True,
    metavar="LEVEL",
    callback=_check_levels,
    help="debug, info, warning or error; for one logger: warning,windlass.attempt=info.",
)
@click.option(
    "--log-format",
    type=click.Choice(list(logs.FORMATTERS)),
    default="text",
    show_default=True,
    help="Readable lines, or one JSON object per line.",
)
@click.option("--log-json", "--json", "log_format", flag_value="json", help="Short for --log-format json.")
@click.option(
    "--limiter",
    metavar="N/DURATION",
    callback=_check_rate,
    help="Rate limit of each queue over all workers, such as 100/60s.",
)
@click.option(
    "--global-concurrency",
    type=click.IntRange(1),
    metavar="N",
    help="At most N jobs of each queue at once, over all workers.",
)
@click.option(
    "--cancel-wait",
    type=DURATION,
    default="5s",
    show_default=True,
    help="After --grace: how long cancelled jobs may take to stop.",
)
@click.option(
    "--process-slots",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help="Child processes for tasks with isolation='process'.  [default: number of CPUs]",
)
@click.option(
    "--max-jobs-per-child",
    type=click.IntRange(1),
    metavar="N",
    help="Replace a child process after N jobs.  [default: never]",
)
@click.option(
    "--poll",
    type=DURATION,
    default="2s",
    show_default=True,
    help="Look for jobs at least this often, even without a notification.",
)
@click.option("--heartbeat", type=DURATION, default="10s", show_default=True, help="Time between heartbeats.")
@click.option(
    "--recover-every",
    type=DURATION,
    help="Look for expired leases this often.  [default: half the lease, at most 15s]",
)
@click.option(
    "--prune-every", type=DURATION, default="30s", show_default=True, help="Remove old records this often."
)
@click.option(
    "--duties/--no-duties",
    default=True,
    help="Whether this worker also recovers and prunes jobs.  [default: it does]",
)
@click.option("--lifeline", type=int, hidden=True)
@click.option("--debug", is_flag=True, help="Show tracebacks of errors.")
@url_option
def command(queues: str | None, caps: tuple[str, ...], reserves: tuple[str, ...], **values: Any) -> None:
    """Run the tasks of an app until stopped.

    MODULE:APP names the Windlass object, such as shop.jobs:app; MODULE is enough when it has only one. The
    current folder is first on the Python path. --url overrides the store of the app. You can also set every
    option with $WINDLASS_WORKER_<OPTION> or in [tool.windlass] of pyproject.toml; 'windlass config' shows
    the settings.

    After the first Ctrl-C or SIGTERM running jobs may finish; after the second they are given back at once.
    Exit codes: 0 done; 1 error, or a shutdown that had to abandon something (see the log); 2 wrong usage;
    130 stopped by a second signal.
    """
    if values["lifeline"] is not None:  # a child runs one worker; the parent reloads
        values |= {"processes": 1, "reload": False}
    options = WorkerCommandOptions(
        weights=parse_weights(queues),
        caps=_counts(caps, "--cap"),
        reserves=_counts(reserves, "--reserve"),
        **values,
    )
    out = Out(debug=options.debug)
    click.get_current_context().exit(carry_out(lambda: launch(options, out), out))
