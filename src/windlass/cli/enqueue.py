"""``windlass enqueue``: adds one job from the command line, or many from a file."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from windlass.api.queue import Queue
from windlass.backend import requests as rq
from windlass.cli.job_views import job_view
from windlass.cli.output import Out
from windlass.cli.store_commands import StoreOptions, app_option, store_command
from windlass.cli.values import DURATION, parse_json, parse_pairs
from windlass.core.edges import check_cycle
from windlass.core.ids import JobRef
from windlass.core.job import JobRecord
from windlass.core.option_values import nearest
from windlass.core.outcome import AddOutcome
from windlass.core.states import JobState
from windlass.errors import ConfigError, JobCancelledError, JobFailedError
from windlass.jobs.exported import read_job, read_record
from windlass.jobs.payload import pack_data, unpack

if TYPE_CHECKING:
    from windlass.api.app import Windlass
    from windlass.core.job import NewJob
    from windlass.jobs.job import Job

_CHUNK = 1_000
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class EnqueueOptions(StoreOptions):
    """One job (``name``, ``data``, job ``options``), or the jobs of ``file``."""

    queue: str | None
    name: str | None = None
    data: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    wait: bool = False
    timeout: float | None = None
    file: IO[bytes] | None = None
    restore: bool = False


async def run(options: EnqueueOptions, out: Out) -> int:
    """Add jobs."""
    async with options.app(create=True) as app:
        if options.file is not None and options.restore:
            return await _restore_file(app, options.queue, options.file, out)
        if options.file is not None:
            return await _add_file(app, options.queue, options.file, options.options, out)
        queue = app.queue(options.queue or "")
        task = app.tasks.get(options.name or "")
        if task is not None:  # the options of the task in code apply here too
            call = unpack(pack_data(options.data))
            task.signature.check(task.name, call.args, call.kwargs)
            queue = Queue(queue.name, app, defaults=task.job_options)
        elif near := nearest(options.name or "", app.tasks):
            out.note(f"{options.app_name} has no task {options.name!r} (did you mean {near!r}?)")
        job = await queue.add(options.name or "", options.data, **options.options)
        if options.wait:
            return await _wait(job, options, out)
    outcome = job.outcome.value if job.outcome else "queued"
    if out.as_json:
        out.document({"outcome": outcome, "not_taken": list(job.not_taken), **job_view(job)})
    elif outcome == "queued":
        word = "Scheduled" if job.state is JobState.SCHEDULED else "Queued"
        out.text(f"{word} {job.id}")
    else:
        out.text(f"{outcome.capitalize()}: {job.id} is already there ({job.state.value})")
        if job.not_taken:
            out.text(f"Not taken, because it ran before: {', '.join(job.not_taken)}", "yellow")
    return 0


async def _wait(job: Job[Any], options: EnqueueOptions, out: Out) -> int:
    if not out.as_json:
        out.note(f"Queued {job.id}")
    with out.waiting(f"Waiting for {job.name}"):
        try:
            result = await job.result(options.timeout)
        except (JobFailedError, JobCancelledError) as exc:
            if out.as_json:
                out.document(job_view(job))
            out.error(str(exc), exc.code)
            return 1
    if out.as_json:
        out.document(job_view(job))
    else:
        for line in json.dumps(result, indent=2, ensure_ascii=False).split("\n"):
            out.text(line)
    return 0


async def _add_file(
    app: Windlass, queue: str | None, file: IO[bytes], shared: dict[str, Any], out: Out
) -> int:
    """Check all lines before adding any, so that a bad line changes nothing."""
    with _rereadable(file) as lines:
        size = lines.seek(0, 2)
        with out.progress("Checking", size) as advance:
            for number, line in _lines(lines, shared, advance):
                _read(app, queue, number, line, read_job)
        total = queued = 0
        with out.progress("Adding", size) as advance:
            news = (_read(app, queue, *one, read_job) for one in _lines(lines, shared, advance))
            for chunk in _chunks(_dependents_last(news)):
                jobs = await app.queue(chunk[0].queue).add_new(chunk)
                total += len(jobs)
                queued += sum(job.outcome is AddOutcome.QUEUED for job in jobs)
    known = f" ({total - queued:,} more were there already)" if total > queued else ""
    out.done(f"Queued {queued:,} jobs{known}.", {"queued": queued, "known": total - queued})
    return 0


async def _restore_file(app: Windlass, queue: str | None, file: IO[bytes], out: Out) -> int:
    """Check all lines, then restore the jobs in their old state. Jobs that wait for others come last."""
    advice = "leave --restore out: the jobs are added, and run from the start"
    app.store.capabilities.require(app.store.name, "restore", advice)
    blocked: list[NewJob] = []

    def records(found: Iterator[NewJob | JobRecord]) -> Iterator[JobRecord]:
        for one in found:
            if isinstance(one, JobRecord):
                yield one
            else:
                blocked.append(one)

    outcomes: list[AddOutcome | None] = []
    with _rereadable(file) as lines:
        size = lines.seek(0, 2)
        for number, line in _lines(lines, {}, lambda step: None):
            _read(app, queue, number, line, read_record)
        with out.progress("Restoring", size) as advance:
            found = (_read(app, queue, *one, read_record) for one in _lines(lines, {}, advance))
            for chunk in _chunks(records(found)):
                outcomes += [one.outcome for one in await app.store.execute(rq.Restore(jobs=chunk))]
            for news in _chunks(_dependents_last(iter(blocked))):
                outcomes += [job.outcome for job in await app.queue(news[0].queue).add_new(news)]
    done = outcomes.count(AddOutcome.QUEUED)
    known = len(outcomes) - done
    rest = f" ({known:,} more were there already, or their group has no room)" if known else ""
    out.done(f"Restored {done:,} jobs{rest}.", {"restored": done, "known": known})
    return 0


def _dependents_last(news: Iterator[NewJob]) -> Iterator[NewJob]:
    """Jobs in their order, with those that wait for others last."""
    waiting: dict[JobRef, NewJob] = {}
    for new in news:
        if new.depends_on:
            waiting[JobRef(new.queue, new.id)] = new
        else:
            yield new
    check_cycle({ref: [one.ref for one in new.depends_on] for ref, new in waiting.items()})
    while waiting:
        free = [ref for ref, new in waiting.items() if not any(one.ref in waiting for one in new.depends_on)]
        for ref in free:
            yield waiting.pop(ref)


def _rereadable(file: IO[bytes]) -> IO[bytes]:
    """The file itself, or a temporary copy if it is a pipe."""
    if file.seekable():
        return file
    copy: IO[bytes] = tempfile.TemporaryFile()
    shutil.copyfileobj(file, copy)
    return copy


def _lines(
    lines: IO[bytes], shared: dict[str, Any], advance: Callable[[float], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and their jobs. ``shared`` options apply where a line does not set them."""
    lines.seek(0)
    for number, line in enumerate(lines, start=1):
        advance(len(line))
        if not line.strip():
            continue
        try:
            job = msgspec.json.decode(line)
        except msgspec.DecodeError as exc:
            raise ConfigError(f"line {number}", message=f"line {number} is not JSON ({exc})") from exc
        if not isinstance(job, dict) or "name" not in job:
            raise ConfigError(f"line {number}", 'an object like {"name": ..., "data": ..., ...}', job)
        yield number, {**shared, **job}


