"""Tracebacks as text, whatever the error does while it is asked.

An error is user code: its text, notes and causes may raise, and its chain may have no end. Formatting runs in
the worker, beside other jobs, so it has a bound.
"""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Final

from windlass.core.text import clean_text

#: A longer chain of causes is not followed: formatting it would hold up everything else.
_MAX_CHAIN: Final = 50


def name_of(error: BaseException) -> str:
    """The name of its class."""
    try:
        return str(type(error).__name__)
    except BaseException:  # a metaclass of the user's may answer for it
        return "Exception"


def format_error(error: BaseException, frames: TracebackType | None) -> str:
    """The traceback of ``error`` from ``frames`` on. Never raises: if something in it does, less is told."""
    try:
        if not _is_long_chain(error):
            return "".join(traceback.format_exception(type(error), error, frames)).rstrip()
        note = f"(caused by more than {_MAX_CHAIN} other errors, which are left out)"
        where = "".join(traceback.format_tb(frames))
        return f"Traceback (most recent call last):\n{where}{name_of(error)}: {clean_text(error)}\n{note}"
    except BaseException as fault:
        return f"(the traceback cannot be shown: {name_of(fault)}: {clean_text(fault)})"


def _is_long_chain(error: BaseException) -> bool:
    link = error
    for _ in range(_MAX_CHAIN):
        before = link.__cause__ if link.__cause__ is not None else link.__context__
        if before is None:
            return False
        link = before
    return True
