"""Exceptions across the process boundary, without pickle.

The child describes an exception (``report``); the parent builds one that can be raised and classified
(``rebuild``): a ``RemoteError`` that keeps the original's class name, message and traceback text, and that is
also an instance of the nearest class both sides know, so that ``except ConnectionError``,
``isinstance(error, UnrecoverableError)`` and retry strategies keep working.
"""

from __future__ import annotations

import builtins

from windlass import errors
from windlass.core.backoff import MAX_DELAY_MS
from windlass.core.job import ERROR_CLASS_CHARS, ERROR_MESSAGE_CHARS, TRACEBACK_CHARS
from windlass.core.remote_errors import remote_class
from windlass.core.text import clean_text
from windlass.core.tracebacks import format_error, name_of
from windlass.errors import (
    Cancel,
    JobSignal,
    RateLimitError,
    RemoteError,
    Retry,
    Snooze,
    Suspend,
    WaitForChildren,
)
from windlass.sandbox.protocol import ErrorReport, Signalled, SignalName

# --- describing, in the process that raised ------------------------------------------------------------


def report(exc: BaseException, *, skip_module: str = "") -> ErrorReport:
    """Describe ``exc`` in texts that any process can read. Never raises.

    Outer frames of ``skip_module``, which called the handler, are omitted.
    """
    kind = type(exc)
    return ErrorReport(
        error_class=clean_text(name_of(exc), ERROR_CLASS_CHARS),
        module=clean_text(kind.__module__, ERROR_CLASS_CHARS),
        message=clean_text(exc, ERROR_MESSAGE_CHARS),
        traceback=clean_text(_format(exc, skip_module)[-TRACEBACK_CHARS:], TRACEBACK_CHARS),
        windlass_base=_nearest(kind, errors.__name__),
        builtin_base=_nearest(kind, builtins.__name__),
    )


def _format(exc: BaseException, skip_module: str) -> str:
    try:
        frames = exc.__traceback__
        while frames is not None and skip_module and frames.tb_frame.f_globals.get("__name__") == skip_module:
            frames = frames.tb_next
        return format_error(exc, frames)
    except BaseException:  # user code runs while formatting
        return ""


def _nearest(kind: type[BaseException], module: str) -> str:
    for base in kind.__mro__:
        if base.__module__ == module and issubclass(base, Exception) and base is not Exception:
            return base.__name__
    return ""


# --- rebuilding, on the other side ---------------------------------------------------------------------


def rebuild(report: ErrorReport) -> RemoteError:
    """Return the exception to raise for ``report``."""
    kind = remote_class(report.error_class, report.module, report.windlass_base, report.builtin_base)
    return kind(report.error_class, report.module, report.message, report.traceback)


# --- signals -------------------------------------------------------------------------------------------

_SIGNALS: dict[SignalName, type[JobSignal]] = {
    "snooze": Snooze,
    "retry": Retry,
    "rate_limit": RateLimitError,
    "cancel": Cancel,
    "wait_for_children": WaitForChildren,
    "suspend": Suspend,
}


def signal_message(run: int, signal: JobSignal) -> Signalled | None:
    """Return the message for a handler's signal; None for one that the other side could not rebuild."""
    for name, kind in _SIGNALS.items():
        if isinstance(signal, kind):
            said = getattr(signal, "reason", getattr(signal, "signal", ""))
            delay_ms = getattr(signal, "delay_ms", 0)
            if type(delay_ms) is not int or not 0 <= delay_ms <= MAX_DELAY_MS:
                return None
            return Signalled(run, name, delay_ms, "" if said is None else clean_text(said))
    return None


def rebuild_signal(message: Signalled) -> JobSignal:
    """Return the signal to raise for ``message``."""
    delay = message.delay_ms / 1000
    match message.signal:
        case "snooze":
            return Snooze(delay)
        case "retry":
            return Retry(delay, message.reason)
        case "rate_limit":
            return RateLimitError(delay)
        case "cancel":
            return Cancel(message.reason)
        case "wait_for_children":
            return WaitForChildren()
        case "suspend":
            return Suspend(message.reason, delay or None)
