"""Reads pickles that contain only plain data.

A pickle is a program: loading one from a queue runs arbitrary code of its writer. This unpickler can build
numbers, texts, bytes, lists, tuples, dictionaries, sets, dates, times, ``Decimal`` and ``UUID``. It fails at
the first other name, before importing it. It uses the slower Python implementation on purpose: its memo is a
dictionary, so a forged index cannot make it reserve memory.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID, SafeUUID

from windlass.importing.model import Unreadable

#: Larger pickles are refused.
MOST_BYTES = 16 * 1024 * 1024

_ADMITTED: dict[tuple[str, str], Any] = {
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("collections", "OrderedDict"): OrderedDict,
    ("datetime", "date"): date,
    ("datetime", "datetime"): datetime,
    ("datetime", "time"): time,
    ("datetime", "timedelta"): timedelta,
    ("datetime", "timezone"): timezone,
    ("decimal", "Decimal"): Decimal,
    ("uuid", "SafeUUID"): SafeUUID,
    ("uuid", "UUID"): UUID,
}


class _PlainUnpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ADMITTED[module, name]
        except KeyError:
            raise Unreadable(f"its pickle names {module}.{name}, which is not plain data") from None

    def persistent_load(self, pid: Any) -> Any:
        raise Unreadable("its pickle refers to an object outside of it")


def load_plain(data: bytes) -> Any:
    """The value of a pickle of plain data. Raises ``Unreadable`` for any other."""
    if len(data) > MOST_BYTES:
        raise Unreadable(f"its pickle has {len(data)} bytes, over the limit of {MOST_BYTES}")
    try:
        return _PlainUnpickler(io.BytesIO(data)).load()
    except Unreadable:
        raise
    except Exception as exc:  # a damaged pickle can fail in any way
        raise Unreadable(f"its pickle is damaged ({type(exc).__name__})") from exc
