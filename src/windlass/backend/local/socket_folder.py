"""Where the sockets of a store are.

They are in a folder beside the store, which stays with it. The path of a socket may have about 100 bytes: a
store with a longer path has its sockets in a folder of the system's directory for temporary files instead.
All processes that use the store share that folder, and it goes with the last of them:

- each holds a shared lock on the folder (``flock``) while its store is open;
- one that closes asks for the exclusive lock, and gets it when no other process is left: then it removes
  the folder;
- a process that died holds no lock. Its folder is removed by the next process that makes one.

A folder is locked first and then looked up again by its path, so none that was removed meanwhile is taken for
the one that is there.
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
from typing import TYPE_CHECKING

from windlass.backend.local.modes import PRIVATE, folder_mode, make_folder, mode_of

if TYPE_CHECKING:
    from types import ModuleType

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows, which has no sockets of this kind either
    fcntl = None

#: Longest path of a socket that all systems accept, and what its own name needs of it.
_LONGEST_PATH = 100
_LONGEST_NAME = 40
#: How many folders of processes that died one process looks at.
_SWEEP = 100
#: Longest wait for another process that is just removing the folder.
_PATIENCE_S = 1.0
_PAUSE_S = 0.001


def directory(beside: str) -> str:
    """Where the sockets of a store are: at ``beside``, or elsewhere if that is too long."""
    if len(os.fsencode(beside)) <= _LONGEST_PATH - _LONGEST_NAME:
        return beside
    key = hashlib.blake2b(os.fsencode(beside), digest_size=8).hexdigest()
    return os.path.join(tempfile.gettempdir(), _prefix() + key)


class SocketFolder:
    """The folder of one store, as one process uses it."""

    def __init__(self, beside: str, like: str) -> None:
        """``like``: the file or folder of the store whose mode the sockets follow."""
        self._like = like
        self.path = directory(beside)
        #: Whether it stands among those of other users.
        self._shared = self.path != beside
        #: A descriptor of the folder; -1 while it is not open.
        self.fd = -1

    @property
    def mode(self) -> int:
        """Who may read and write the sockets."""
        return PRIVATE if self._shared else mode_of(self._like)

    def open(self) -> None:
        """Make the folder, or use that of other processes. It raises ``OSError`` when it cannot."""
        if not self._shared:
            make_folder(self.path, self.mode)
            self.fd = os.open(self.path, os.O_RDONLY)
            return
        if fcntl is None:
            raise OSError("no folder for sockets: this system has no flock")
        _sweep(fcntl, self.path)
        give_up = time.monotonic() + _PATIENCE_S
        while self.fd < 0:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.path, folder_mode(PRIVATE))
            self.fd = _locked(fcntl, self.path, fcntl.LOCK_SH)
            if self.fd < 0:  # another process removes it
                if time.monotonic() > give_up:
                    raise OSError(f"{self.path}: no lock within {_PATIENCE_S:g} s")
                time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Leave the folder; the last process removes it."""
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
    """A descriptor of the folder at ``path`` with its lock; -1: another process has that, or removed it."""
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
    """Remove the folder that ``fd`` is open at, unless another process uses it."""
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            if _is_at(path, fd):
                _remove(path)
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)  # a fork of this process may have the descriptor, too


def _sweep(fcntl: ModuleType, beside: str) -> None:
    """Remove folders of this user that no process uses, a bounded number of them."""
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
    """Remove a folder whose lock is held: what is left in it are sockets of processes that died."""
    for name in os.listdir(path):
        box = os.path.join(path, name)
        if _answers(box):  # a process of a release that takes no lock
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
    """Whether ``fd`` is open at what stands at ``path`` now."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    except FileNotFoundError:
        return False


def _is_own(found: os.stat_result) -> bool:
    """Whether no other user can put things into a folder that stands among those of others."""
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
