"""Structured logs: readable lines, or one JSON object per line.

With ``JobFields`` on the handler, every record that is written while a task runs, through any logger, has the
job's id, task, queue and attempt. Workers log the start and the end of each run to the logger
``windlass.attempt``; ``JobLog`` logs them to a logger of your choice.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from windlass.core.job import ERROR_MESSAGE_CHARS, TRACEBACK_CHARS
from windlass.core.text import clean_text, printable, printable_json, printable_lines
from windlass.core.tracebacks import format_error, name_of
from windlass.handlers.hooks import AttemptEnd
from windlass.jobs.context import current_job

if TYPE_CHECKING:
    from windlass.jobs.job import Job

#: Attributes of every LogRecord. All others were given as ``extra``.
_STANDARD = frozenset(
    {*vars(logging.LogRecord("", 0, "", 0, "", None, None)), "message", "asctime", "taskName", "lines"}
)
#: Fields that a text line does not repeat, because its message or the brackets contain them.
_SAID: Final = _STANDARD | {"job_id", "task", "outcome"}
_JOB: Final = _SAID | {"queue", "attempt"}


class JobFields(logging.Filter):
    """Adds the job to every record that its task writes, through any logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields of the current job, if there is one. Always returns True."""
        if not hasattr(record, "job_id"):
            try:
                job = current_job()
            except RuntimeError:
                return True
            record.job_id, record.task = job.id, job.name
            record.queue, record.attempt = job.queue_name, job.attempt
        return True


class JobLog:
    """A middleware that logs the start and the end of each run, with outcome and duration."""

    def __init__(self, logger: logging.Logger | None = None, level: int = logging.INFO) -> None:
        self._log = logger or logging.getLogger("windlass.run")
        self._level = level

    def execute(self, job: Job[Any]) -> Iterator[None]:
        """Log the start of a run."""
        self._log.log(self._level, "start", extra=_facts(job))
        yield

    def ended(self, job: Job[Any], end: AttemptEnd) -> None:
        """Log the end of a run."""
        facts = {**_facts(job), "elapsed_ms": end.duration_ms, "outcome": end.outcome.value}
        if end.error is not None:
            facts |= {"error_class": name_of(end.error), "error_message": clean_text(end.error)}
        self._log.log(self._level, end.outcome.value, extra=facts)


def _facts(job: Job[Any]) -> dict[str, Any]:
    return {"job_id": job.id, "task": job.name, "queue": job.queue_name, "attempt": job.attempt}


class JsonLines(logging.Formatter):
    """A formatter that writes one JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _plain(record.getMessage()),
        }
        line |= {name: _plain(value) for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = {
                "class": clean_text(name_of(error)),
                "message": clean_text(error, ERROR_MESSAGE_CHARS),
                "traceback": clean_text(format_error(error, record.exc_info[2]), TRACEBACK_CHARS),
            }
        elif record.exc_text:
            line["error"] = {"traceback": clean_text(record.exc_text, TRACEBACK_CHARS)}
        return printable_json(msgspec.json.encode(line).decode())


def _plain(value: Any) -> Any:
    """Return ``value`` if it can be encoded as JSON, else its text, so that no line is lost."""
    try:
        msgspec.json.encode(value)
    except Exception:
        return clean_text(value)
    return value


class Lines(logging.Formatter):
    """A formatter: ``time LEVEL logger: message field=value ...``.

    The job is added in brackets unless the message contains its id. A message is one line: line breaks and
    control characters are escaped, unless the record has ``extra={"lines": True}``. Tracebacks keep their
    lines.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as text."""
        job_id = getattr(record, "job_id", None)
        message, said = record.getMessage(), _SAID
        if job_id is not None and job_id not in message:
            message, said = f"[{getattr(record, 'task', '')} {job_id}] {message}", _JOB
        message = printable_lines(message) if getattr(record, "lines", False) else printable(message)
        fields = [f" {name}={_field(value)}" for name, value in vars(record).items() if name not in said]
        line = f"{_time(record)} {record.levelname:<7} {record.name}: {message}{''.join(fields)}"
        if record.exc_info and record.exc_info[1] is not None:
            trace = format_error(record.exc_info[1], record.exc_info[2])
        else:
            trace = record.exc_text or ""
        return f"{line}\n{printable_lines(clean_text(trace, TRACEBACK_CHARS))}" if trace else line


def _field(value: Any) -> str:
    text = printable(clean_text(value))
    return text if text and not {*' ="'} & {*text} else f'"{text}"'


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


LogFormat = Literal["text", "json"]
FORMATTERS: Final[dict[LogFormat, type[logging.Formatter]]] = {"text": Lines, "json": JsonLines}
LEVELS: Final = ("debug", "info", "warning", "error")


def parse_levels(text: str) -> dict[str, str]:
    """Parse ``info`` or ``warning,windlass.attempt=info`` to levels by logger; the root logger is ""."""
    levels = {"": "info"}
    for part in text.split(","):
        logger, equals, level = part.strip().rpartition("=")
        if level.lower() not in LEVELS or bool(logger) is not bool(equals):
            raise ValueError(
                f"write LEVEL or LOGGER=LEVEL, with a level of {', '.join(LEVELS)}; got {part!r}"
            )
        levels[logger] = level.lower()
    return levels


def set_up(levels: str, log_format: LogFormat) -> None:
    """Send all logging to stderr, with ``levels`` for ``parse_levels``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[log_format]())
    handler.addFilter(JobFields())
    logging.getLogger().handlers[:] = [handler]
    for logger, level in parse_levels(levels).items():
        logging.getLogger(logger).setLevel(level.upper())
    logging.captureWarnings(True)
