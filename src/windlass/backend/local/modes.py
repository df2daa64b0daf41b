"""The permissions of the files of a store.

A new store belongs to its user alone: files 0600, folders 0700, no matter what the umask is. ``?mode=0660``
gives access to a group. Existing files are never changed, and new files of a store follow the existing ones:
files beside a database get its mode, files in a folder get the mode of the folder. So the process that
creates the store decides for all.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable

from windlass.errors import ConfigError, StorageError

#: The mode of the files of a new store, unless the URL has another.
PRIVATE = 0o600
_ALLOWED = re.compile(r"0?([46][0246][0246])")
_READ_WRITE = 0o666


def parse_mode(text: str | None) -> int:
    """The mode in a URL: ``0600``, ``0660``, ``0640``, ... Raises ``ConfigError`` for any other text."""
    if text is None:
        return PRIVATE
    found = _ALLOWED.fullmatch(text)
    mode = int(found[1], 8) if found else 0
    if mode & 0o600 != 0o600:
        raise ConfigError(
            "mode", "an octal mode with which the owner can read and write, such as 0600 or 0660", text
        )
    return mode


def mode_of(path: str) -> int:
    """The mode for new files beside or in ``path``."""
    return os.stat(path).st_mode & _READ_WRITE


def folder_mode(mode: int) -> int:
    """The mode of a folder for files of ``mode``. Files in a folder for a group inherit that group."""
    return mode | (mode & 0o444) >> 2 | (stat.S_ISGID if mode & 0o060 else 0)


def open_file(path: str, flags: int, mode: int) -> int:
    """Open a file. Creates it with exactly ``mode`` if it does not exist."""
    flags |= os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    try:
        fd = os.open(path, flags | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path, flags, mode)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, mode)  # the umask may have cleared bits
    return fd


def make_file(path: str, mode: int) -> None:
    """Create an empty file with ``mode`` if it does not exist."""
    if not os.path.exists(path):
        os.close(open_file(path, os.O_RDWR, mode))


def make_folder(path: str, mode: int) -> None:
    """Create a folder for files of ``mode``, and its parents. Existing folders are not changed."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path.rstrip("/"))
    if parent and parent != path:
        make_folder(parent, mode)
    try:
        os.mkdir(path, folder_mode(mode))
    except FileExistsError:
        return
    os.chmod(path, folder_mode(mode))


def no_folder(path: str) -> StorageError | None:
    """The error for a file whose folder does not exist; None if the folder exists."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(folder):
        return None
    return StorageError(f"{path} cannot be made: its folder does not exist. Make it first: mkdir -p {folder}")


def denied(paths: Iterable[str]) -> StorageError | None:
    """The error for a store that this user may not use; None if ``paths`` are accessible."""
    for path in paths:
        try:
            found = os.stat(path)
            folder = stat.S_ISDIR(found.st_mode)
            usable = os.access(path, os.R_OK | os.W_OK | (os.X_OK if folder else 0), effective_ids=True)
        except (OSError, NotImplementedError):
            continue
        if not usable and found.st_uid != os.geteuid():  # otherwise ownership is not the cause
            return StorageError(
                f"{path} belongs to user {_name(found.st_uid)} (mode {stat.S_IMODE(found.st_mode):04o}) and "
                f"this process runs as user {_name(os.geteuid())}: run both as one user, or put both into "
                "the group of the file and give it access (new stores: ?mode=0660; this one: chmod g+rw, and "
                "g+rwxs for folders)"
            )
    return None


def _name(uid: int) -> str:
    try:
        import pwd

        return repr(pwd.getpwuid(uid).pw_name)
    except (ImportError, KeyError):
        return str(uid)
