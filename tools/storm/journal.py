"""What a process of a storm saw, line by line, kept through ``kill -9``.

Each line is one ``write`` to a file opened for appending: what was written before the process died is there
afterwards, a line that was being written may be cut and is ignored. Files are kept short, so that a limit on
the size of files (the fault ``full-disk``) hits the store and not the witness.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

#: A journal goes on in another file after so many bytes.
FILE_BYTES = 200_000

Line = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Journal:
    """The lines of one process, or of one task in a storm that has only one process."""

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
        """Put one line down; it is there when this returns."""
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
    """All lines of all journals, those of one journal in their order."""
    for path in sorted(directory.glob("*.jsonl")):
        for text in path.read_bytes().split(b"\n"):
            try:
                yield _decode(text)
            except msgspec.DecodeError:
                continue  # the end of a file, or a line that its process did not live to finish
