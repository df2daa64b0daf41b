"""The worker's log of attempts: one line when a run starts and one when it ends.

The logger is ``windlass.attempt``. Starts and successes are INFO, a run that will be retried is a WARNING, a
job that failed permanently an ERROR. The last two carry the exception, so that every formatter shows class,
message and traceback. Job id, task and so on are also fields of the log record (``extra``).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

from windlass.core.job import TRACEBACK_CHARS, JobRecord
from windlass.core.outcome import Outcome, Settlement
from windlass.core.text import clean_text, printable, printable_lines
from windlass.core.tracebacks import format_error, is_tame, name_of
from windlass.worker import classify

log: Final = logging.getLogger("windlass.attempt")

_WORDS: Final = {
    Outcome.COMPLETE: "completed",
    Outcome.FAIL: "failed",
    Outcome.RETRY: "will be retried",
    Outcome.CANCEL: "cancelled",
    Outcome.SNOOZE: "snoozed",
    Outcome.WAIT: "waits for its children",
    Outcome.SUSPEND: "suspended",
    Outcome.RELEASE: "released",
}
_LEVELS: Final = {Outcome.FAIL: logging.ERROR, Outcome.RETRY: logging.WARNING}


#: Whether starts and successes are logged. At high rates that costs more than running a small job.
logs_every_attempt: Final = partial(log.isEnabledFor, logging.INFO)


def log_attempt(level: int, what: str, record: JobRecord) -> None:
    """Log a line about an attempt that has not ended."""
    _write(level, what, record, {})


def log_end(record: JobRecord, end: Settlement, error: BaseException | None) -> None:
    """Log how an attempt ended. ``error`` is logged if the attempt failed."""
    level = _LEVELS.get(end.outcome, logging.INFO)
    if not log.isEnabledFor(level):
        return
    facts: dict[str, Any] = {"outcome": _outcome(end.outcome)}
    if end.duration_ms is not None:
        facts["elapsed_ms"] = end.duration_ms
    if end.outcome is Outcome.RETRY:
        facts["retry_in_ms"] = end.delay_ms
    if end.reason:
        facts["reason"] = end.reason
    _write(level, _WORDS[end.outcome], record, facts, error if level > logging.INFO else None)


def _outcome(outcome: Outcome) -> str:
    return "retrying" if outcome is Outcome.RETRY else _WORDS[outcome].partition(" ")[0]


def _write(
    level: int, what: str, record: JobRecord, facts: dict[str, Any], error: BaseException | None = None
) -> None:
    if not log.isEnabledFor(level):
        return
    facts = {
        "job_id": record.id,
        "task": record.task,
        "queue": record.queue,
        "attempt": record.attempts + 1,
        "max_attempts": record.options.max_attempts,
        **facts,
    }
    said = "" if error is None else f": {printable(clean_text(name_of(error)))}: {classify.message_of(error)}"
    texts = (record.id, printable(record.task), what, said)
    line = log.makeRecord(log.name, level, __file__, 0, "job %s (%s) %s%s", texts, None, extra=facts)
    if error is not None:
        _attach(line, error)
    log.handle(line)


def _attach(line: logging.LogRecord, error: BaseException) -> None:
    """Attach ``error`` and its formatted text to a log record, so that formatters need not format it.

    Application errors can raise or hang when they are formatted. An error that is not safe is attached as
    text only.
    """
    frames = classify.users_frames(error)
    line.exc_text = printable_lines(clean_text(format_error(error, frames), TRACEBACK_CHARS))
    if is_tame(error):
        line.exc_info = (type(error), error, frames)
