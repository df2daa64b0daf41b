"""The folder of the sockets of a store.

Normally it is a folder beside the store, which is never removed. But the path of a socket has at most about
100 bytes: the sockets of a store with a longer path are in a folder of the system's temporary directory. All
processes that use the store share that folder, and the last one removes it:

- each process holds a shared lock on the folder (``flock``) while its store is open;
- a process that closes its store tries to get the exclusive lock. It gets the lock if no other process uses
  the folder, and then removes the folder;
- a process that died holds no lock. The next process that creates a folder removes the one left behind.

After locking a folder, a process looks up its path again: another process may have removed the folder, or
replaced it by a new one, in the meantime.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from types import ModuleType

from windlass.backend.local.locks import fcntl
from windlass.backend.local.modes import PRIVATE, folder_mode, make_folder, mode_of

#: Longest path of a socket that all systems accept, and the part of it that is reserved for the name.
_LONGEST_PATH = 100
_LONGEST_NAME = 40
#: The most folders that one process checks for removal.
_SWEEP = 100
#: Longest wait for another process that is removing the folder.
_LOCK_TIMEOUT_S = 1.0
_PAUSE_S = 0.001


def directory(beside: str) -> str:
    """The folder for the sockets of a store: ``beside``, or a temporary folder if that path is too long."""
    if len(os.fsencode(beside)) <= _LONGEST_PATH - _LONGEST_NAME:
        return beside
    key = hashlib.blake2b(os.fsencode(beside), digest_size=8).hexdigest()
    return os.path.join(tempfile.gettempdir(), _prefix() + key)


class SocketFolder:
    """The socket folder of one store in one process."""

    def __init__(self, beside: str, like: str) -> None:
        """``like`` is the file or folder of the store whose mode the sockets get."""
        self._like = like
        self.path = directory(beside)
        #: Whether it is in the temporary directory, which other users share.
        self._shared = self.path != beside
        #: A descriptor of the folder; -1 while it is not open.
        self.fd = -1

    @property
    def mode(self) -> int:
        """The mode of the sockets."""
        return PRIVATE if self._shared else mode_of(self._like)

    def open(self) -> None:
        """Create the folder, or use the existing one. Raises ``OSError`` if that fails."""
        if not self._shared:
            make_folder(self.path, self.mode)
            self.fd = os.open(self.path, os.O_RDONLY)
            return
        if fcntl is None:  # Windows, which does not support these sockets either
            raise OSError("no folder for sockets: this system has no flock")
        _sweep(fcntl, self.path)
        give_up = time.monotonic() + _LOCK_TIMEOUT_S
        while self.fd < 0:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, folder_mode(PRIVATE))
            self.fd = _locked(fcntl, self.path, fcntl.LOCK_SH)
            if self.fd < 0:  # another process is removing it
                if time.monotonic() > give_up:
                    raise OSError(f"{self.path}: no lock within {_LOCK_TIMEOUT_S:g} s")
                time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Stop using the folder; the last process removes it. Idempotent."""
        if self.fd < 0:
            return
        try:
            if self._shared and fcntl is not None:
                _remove_unused(fcntl, self.path, self.fd)
        finally:
            os.close(self.fd)
            self.fd = -1


def _prefix() -> str:
    return f"windlass-{os.getuid() if hasattr(os, 'getuid') else 0}-"


def _locked(fcntl: ModuleType, path: str, kind: int) -> int:
    """Open and lock the folder at ``path``; -1 if another process holds the lock or removed the folder."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return -1
    try:
        if not _is_own(os.fstat(fd)):
            raise PermissionError(f"{path} is open to other users")
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
        if _is_at(path, fd):
            return fd
    except BlockingIOError:
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return -1


def _remove_unused(fcntl: ModuleType, path: str, fd: int) -> None:
    """Remove the folder of ``fd``, unless another process uses it."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            if _is_at(path, fd):
                _remove(path)
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough if a forked child has the descriptor too


def _sweep(fcntl: ModuleType, beside: str) -> None:
    """Remove folders of this user that no process uses; checks at most ``_SWEEP`` folders."""
    with contextlib.suppress(OSError), os.scandir(os.path.dirname(beside)) as entries:
        for path in islice(_candidates(entries), _SWEEP):
            with contextlib.suppress(OSError):
                fd = _locked(fcntl, path, fcntl.LOCK_EX)
                if fd >= 0:
                    try:
                        _remove_unused(fcntl, path, fd)
                    finally:
                        os.close(fd)


def _candidates(entries: Iterator[os.DirEntry[str]]) -> Iterator[str]:
    ours = re.compile(re.escape(_prefix()) + "[0-9a-f]{16}")
    return (entry.path for entry in entries if ours.fullmatch(entry.name))


def _remove(path: str) -> None:
    """Remove a folder under its exclusive lock. Sockets that are left in it belong to dead processes."""
    for name in os.listdir(path):
        box = os.path.join(path, name)
        if _answers(box):  # a process of an older release, which takes no lock
            return
        os.unlink(box)
    os.rmdir(path)


def _answers(path: str) -> bool:
    """Whether a process has the socket at ``path`` open."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
    return True


def _is_at(path: str, fd: int) -> bool:
    """Whether ``fd`` is still the folder at ``path``."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _is_own(found: os.stat_result) -> bool:
    """Whether it is a folder of this user that no other user can access."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
