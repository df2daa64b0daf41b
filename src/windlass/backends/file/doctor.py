"""Examine and repair the files of a store: ``windlass doctor file:///directory``."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from windlass.backend.health import Finding, fact, problem, warning
from windlass.backend.local.locks import FairLock
from windlass.backend.local.modes import mode_of
from windlass.backend.urls import BackendUrl
from windlass.backends.file import directory as dr
from windlass.backends.file import effects, errors, frames, snapshot
from windlass.backends.file.frames import FrameKind
from windlass.backends.file.settings import FileSettings, parse
from windlass.backends.file.store import FileStore
from windlass.core.ids import new_id
from windlass.core.text import printable
from windlass.errors import StorageError

_REPAIR = "stop the workers, keep a copy of the directory, then run windlass doctor with --repair"


@dataclass
class Survey:
    """The contents of a log file."""

    size: int
    snapshot: int = 0
    steps: int = 0
    first: int = 0
    last: int = 0
    has_base: bool = False
    newer: int = 0
    #: Damaged ranges: first byte, and the byte after the last.
    damage: list[tuple[int, int]] = field(default_factory=list)
    #: Records that match their checksum but cannot be decoded, each with the offset of its step.
    unread: list[tuple[int, effects.Unread]] = field(default_factory=list)
    #: Bytes at the end that are not a complete frame.
    torn: int = 0
    store: FileStore | None = None

    @property
    def is_whole(self) -> bool:
        return self.has_base and not self.damage and not self.unread and not self.newer


def survey(path: str, *, load: bool) -> Survey:
    """Read every frame of a log; with ``load`` also apply the complete ones to a store."""
    with open(path, "rb") as file:
        data = memoryview(file.read())
    found = Survey(size=len(data), store=FileStore() if load else None)
    at = 0
    while at < len(data):
        try:
            frame = frames.read(data, at)
        except frames.Newer as exc:
            found.newer = exc.format
            break
        if frame is not None:
            _add_frame(found, frame)
            at = frame.end
            continue
        after = next(frames.search(data, at + 1), None)
        if after is None:
            found.torn = len(data) - at
            break
        found.damage.append((at, after))
        at = after
    return found


def _add_frame(found: Survey, frame: frames.Frame) -> None:
    """Count a frame, and apply it if the survey has a store."""
    if frame.kind in (FrameKind.PIECE, FrameKind.STEP) and found.store is not None:
        step = effects.decode(frame.body)
        found.unread += [(frame.start, effect) for effect in effects.unread(step)]
        found.store.follow(step)
    if frame.kind == FrameKind.STEP:
        expected = found.last + 1
        if frame.number != expected and not found.damage:
            found.damage.append((frame.start, frame.start))
        found.steps += 1
        found.last = frame.number
    else:
        found.snapshot = frame.end
        if frame.kind == FrameKind.BASE:
            found.has_base, found.first, found.last = True, frame.number, frame.number


def examine(url: BackendUrl, deep: bool) -> Iterator[Finding]:
    """Yield findings about the files of the store. Changes nothing."""
    settings = parse(url)
    if not dr.is_store(settings.path):
        yield problem(f"there is no store in {settings.path}", "check the path; a worker would create it")
        return
    try:
        current = dr.read_current(settings.directory)
        if current is None:
            spaces = ", ".join(_namespaces(settings)) or "none"
            yield problem(f"it has no namespace {settings.namespace!r} (there are: {spaces})")
            return
        path = os.path.join(settings.directory, dr.log_name(current.generation))
        found = survey(path, load=deep)
    except errors.NewerLogError as exc:
        yield problem(str(exc), "upgrade")
        return
    except (OSError, StorageError) as exc:
        yield problem(str(errors.to_error(exc, settings.shown)), _REPAIR)
        return
    yield fact(
        f"format {current.format}, generation {current.generation}: a snapshot of {found.snapshot:,} bytes "
        f"and {found.steps:,} steps of {found.size - found.snapshot:,} bytes"
    )
    yield from _verdict(path, found, deep)
    torn = os.path.join(settings.directory, "torn")
    if os.path.exists(torn):
        yield fact(
            f"the last tail that a dying process left is kept in {torn} ({os.stat(torn).st_size} bytes)"
        )


def _verdict(path: str, found: Survey, deep: bool) -> Iterator[Finding]:
    for start, end in found.damage:
        what = f"{end - start} bytes are not what was written" if end > start else "a step is missing before"
        yield problem(f"{path} is damaged at byte {start}: {what}", _REPAIR)
    for start, effect in found.unread:
        names = effect.names()
        whose = "a record" if names is None else f"the record of job {names[1]} in queue {names[0]}"
        text = f"{path}: {whose} at byte {start} cannot be read: {effect.why}"
        yield warning(printable(text), "windlass doctor --repair sets it aside")
    if found.newer:
        yield problem(
            f"{path} has steps of format {found.newer}, which this version does not know", "upgrade"
        )
    elif not found.has_base:
        yield problem(f"{path} is damaged: its snapshot is not whole", _REPAIR)
    elif found.torn:
        advice = "nothing to do: the next writer cuts them off (they were never acknowledged)"
        yield warning(f"{path} ends with {found.torn} bytes of an unfinished step", advice)
    if found.is_whole:
        checked = "all checksums match, all steps read" if deep else "all checksums match"
        yield fact(checked)


def _namespaces(settings: FileSettings) -> list[str]:
    names = sorted(os.listdir(settings.path))
    return [name for name in names if os.path.exists(os.path.join(settings.path, name, dr.CURRENT))]


# --- repair -------------------------------------------------------------------------------------------


def repair(url: BackendUrl) -> Iterator[Finding]:
    """Write everything that can be read to a new generation. The damaged file is kept beside it."""
    settings = parse(url)
    if not dr.is_store(settings.path) or not os.path.isdir(settings.directory):
        yield problem(f"there is no store in {settings.directory}", "check the path")
        return
    try:
        with _locked(settings):
            yield from _repair(settings.directory)
    except (OSError, StorageError) as exc:
        yield problem(str(errors.to_error(exc, settings.shown)))


@contextlib.contextmanager
def _locked(settings: FileSettings) -> Iterator[None]:
    """Hold the store's lock. Raises ``OSError`` if another process holds it for the whole timeout."""
    lock = FairLock(os.path.join(settings.directory, "store"), mode_of(settings.directory))
    try:
        deadline = time.monotonic() + settings.timeout
        while not lock.try_acquire():
            if time.monotonic() > deadline:
                raise OSError(errno.EWOULDBLOCK, "another process holds its lock: stop it first")
            time.sleep(0.01)
        yield
    finally:
        lock.close()


