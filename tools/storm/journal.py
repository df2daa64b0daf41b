"""The journal of an actor, which survives ``kill -9``.

Each line is one ``write`` to a file opened for appending, so lines that were written before the process died
are in the file. An incomplete last line is ignored. Files are kept short, so that a limit on the size of
files (the fault ``full-disk``) affects the store and not the journal.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

#: A journal continues in another file after this many bytes.
FILE_BYTES = 200_000

Line = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Journal:
    """The journal of one actor."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self.name = name
        self._lock = threading.Lock()
        self._number = 0
        self._bytes = 0
        self._fd = self._open()

    def _open(self) -> int:
        path = self._directory / f"{self.name}.{self._number:04}.jsonl"
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, op: str, **facts: Any) -> None:
        """Write one line. It survives the process once this returns. Callable from any thread."""
        line = _encode({"op": op, "by": self.name, **facts}) + b"\n"
        with self._lock:
            os.write(self._fd, line)
            self._bytes += len(line)
            if self._bytes > FILE_BYTES:
                os.close(self._fd)
                self._number, self._bytes = self._number + 1, 0
                self._fd = self._open()

    def close(self) -> None:
        with self._lock:
            os.close(self._fd)


def read_journals(directory: Path) -> Iterator[Line]:
    """Yield the lines of all journals; lines of one journal in their order."""
    for path in sorted(directory.glob("*.jsonl")):
        for text in path.read_bytes().split(b"\n"):
            try:
                yield _decode(text)
            except msgspec.DecodeError:
                continue  # the end of a file, or a line that was not completed
