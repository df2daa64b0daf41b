"""The files of a store, and which of them count.

``DIR/windlass-store`` says whose the directory is. ``DIR/<namespace>/`` holds

* ``current``: the generation that counts, replaced in one step;
* ``<generation>.log``: a snapshot, then the steps since;
* ``store-lock``, ``store-turn``, ``store-compact``: locks that die with their process;
* ``wake/``: sockets of the processes that listen; ``torn``: the last tail that was cut off.

No name in there comes from a job.
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
    """What ``current`` says. ``base``: where in the log its steps begin; ``number``: the step before them."""

    format: int = FORMAT
    #: Which store this is: made once, at random.
    store: str
    generation: int
    base: int
    number: int
    version: str = __version__


def log_name(generation: int) -> str:
    return f"{generation:08d}.log"


def prepare(path: str, directory: str, mode: int) -> None:
    """Make the directories, for files of ``mode``, or refuse one that is not ours."""
    make_folder(path, mode)
    marker = os.path.join(path, MARKER)
    if not os.path.exists(marker):
        others = any(not name.startswith(MARKER) for name in os.listdir(path))
        if not os.path.exists(marker):  # still: another process that makes it writes the marker first
            if others:
                raise errors.foreign(path)
            publish(marker, _MARKER_TEXT, mode)
    if not os.path.isdir(directory):
        make_folder(directory, mode)
        sync_directory(path)


def places(path: str, directory: str) -> Iterator[str]:
    """Everything that this process must be able to use."""
    yield from (path, directory)
    with contextlib.suppress(OSError):
        yield from (entry.path for entry in os.scandir(directory))


def is_store(path: str) -> bool:
    """Whether a directory was made by us."""
    return os.path.exists(os.path.join(path, MARKER))


def read_current(directory: str, fd: int | None = None) -> Current | None:
    """What counts now; None when nothing was made yet."""
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
    """Make a generation the one that counts. The lock must be held, and the log be on disk."""
    publish(os.path.join(directory, CURRENT), msgspec.json.encode(current) + b"\n")


def create(directory: str) -> Current:
    """The first generation, empty. The lock must be held."""
    data = frames.make(FrameKind.HEAD, 1, head_body()) + frames.make(FrameKind.BASE, 0, b"")
    publish(os.path.join(directory, log_name(1)), data)
    current = Current(store=new_id(), generation=1, base=len(data), number=0)
    write_current(directory, current)
    return current


def head_body() -> bytes:
    return msgspec.json.encode({"store": "windlass", "version": __version__})


def publish(path: str, data: bytes, mode: int | None = None) -> None:
    """Put a file in its place, whole and durable, in one step; without ``mode`` it follows the folder's."""
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
    """Write everything at ``offset``, or raise."""
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
    """Remove what earlier generations and ended processes left. The compaction lock must be held."""
    for name in os.listdir(directory):
        stem, _, ending = name.partition(".")
        old = ending == "log" and stem.isdigit() and int(stem) < current.generation
        if old or name.endswith(".tmp"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))


def check_posix() -> None:
    """Refuse systems without the locks that this store is built on."""
    if not hasattr(os, "pread"):
        raise StorageError("file:// needs a POSIX system (flock, pread); use sqlite:// here")
