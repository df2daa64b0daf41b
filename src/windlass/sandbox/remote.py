"""Exceptions across the process boundary, without pickle.

The child describes an exception (``report``); the parent builds one that can be raised and classified
(``rebuild``): a ``RemoteError`` that keeps the original's class name, message and traceback text, and that is
also an instance of the nearest class both sides know, so that ``except ConnectionError``,
``isinstance(error, UnrecoverableError)`` and retry strategies go on working.
"""

from __future__ import annotations

import builtins
import functools
import traceback
from typing import Any

from windlass import errors
from windlass.errors import (
    Cancel,
    JobSignal,
    RateLimitError,
    Retry,
    Snooze,
    Suspend,
    WaitForChildren,
    WindlassError,
)
from windlass.sandbox.protocol import ErrorReport, Signalled, SignalName

_MESSAGE_CHARS = 10_000
_TRACEBACK_CHARS = 100_000
#: Raising these in a coroutine means something else, or they cannot be made from a message.
_NEVER_REBUILT = (StopIteration, StopAsyncIteration, BaseExceptionGroup)


class RemoteError(WindlassError):
    """An exception that a handler raised in a child process.

    ``error_class`` and ``module`` name the original class, ``message`` is its text, ``remote_traceback`` that
    of its traceback in the child. ``type(error).__name__`` is the original's name as well.
    """

    code = "remote"

    def __init__(self, report: ErrorReport) -> None:
        self.error_class = report.error_class
        self.module = report.module
        self.message = report.message
        self.remote_traceback = report.traceback
        Exception.__init__(self, report.message)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Any:
        return (_rebuild_plain, (self.error_class, self.module, self.message, self.remote_traceback))


def _rebuild_plain(error_class: str, module: str, message: str, text: str) -> RemoteError:
    report = ErrorReport(error_class=error_class, module=module, message=message, traceback=text)
    return RemoteError(report)


# --- describing, in the process that raised ------------------------------------------------------------


def report(exc: BaseException, *, skip_module: str = "") -> ErrorReport:
    """Describe ``exc``. Outer frames of ``skip_module`` (the machinery that called) are left out."""
    kind = type(exc)
    return ErrorReport(
        error_class=kind.__name__,
        module=kind.__module__,
        message=_text(exc)[:_MESSAGE_CHARS],
        traceback=_format(exc, skip_module)[-_TRACEBACK_CHARS:],
        windlass_base=_nearest(kind, errors.__name__),
        builtin_base=_nearest(kind, builtins.__name__),
    )


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception:  # a broken __str__ must not hide the failure itself
        return f"<{type(exc).__name__}: its message cannot be shown>"


def _format(exc: BaseException, skip_module: str) -> str:
    frames = exc.__traceback__
    while frames is not None and skip_module and frames.tb_frame.f_globals.get("__name__") == skip_module:
        frames = frames.tb_next
    try:
        return "".join(traceback.format_exception(type(exc), exc, frames))
    except Exception:  # same: user code runs while formatting
        return ""


def _nearest(kind: type[BaseException], module: str) -> str:
    for base in kind.__mro__:
        if base.__module__ == module and issubclass(base, Exception) and base is not Exception:
            return base.__name__
    return ""


# --- rebuilding, on the other side ---------------------------------------------------------------------


def rebuild(report: ErrorReport) -> RemoteError:
    """The exception to raise for ``report``."""
    kind = _remote_class(report.error_class, report.module, report.windlass_base, report.builtin_base)
    return kind(report)


@functools.lru_cache(maxsize=256)
def _remote_class(name: str, module: str, windlass_base: str, builtin_base: str) -> type[RemoteError]:
    known = [*_known(errors, windlass_base), *_known(builtins, builtin_base)]
    bases = [base for base in known if not any(base is not b and issubclass(b, base) for b in known)]
    bases = [base for base in bases if not issubclass(RemoteError, base)]
    try:
        return type(name, (RemoteError, *bases), {"__module__": module, "__qualname__": name})
    except TypeError:  # layouts or orders that do not go together
        return type(name, (RemoteError,), {"__module__": module, "__qualname__": name})


def _known(module: Any, name: str) -> list[type[Exception]]:
    found = getattr(module, name, None) if name else None
    if not isinstance(found, type) or not issubclass(found, Exception):
        return []
    return [] if issubclass(found, (*_NEVER_REBUILT, JobSignal)) else [found]


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
    """The message for a handler's signal; ``None`` for a class of which the other side knows nothing."""
    for name, kind in _SIGNALS.items():
        if isinstance(signal, kind):
            reason = str(getattr(signal, "reason", getattr(signal, "signal", "")))[:_MESSAGE_CHARS]
            return Signalled(run, name, getattr(signal, "delay_ms", 0), reason)
    return None


def rebuild_signal(message: Signalled) -> JobSignal:
    """The signal itself."""
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
