"""Who may read and write the files of a store.

A store is made for its user alone: files 0600, folders 0700, whatever the umask says. ``?mode=0660`` makes it
for a group. What is there already is never changed, and what is added to a store follows it: files beside a
database have its mode, files in a folder that of the folder. So the first process decides for all.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable

from windlass.errors import ConfigError, StorageError

#: Files of a new store, unless the URL says otherwise.
PRIVATE = 0o600
_ALLOWED = re.compile(r"0?([46][0246][0246])")
_READ_WRITE = 0o666


def parse_mode(text: str | None) -> int:
    """The mode that a URL asks for: ``0600``, ``0660``, ``0640``, ..."""
    if text is None:
        return PRIVATE
    found = _ALLOWED.fullmatch(text)
    mode = int(found[1], 8) if found else 0
    if mode & 0o600 != 0o600:
        raise ConfigError("mode", "one that lets its user read and write: 0600, or 0660 for a group", text)
    return mode


def mode_of(path: str) -> int:
    """Who may read and write beside or in ``path``, as the mode of a file."""
    return os.stat(path).st_mode & _READ_WRITE


def folder_mode(mode: int) -> int:
    """The mode of a folder for files of ``mode``; one for a group hands the group on to what is in it."""
    return mode | (mode & 0o444) >> 2 | (stat.S_ISGID if mode & 0o060 else 0)


def open_file(path: str, flags: int, mode: int) -> int:
    """Open a file, and make it with exactly ``mode`` if it is not there."""
    flags |= os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
    try:
        fd = os.open(path, flags | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path, flags, mode)
    if hasattr(os, "fchmod"):
        os.fchmod(fd, mode)  # the umask took something away
    return fd


def make_file(path: str, mode: int) -> None:
    """Make an empty file with ``mode``; one that is there stays as it is."""
    if not os.path.exists(path):
        os.close(open_file(path, os.O_RDWR, mode))


def make_folder(path: str, mode: int) -> None:
    """Make a folder, and those above it, for files of ``mode``; those that are there stay as they are."""
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
    """The refusal of a file whose folder does not exist, if that is so."""
    folder = os.path.dirname(os.path.abspath(path))
    if os.path.isdir(folder):
        return None
    return StorageError(f"{path} cannot be made: its folder does not exist. Make it first: mkdir -p {folder}")


def denied(paths: Iterable[str]) -> StorageError | None:
    """The refusal of a store that this user may not use, if one of ``paths`` is the reason."""
    for path in paths:
        try:
            found = os.stat(path)
            folder = stat.S_ISDIR(found.st_mode)
            usable = os.access(path, os.R_OK | os.W_OK | (os.X_OK if folder else 0), effective_ids=True)
        except (OSError, NotImplementedError):
            continue
        if not usable and found.st_uid != os.geteuid():  # else it is the disk that refuses
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