def _read(
    app: Windlass,
    queue: str | None,
    number: int,
    line: dict[str, Any],
    read: Callable[[Queue, dict[str, Any]], T],
) -> T:
    """The job of a line, for ``queue`` or the queue that the line names."""
    name = queue or line.get("queue")
    if name is None:
        raise ConfigError(
            f"line {number}",
            message=f'line {number} names no queue: give QUEUE, or add "queue" to the line',
            got=line,
        )
    try:
        return read(app.queue(name), line)
    except ConfigError as exc:
        raise ConfigError(
            f"line {number}: {exc.option}", exc.want, exc.got, message=f"line {number}: {exc}"
        ) from exc


def _chunks(jobs: Iterator[T]) -> Iterator[list[T]]:
    while chunk := list(islice(jobs, _CHUNK)):
        yield chunk


def _data_of(text: str | None, data: str | None, args: tuple[str, ...]) -> Any:
    if sum(bool(given) for given in (text, data, args)) > 1:
        raise click.UsageError("Give the arguments once: as DATA, with --data, or with --arg.")
    if args:
        return parse_pairs(args, "--arg")
    given = text if text is not None else data
    if given == "-":
        given = sys.stdin.read()
    return None if given is None else parse_json(given, "--data")


@store_command(
    "enqueue",
    run,
    examples="""
windlass enqueue mail send_mail --arg to=ada@example.com --arg copies=2
windlass enqueue mail send_mail --data '{"to": "ada@example.com"}' --delay 10m
windlass enqueue reports monthly '[2026, 7]' --id report-2026-07 --wait
windlass enqueue mail --file jobs.jsonl             {"name": ..., "data": ...} per line
windlass jobs --export > saved.jsonl && windlass enqueue --file saved.jsonl --restore --url sqlite:///new.db
""",
)
@click.argument("queue", required=False)
@click.argument("name", required=False)
@click.argument("text", required=False, metavar="[DATA]")
@click.option(
    "--data", "-d", metavar="JSON", help="The arguments: an object, a list or a value; - reads stdin."
)
@click.option(
    "--arg", "-a", "args", multiple=True, metavar="KEY=VALUE", help="One argument by name (repeatable)."
)
@click.option(
    "--file", "-f", type=click.File("rb"), help="Add every line of a file of JSON lines; - reads stdin."
)
@click.option(
    "--restore",
    is_flag=True,
    help="With --file: put jobs of an export back in the state that they had, with attempts and results.",
)
@click.option("--delay", type=DURATION, help="Start no earlier than this from now.")
@click.option("--priority", "-p", type=int, help="Higher runs first.")
@click.option("--id", "job_id", help="Your own job id; a duplicate is not added.")
@click.option("--tag", "tags", multiple=True, help="A label to search by (repeatable).")
@click.option("--max-attempts", type=click.IntRange(1), help="Runs in all, the first included.")
@click.option(
    "--option", "-o", "more", multiple=True, metavar="KEY=VALUE", help="Any other job option (repeatable)."
)
@app_option
@click.option("--wait", "-w", is_flag=True, help="Wait for the result and print it.")
@click.option("--timeout", type=DURATION, default="30s", show_default=True, help="With --wait: how long.")
def command(**values: Any) -> EnqueueOptions:
    """Add a job that runs task NAME in QUEUE.

    With --app, the options that the task declares in code apply where none is given here. Without --app,
    the task of the worker that runs the job sets attempts, backoff, timeout and retention.

    With --file, the options apply to every line that does not set its own. A line may have a "queue";
    QUEUE, when given, overrides it.
    """
    return _options(**values)


def _options(  # noqa: PLR0913 - as many as the command has
    *,
    url: str | None,
    app_name: str | None,
    queue: str | None,
    name: str | None,
    text: str | None,
    data: str | None,
    args: tuple[str, ...],
    file: IO[bytes] | None,
    restore: bool,
    wait: bool,
    timeout: float,
    more: tuple[str, ...],
    **job_options: Any,
) -> EnqueueOptions:
    if (name is None) == (file is None) or (file and (text or data or args or wait)):
        raise click.UsageError("Give QUEUE and the NAME of a task (and its arguments), or --file.")
    options = {key: value for key, value in job_options.items() if value not in (None, ())}
    if restore and (file is None or options or more):
        raise click.UsageError("--restore goes with --file, and with no option of jobs: they keep their own.")
    return EnqueueOptions(
        url=url,
        app_name=app_name,
        queue=queue,
        name=name,
        data=_data_of(text, data, args),
        options=options | parse_pairs(more, "--option"),
        wait=wait,
        timeout=timeout,
        file=file,
        restore=restore,
    )
