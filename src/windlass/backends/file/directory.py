"""The files of a store.

``DIR/windlass-store`` marks the directory as ours. ``DIR/<namespace>/`` contains

* ``current``: which generation is current; replaced atomically;
* ``<generation>.log``: a snapshot, then the steps since;
* ``store-lock``, ``store-turn``, ``store-compact``: lock files; a lock ends with its process;
* ``wake/``: sockets of the processes that listen;
* ``torn``: the incomplete step that was cut off last.

File names never contain text from jobs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import msgspec

from windlass._version import __version__
from windlass.backend.local.modes import make_folder, mode_of, open_file
from windlass.backends.file import errors, frames
from windlass.backends.file.frames import FORMAT, FrameKind
from windlass.core.ids import new_id
from windlass.errors import StorageError

MARKER = "windlass-store"
CURRENT = "current"
_MARKER_TEXT = b"This directory belongs to windlass (file:// store). Do not edit what is in it.\n"


class Current(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``current``. ``base`` is the offset of the first step in the log, ``number`` the number
    of the step before it."""

    format: int = FORMAT
    #: The random id of the store.
    store: str
    generation: int
    base: int
    number: int
    version: str = __version__


def log_name(generation: int) -> str:
    return f"{generation:08d}.log"


def prepare(path: str, directory: str, mode: int) -> None:
    """Create the directories for files of ``mode``. Raises ``StorageError`` if another program uses them."""
    make_folder(path, mode)
    marker = os.path.join(path, MARKER)
    if not os.path.exists(marker):
        others = any(not name.startswith(MARKER) for name in os.listdir(path))
        if not os.path.exists(marker):  # checked again: another process may have created the store meanwhile
            if others:
                raise errors.not_a_store(path)
            publish(marker, _MARKER_TEXT, mode)
    if not os.path.isdir(directory):
        make_folder(directory, mode)
        sync_directory(path)


def places(path: str, directory: str) -> Iterator[str]:
    """Yield every path that this process must be able to access."""
    yield from (path, directory)
    with contextlib.suppress(OSError):
        yield from (entry.path for entry in os.scandir(directory))


def is_store(path: str) -> bool:
    """Whether a directory is a windlass store."""
    return os.path.exists(os.path.join(path, MARKER))


def read_current(directory: str, fd: int | None = None) -> Current | None:
    """Read ``current``, from ``fd`` if it is given; None if the store was not created yet.

    Raises ``NewerLogError`` or ``DamagedLogError``.
    """
    path = os.path.join(directory, CURRENT)
    try:
        if fd is not None:
            text = os.pread(fd, 4_096, 0)
        else:
            with open(path, "rb") as file:
                text = file.read()
    except FileNotFoundError:
        return None
    try:
        format = msgspec.json.decode(text, type=dict)["format"]
        if format > FORMAT:
            raise errors.NewerLogError(path, format)
        return msgspec.json.decode(text, type=Current)
    except (msgspec.DecodeError, KeyError, TypeError) as exc:
        raise errors.DamagedLogError(
            path, 0, f"it does not read as what windlass writes there ({exc})"
        ) from exc


def write_current(directory: str, current: Current) -> None:
    """Make a generation current. The lock must be held, and the log must be on disk."""
    publish(os.path.join(directory, CURRENT), msgspec.json.encode(current) + b"\n")


def create(directory: str) -> Current:
    """Create the first, empty generation. The lock must be held."""
    data = frames.make(FrameKind.HEAD, 1, head_body()) + frames.make(FrameKind.BASE, 0, b"")
    publish(os.path.join(directory, log_name(1)), data)
    current = Current(store=new_id(), generation=1, base=len(data), number=0)
    write_current(directory, current)
    return current


def head_body() -> bytes:
    return msgspec.json.encode({"store": "windlass", "version": __version__})


def publish(path: str, data: bytes, mode: int | None = None) -> None:
    """Write a file atomically and durably. Without ``mode`` it gets the mode of its folder."""
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = open_file(
        temporary, os.O_WRONLY | os.O_TRUNC, mode_of(os.path.dirname(path)) if mode is None else mode
    )
    try:
        write_all(fd, data, 0)
        os.fsync(fd)
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    os.replace(temporary, path)
    sync_directory(os.path.dirname(path))


def write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``. Raises ``OSError``."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sweep(directory: str, current: Current) -> None:
    """Remove logs of earlier generations and temporary files. The compaction lock must be held."""
    for name in os.listdir(directory):
        stem, _, ending = name.partition(".")
        old = ending == "log" and stem.isdigit() and int(stem) < current.generation
        if old or name.endswith(".tmp"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))


def check_posix() -> None:
    """Raise ``StorageError`` on systems without the locks that this store needs."""
    if not hasattr(os, "pread"):
        raise StorageError("file:// needs a POSIX system (flock, pread); use sqlite:// here")
