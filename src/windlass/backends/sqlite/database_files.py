"""Checks that the files of a database are still the ones that this process has open.

After a file was deleted or replaced, writes to the open descriptor still succeed, but no other process reads
them. Such writes must not be acknowledged, and SQLite does not notice the change.
"""

from __future__ import annotations

import os
import time

from windlass.errors import StoreReplacedError

#: A check is cached only if the directory had not changed for this long, as its time stamp is coarse.
_SETTLED_NS = 50_000_000

_Identity = tuple[int, int] | None


class DatabaseFiles:
    """The files of one open database. While their directory is unchanged, a check is one ``stat`` call."""

    def __init__(self, path: str, shown: str) -> None:
        self._shown = shown
        self._directory = os.path.dirname(path)
        self._known = {file: _identity(file) for file in (path, path + "-wal", path + "-shm")}
        self._stamp: tuple[int, int, int] | None = None

    def check(self) -> None:
        """Raise ``StoreReplacedError`` if a file was deleted or replaced."""
        try:
            found = os.stat(self._directory)
        except FileNotFoundError:
            raise StoreReplacedError(self._shown, self._directory) from None
        stamp = (found.st_dev, found.st_ino, found.st_mtime_ns)
        if stamp == self._stamp:
            return
        looked_ns = time.time_ns()
        for file, known in self._known.items():
            now = _identity(file)
            if known is None:
                self._known[file] = now
            elif now != known:
                raise StoreReplacedError(self._shown, file)
        self._stamp = stamp if looked_ns - found.st_mtime_ns > _SETTLED_NS else None


def _identity(path: str) -> _Identity:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