def _repair(directory: str) -> Iterator[Finding]:
    generation, store_id = _newest(directory)
    path = os.path.join(directory, dr.log_name(generation))
    found = survey(path, load=True)
    if found.newer:
        yield problem(f"{path} was written by a newer version", "upgrade; nothing was changed")
        return
    if found.is_whole and store_id and not found.torn:
        yield fact("nothing is damaged: nothing was changed")
        return
    assert found.store is not None
    _write_generation(directory, generation + 1, store_id, found)
    kept = os.path.join(directory, f"damaged-{dr.log_name(generation)}")
    os.replace(path, kept)
    lost = sum(end - start for start, end in found.damage) + found.torn
    yield fact(
        f"kept {found.steps:,} whole steps as generation {generation + 1}; {lost:,} bytes could not be read. "
        f"The file as it was is {kept}"
    )
    if found.unread:
        advice = "jobs among them are kept as failed, reason bad_record; the rest is in the file as it was"
        yield warning(f"{len(found.unread)} records could not be read and were set aside", advice)
    if found.damage or not found.has_base:
        advice = "jobs added or ended in the lost bytes may be missing or run again: compare with a backup"
        yield warning(f"{len(found.damage)} places were damaged", advice)


def _newest(directory: str) -> tuple[int, str]:
    """The current generation, and the id of the store ("" if ``current`` cannot be read)."""
    try:
        current = dr.read_current(directory)
        if current is not None:
            return current.generation, current.store
    except errors.DamagedLogError:
        pass
    stems = [name.partition(".") for name in os.listdir(directory)]
    found = [int(stem) for stem, _, ending in stems if ending == "log" and stem.isdigit()]
    for generation in sorted(found, reverse=True):
        if survey(os.path.join(directory, dr.log_name(generation)), load=False).has_base:
            return generation, ""
    if not found:
        raise StorageError(f"{directory} holds no log: restore a backup")
    return max(found), ""


def _write_generation(directory: str, generation: int, store_id: str, found: Survey) -> None:
    assert found.store is not None
    data = bytearray(frames.make(FrameKind.HEAD, generation, dr.head_body()))
    for number, piece in enumerate(snapshot.pieces(found.store), 1):
        step = effects.LogStep(found.store.now_ms, found.store.last_place, piece)
        data += frames.make(FrameKind.PIECE, number, effects.encode(step))
    data += frames.make(FrameKind.BASE, found.last, b"")
    dr.publish(os.path.join(directory, dr.log_name(generation)), bytes(data))
    # A new store id makes processes that have the old state in memory read everything again.
    current = dr.Current(store=new_id(), generation=generation, base=len(data), number=found.last)
    dr.write_current(directory, current)
