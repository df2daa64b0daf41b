"""Checks after a failed flush whether the write-ahead log still holds every commit.

The operating system may have dropped pages that it could not write. Reads of the log then return the old
bytes, while the index of the log (the ``-shm`` file) still counts the lost frames. SQLite verifies the
checksums of frames only when it rebuilds that index. Until then it would read the old bytes, copy them into
the database, and append later commits after them, where a recovery does not find them.

So this module verifies the checksums itself. If one is wrong, it invalidates the index, and SQLite rebuilds
it in every process, up to the last valid frame. The commits after that frame had not been acknowledged.

The layouts follow SQLite's documents "WAL-mode File Format" and "Database File Format".
"""

from __future__ import annotations

import os
import struct
import sys
from array import array

#: The index begins with two copies of its header. All fields except the salts are in native byte order.
_INDEX = struct.Struct("=12xBxHI4xII8s8x")
#: Sizes in bytes of the log's header and of a frame's header.
_HEADER, _FRAME = 32, 24
_SUMS = struct.Struct(">II")
_MASK = 0xFFFFFFFF
_BIG_ENDIAN_SUMS = 1

#: Descriptors of index files. They are never closed: closing any descriptor of a file releases all POSIX
#: locks that this process has on it, including SQLite's.
_indexes: dict[tuple[int, int], int] = {}

Sums = tuple[int, int]


def is_whole(log_fd: int, path: str) -> bool:
    """Whether the log has every frame that its index counts. The caller holds the write transaction."""
    ready, page_size, frames, *last, salt = _INDEX.unpack(os.pread(_index(path), _INDEX.size, 0))
    if not ready or not frames:
        return True
    page = 65_536 if page_size == 1 else page_size
    header = os.pread(log_fd, _HEADER, 0)
    if len(header) < _HEADER or header[16:24] != salt:
        return False
    big = bool(struct.unpack(">I", header[:4])[0] & _BIG_ENDIAN_SUMS)
    sums = _add((0, 0), header[:24], big)
    if sums != _SUMS.unpack(header[24:]):
        return False
    at = _HEADER
    for _ in range(frames):
        frame = os.pread(log_fd, _FRAME + page, at)
        if len(frame) < _FRAME + page or frame[8:16] != salt:
            return False
        sums = _add(_add(sums, frame[:8], big), frame[_FRAME:], big)
        if sums != _SUMS.unpack(frame[16:24]):
            return False
        at += len(frame)
    return list(sums) == last


def make_index_again(path: str) -> None:
    """Invalidate the index, so that SQLite rebuilds it before the next transaction of any process."""
    os.pwrite(_index(path), bytes(2 * 48), 0)


def _index(path: str) -> int:
    found = os.stat(path + "-shm")
    key = (found.st_dev, found.st_ino)
    if key not in _indexes:
        _indexes[key] = os.open(path + "-shm", os.O_RDWR | getattr(os, "O_CLOEXEC", 0))
    return _indexes[key]


def _add(sums: Sums, data: bytes, big: bool) -> Sums:
    """Continue SQLite's checksum over ``data``."""
    words = array("I", data)
    if big is not (sys.byteorder == "big"):
        words.byteswap()
    first, second = sums
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _MASK
        second = (second + odd + first) & _MASK
    return first, second
