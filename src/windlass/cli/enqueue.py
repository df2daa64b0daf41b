"""``windlass enqueue``: one job from the command line, or many from a file."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from windlass.cli.output import Out
from windlass.cli.store import StoreOptions, app_option, store_command
from windlass.cli.values import DURATION, parse_json, parse_pairs
from windlass.cli.views import job_view
from windlass.core.outcome import AddOutcome
from windlass.core.states import JobState
from windlass.errors import ConfigError, JobCancelledError, JobFailedError

if TYPE_CHECKING:
    from windlass.api.queue import Queue
    from windlass.jobs.job import Job

_CHUNK = 1_000


@dataclass(frozen=True, kw_only=True)
class Options(StoreOptions):
    """One job (``name``, ``data``, job ``options``), or the jobs of ``file``."""

    queue: str
    name: str | None = None
    data: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    wait: bool = False
    timeout: float | None = None
    file: IO[bytes] | None = None


async def run(options: Options, out: Out) -> int:
    """Add jobs."""
    async with options.app(create=True) as app:
        queue = app.queue(options.queue)
        if options.file is not None:
            return await _add_file(queue, options.file, options.options, out)
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


async def _wait(job: Job[Any], options: Options, out: Out) -> int:
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


async def _add_file(queue: Queue, file: IO[bytes], shared: dict[str, Any], out: Out) -> int:
    """Check every line, then add: a bad line in the middle changes nothing."""
    with _rereadable(file) as lines:
        size = lines.seek(0, 2)
        with out.progress("Checking", size) as advance:
            for number, job in _jobs(lines, shared, advance):
                _check(queue, number, job)
        total = queued = 0
        with out.progress("Adding", size) as advance:
            for chunk in _chunks(job for _, job in _jobs(lines, shared, advance)):
                jobs = await queue.add_bulk(chunk)
                total += len(jobs)
                queued += sum(job.outcome is AddOutcome.QUEUED for job in jobs)
    known = f" ({total - queued:,} more were there already)" if total > queued else ""
    out.done(f"Queued {queued:,} jobs{known}.", {"queued": queued, "known": total - queued})
    return 0


def _rereadable(file: IO[bytes]) -> IO[bytes]:
    """The file itself, or a copy of what comes through a pipe."""
    if file.seekable():
        return file
    copy: IO[bytes] = tempfile.TemporaryFile()
    shutil.copyfileobj(file, copy)
    return copy


def _jobs(
    lines: IO[bytes], shared: dict[str, Any], advance: Callable[[float], None]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and the jobs on them; ``shared`` options apply where a line says nothing else."""
    lines.seek(0)
    for number, line in enumerate(lines, start=1):
        advance(len(line))
        if not line.strip():
            continue
        try:
            job = msgspec.json.decode(line)
        except msgspec.DecodeError as exc:
            raise ConfigError(f"line {number}", f"a JSON object ({exc})") from exc
        if not isinstance(job, dict) or "name" not in job:
            raise ConfigError(f"line {number}", 'an object like {"name": ..., "data": ..., ...}', job)
        yield number, {**shared, **job}


def _check(queue: Queue, number: int, job: dict[str, Any]) -> None:
    try:
        queue.prepare(**job)
    except ConfigError as exc:
        raise ConfigError(f"line {number}: {exc.option}", exc.want, exc.got) from exc


def _chunks(jobs: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
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
""",
)
@click.argument("queue")
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
@click.option("--delay", type=DURATION, help="Start no earlier than this from now.")
@click.option("--priority", "-p", type=int, help="Higher runs first.")
@click.option("--id", "job_id", help="Your own id: a second job under it is not added.")
@click.option("--tag", "tags", multiple=True, help="A label to search by (repeatable).")
@click.option("--max-attempts", type=click.IntRange(1), help="Runs in all, the first included.")
@click.option(
    "--option", "-o", "more", multiple=True, metavar="KEY=VALUE", help="Any other job option (repeatable)."
)
@app_option
@click.option("--wait", "-w", is_flag=True, help="Wait for the result and print it.")
@click.option("--timeout", type=DURATION, default="30s", show_default=True, help="With --wait: how long.")
def command(**values: Any) -> Options:
    """Add a job that runs task NAME in QUEUE.

    Options that the task declares in code (attempts, timeout, ...) are not known here: give those
    that matter. With --file they apply to every line that does not set its own.
    """
    return _options(**values)


def _options(  # noqa: PLR0913 - as many as the command has
    *,
    url: str | None,
    app_name: str | None,
    queue: str,
    name: str | None,
    text: str | None,
    data: str | None,
    args: tuple[str, ...],
    file: IO[bytes] | None,
    wait: bool,
    timeout: float,
    more: tuple[str, ...],
    **job_options: Any,
) -> Options:
    if (name is None) == (file is None) or (file and (text or data or args or wait)):
        raise click.UsageError("Give the NAME of a task (and its arguments), or --file.")
    options = {key: value for key, value in job_options.items() if value not in (None, ())}
    return Options(
        url=url,
        app_name=app_name,
        queue=queue,
        name=name,
        data=_data_of(text, data, args),
        options=options | parse_pairs(more, "--option"),
        wait=wait,
        timeout=timeout,
        file=file,
    )
