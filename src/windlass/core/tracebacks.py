"""Format tracebacks safely, even if the error object misbehaves.

An error is user code: its text, notes and causes may raise, and its chain may be endless. Formatting runs in
the worker next to other jobs, so it is bounded.
"""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Final

from windlass.core.text import clean_text

#: If more errors than this are causes of one or grouped in it, they are left out: formatting takes too long.
_MAX_BEHIND: Final = 50


def name_of(error: BaseException) -> str:
    """The name of the error's class. Never raises."""
    try:
        return str(type(error).__name__)
    except BaseException:  # a metaclass of the user's may answer for it
        return "Exception"


def is_tame(error: BaseException) -> bool:
    """Whether Python's own formatting of ``error`` ends and does not raise."""
    try:
        return not _has_many_behind(error) and bool(traceback.format_exception_only(error))
    except BaseException:
        return False


def format_error(error: BaseException, frames: TracebackType | None) -> str:
    """The traceback of ``error`` from ``frames`` on. Never raises: if formatting fails, it shows less."""
    try:
        if not _has_many_behind(error):
            return "".join(traceback.format_exception(type(error), error, frames)).rstrip()
        note = f"(more than {_MAX_BEHIND} other errors caused it or are grouped in it; they are left out)"
        where = "".join(traceback.format_tb(frames))
        return f"Traceback (most recent call last):\n{where}{name_of(error)}: {clean_text(error)}\n{note}"
    except BaseException as fault:
        return f"(the traceback cannot be shown: {name_of(fault)}: {clean_text(fault)})"


def _has_many_behind(error: BaseException) -> bool:
    """Whether ``error`` has more causes and grouped errors than are shown.

    An error that is reached twice counts twice, because Python formats it twice. Groups that contain one
    another twice, thirty levels deep, would take forever.
    """
    left, count = [error], 0
    while left:
        one = left.pop()
        before = one.__cause__ if one.__cause__ is not None else one.__context__
        behind = [] if before is None else [before]
        if issubclass(type(one), BaseExceptionGroup):
            assert isinstance(one, BaseExceptionGroup)
            behind += one.exceptions
        count += len(behind)
        if count > _MAX_BEHIND:
            return True
        left += behind
    return False
