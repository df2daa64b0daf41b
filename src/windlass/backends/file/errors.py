"""The errors of a store in a directory, with advice."""

from __future__ import annotations

import errno

from windlass.backend.local import errors
from windlass.backends.file.frames import FORMAT
from windlass.errors import StorageError, WindlassError

_ADVICE = {
    errno.ENOSPC: "the disk is full: make room, then repeat the call",
    errno.EDQUOT: "the disk quota is used up: make room, then repeat the call",
    errno.EFBIG: "the file may not grow any more (a limit of the process or the file system): raise it",
    errno.EROFS: "the file system is read-only: mount it for writing, or choose another directory",
    errno.EACCES: "give this user write access to the directory and its files",
    errno.EPERM: "give this user write access to the directory and its files",
    errno.ENOENT: "the directory is gone: restore it, or close and open the store to begin a new one",
    errno.ENOTDIR: "the path is not a directory: choose another",
    errno.EIO: "the disk reported an error: check it, then repeat the call",
    errno.EMFILE: "this process has too many open files: raise its limit (ulimit -n)",
    errno.ENOLCK: "the file system has no locks: put the directory on a local disk",
}


class DamagedLogError(StorageError):
    """A file of the store does not contain what was written; the message names the byte."""

    code = "damaged"

    def __init__(self, path: str, offset: int, what: str) -> None:
        self.path = path
        self.offset = offset
        super().__init__(
            f"{path} is damaged at byte {offset}: {what}. Nothing was changed. Restore a backup, or see "
            "'windlass doctor' for this URL: it says what is whole, and with --repair keeps that"
        )


class NewerLogError(StorageError):
    """A newer version of windlass has written the file."""

    def __init__(self, path: str, format: int) -> None:
        super().__init__(
            f"{path} has format {format} and this version of windlass knows formats up to {FORMAT}: a newer "
            "version wrote it. Upgrade this process; nothing was changed"
        )


def not_a_store(path: str) -> StorageError:
    """The error for a directory that another program uses."""
    return StorageError(
        f"directory {path!r} is not empty and was not made by windlass: name an empty or a new directory"
    )


def to_error(exc: Exception, what: str) -> WindlassError:
    """Translate ``exc`` to the error for callers, with advice if there is any; ``what`` failed."""
    return errors.to_error(exc, what, _ADVICE.get(exc.errno or 0, "") if isinstance(exc, OSError) else "")
