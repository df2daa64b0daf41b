"""Ids and names: how ids are created, and the checks before a name reaches a store.

A job id is a UUIDv7 as 32 hex digits (sorts by time, needs no round trip) or the caller's own text of 1 to
256 letters, digits and ``. - _ @ +``, which stores can safely use in keys and paths.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from typing import NamedTuple

import msgspec

from windlass.core.clock import SYSTEM_CLOCK
from windlass.errors import ConfigError

#: Regular expressions for job ids and queue names.
JOB_ID = r"[A-Za-z0-9._@+-]{1,256}"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_JOB_ID = re.compile(rf"{JOB_ID}\Z")
_NAME = re.compile(rf"{NAME}\Z")
#: The longest name of a task.
TASK_CHARS = 256
_TASK = re.compile(rf"[^\x00-\x1f\x7f\ud800-\udfff]{{1,{TASK_CHARS}}}\Z")  # halves of a pair are no text
_HALF_OF_A_PAIR = re.compile("[\ud800-\udfff]")


#: Task names that passed the check before. Most calls use the same few names.
_known_tasks: set[str] = set()
_KNOWN = 1_000


class JobRef(NamedTuple):
    """The queue and id of a job. Ids are unique within a queue."""

    queue: str
    id: str


#: The bytes of a random tail, and how many tails are drawn with one system call. The call releases the
#: interpreter lock, and the thread of a store may hold it for a while.
_TAIL_BYTES, _TAILS = 9, 64


class _Sequence:
    """Creates UUIDv7 fields: 48 bits of time, then 74 bits that increase within a millisecond.

    A new random part begins with each millisecond and is then incremented. So the ids of a process are
    strictly increasing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ms = 0
        self._tail = 0
        self._drawn: list[int] = []

    def _reserve(self, count: int) -> tuple[int, int]:
        """The time and the first of ``count`` tails."""
        ms = SYSTEM_CLOCK.now_ms()
        with self._lock:
            if ms > self._ms:
                self._ms = ms
                if not self._drawn:
                    self._draw()
                self._tail = self._drawn.pop()
            last = self._tail = self._tail + count
            return self._ms, last - count + 1

    def _draw(self) -> None:
        drawn = os.urandom(_TAIL_BYTES * _TAILS)
        for first in range(0, len(drawn), _TAIL_BYTES):
            tail = int.from_bytes(drawn[first : first + _TAIL_BYTES]) >> 1  # 71 bits: room to count up
            self._drawn.append(tail)

    def take_one(self) -> str:
        return _uuid7(*self._reserve(1))

    def take(self, count: int) -> list[str]:
        ms, first = self._reserve(count)
        start = int(_uuid7(ms, first), 16)
        low = start & 0xFFFF_FFFF
        if low + count > 0xFFFF_FFFF:  # the last digits alone do not distinguish them
            return [_uuid7(ms, first + step) for step in range(count)]
        front = f"{start >> 32:024x}"
        return [f"{front}{last:08x}" for last in range(low, low + count)]


def _uuid7(ms: int, tail: int) -> str:
    a, b = tail >> 62 & 0xFFF, tail & 0x3FFF_FFFF_FFFF_FFFF
    return f"{ms:012x}7{a:03x}{2 << 62 | b:016x}"  # in parts: long integers are slow


_sequence = _Sequence()


def _after_fork() -> None:
    global _sequence
    _sequence = _Sequence()  # a child must not count on from its parent's draw


os.register_at_fork(after_in_child=_after_fork)


def new_id() -> str:
    """A new, time-ordered id."""
    return _sequence.take_one()


def new_ids(count: int) -> list[str]:
    """``count`` new ids in increasing order."""
    return _sequence.take(count)


def content_id(value: object) -> str:
    """16 hex digits that are the same for equal data, for a ``job_id`` by content.

    Objects are compared by their JSON with sorted keys, so the order of keys does not matter.
    """
    data = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(data).hexdigest()[:16]


def check_job_id(value: object) -> str:
    """Return a caller's own job id, or raise ``ConfigError``."""
    if not isinstance(value, str) or not _JOB_ID.match(value):
        want = "1 to 256 letters, digits or . - _ @ + (for a key of other characters use unique=...)"
        raise ConfigError("job_id", want, value)
    return value


def check_queue_name(value: object, option: str = "queue") -> str:
    """Return the name of a queue or namespace, or raise ``ConfigError``."""
    if not isinstance(value, str) or not _NAME.match(value):
        raise ConfigError(
            option,
            "1 to 128 letters, digits, dots, dashes or underscores, beginning with a letter or digit",
            value,
        )
    return value


def check_task_name(value: object) -> str:
    """Return a task's name, any printable text up to 256 characters, or raise ``ConfigError``."""
    if type(value) is str and value in _known_tasks:
        return value
    if not isinstance(value, str) or not _TASK.match(value) or not value.strip():
        raise ConfigError("name", "1 to 256 printable characters", value)
    if len(_known_tasks) < _KNOWN:
        _known_tasks.add(value)
    return value


def check_group(value: object) -> str:
    """Return a group's name, any printable text up to 256 characters but not ``*``. Else ``ConfigError``."""
    if not isinstance(value, str) or not _TASK.match(value) or value == "*":
        raise ConfigError("group", "1 to 256 printable characters, other than * alone", value)
    return value


def check_signal_name(name: object) -> str:
    """Return a signal's name, or raise ``ConfigError``."""
    if not isinstance(name, str) or not 1 <= len(name) <= 128 or not is_text(name):
        raise ConfigError("signal", "a text of 1 to 128 characters", name)
    return name


def is_text(value: object) -> bool:
    """Whether ``value`` is a text that can be stored, that is, one without lone surrogates."""
    return isinstance(value, str) and _HALF_OF_A_PAIR.search(value) is None
