"""Audit entries in the order of arrival, in memory or in a file.

A file holds one JSON document per line, from all processes that write to it. At its maximum size it becomes
``<name>.1``, ``<name>.1`` becomes ``<name>.2`` and so on; the oldest is deleted. So a trail never takes more
than ``files`` times its size. A line is one write at the end of the file, so lines of several processes do
not mix. The process that rotates the file locks it; other processes do not wait for that.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import msgspec

from windlass.dashboard.shapes.server import AuditEntry

log = logging.getLogger("windlass.audit")

_BLOCK = 262_144
_TRIES = 10
#: Maximum number of bytes that one page reads from the files.
_LOOKED_BYTES = 4_194_304


class AuditTrail:
    """Entries, read newest first. ``kept``: the maximum number of entries that are returned."""

    def __init__(self, file: Path | None, *, kept: int, file_bytes: int, files: int) -> None:
        self._file = file
        self._kept = kept
        self._file_bytes = file_bytes
        self._files = files
        self._ring: deque[AuditEntry] = deque(maxlen=kept)
        self._number = 0

    def add(self, entry: AuditEntry) -> None:
        """Store one entry. If the file cannot be written, this is logged; the request is not affected."""
        self._number += 1
        entry.id = self._number
        self._ring.append(entry)
        if self._file is not None:
            try:
                self._write(self._file, msgspec.json.encode(entry) + b"\n")
            except OSError as exc:
                log.error("the audit file cannot be written: %s", exc)

    def newest(self, skip: int, limit: int) -> list[AuditEntry]:
        """``limit`` entries after the newest ``skip``."""
        entries = reversed(self._ring) if self._file is None else self._read()
        return list(islice(entries, skip, min(skip + limit, self._kept)))

    def _names(self) -> list[Path]:
        """The files, the newest first."""
        assert self._file is not None
        older = [self._file.with_name(f"{self._file.name}.{number}") for number in range(1, self._files)]
        return [self._file, *older]

    def _write(self, file: Path, line: bytes) -> None:
        for _ in range(_TRIES):
            with _opened(file) as handle:
                size = os.fstat(handle).st_size
                full = size > 0 and size + len(line) > self._file_bytes
                if not full or not self._rotate(handle, file):
                    os.write(handle, line)
                    return
        raise OSError(f"{file.name} was rotated {_TRIES} times")

    def _rotate(self, handle: int, file: Path) -> bool:
        """Rename the full file. False if another process is doing so; the line then goes to the old file."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        names = self._names()
        if _is_at(handle, file):
            for newer, older in zip(reversed(names[:-1]), reversed(names[1:]), strict=True):
                with suppress(FileNotFoundError):
                    os.replace(newer, older)
        return True

    def _read(self) -> Iterator[AuditEntry]:
        """Entries of the files. Invalid lines are skipped."""
        left = _LOOKED_BYTES
        number = self._kept
        for file in self._names():
            for line in _lines_backwards(file, left):
                left -= len(line) + 1
                with suppress(msgspec.MsgspecError):
                    entry = msgspec.json.decode(line, type=AuditEntry)
                    entry.id = number
                    number -= 1
                    yield entry


@contextmanager
def _opened(file: Path) -> Iterator[int]:
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _is_at(handle: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(file))
    except FileNotFoundError:
        return False


def _lines_backwards(file: Path, most: int) -> Iterator[bytes]:
    """Lines of a file, last one first, from its last ``most`` bytes."""
    with suppress(OSError), file.open("rb") as handle:
        at = handle.seek(0, os.SEEK_END)
        end = max(at - most, 0)
        rest = b""
        while at > end:
            size = min(_BLOCK, at - end)
            at -= size
            handle.seek(at)
            first, *lines = (handle.read(size) + rest).split(b"\n")
            yield from (line for line in reversed(lines) if line)
            rest = first
        if rest and at == 0:
            yield rest
