"""Frames: how steps are stored in a file, each with its length, format, number and checksum.

The header never changes, so that a frame of a newer format is not taken for a damaged one. Readers ignore a
frame that is not complete. So a process that reads while another one appends sees a step completely or not
at all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

#: The format that this version writes, and the newest that it reads. 2: stubs of removed records (table 12).
FORMAT = 2
MAGIC = b"\xa7W"
#: Magic, format, kind, length of the body, checksum, number.
_HEADER = struct.Struct("<2sBBIIQ")
HEADER_SIZE = _HEADER.size
#: The longest body. A header with a longer one is damaged.
LONGEST = 1 << 30


class FrameKind(IntEnum):
    """The content of a frame. A file consists of one HEAD, PIECEs, one BASE, then STEPs."""

    HEAD = 0
    #: A piece of the snapshot.
    PIECE = 1
    #: The end of the snapshot. Replay starts with the step after the number of this frame.
    BASE = 2
    STEP = 3


class Frame(NamedTuple):
    """One complete frame; ``start`` and ``end`` are its offsets in the file."""

    kind: int
    number: int
    body: memoryview
    start: int
    end: int


class Newer(Exception):
    """A complete frame of a format that this version does not know."""

    def __init__(self, format: int) -> None:
        self.format = format
        super().__init__(format)


def make(kind: FrameKind, number: int, body: bytes) -> bytes:
    """Return the bytes of a frame."""
    return _HEADER.pack(MAGIC, FORMAT, kind, len(body), _sum(FORMAT, kind, number, body), number) + body


def _sum(format: int, kind: int, number: int, body: bytes | memoryview) -> int:
    return crc32(body, crc32(_HEADER.pack(MAGIC, format, kind, len(body), 0, number)))


def read(data: memoryview, at: int, offset: int = 0) -> Frame | None:
    """Read the frame at ``data[at:]``; None if there is no complete frame. Raises ``Newer``.

    ``offset`` is the offset of ``data`` in the file.
    """
    begin = at + HEADER_SIZE
    if len(data) < begin:
        return None
    magic, format, kind, length, checksum, number = _HEADER.unpack_from(data, at)
    if magic != MAGIC or length > LONGEST or len(data) < begin + length:
        return None
    body = data[begin : begin + length]
    if _sum(format, kind, number, body) != checksum:
        return None
    if format > FORMAT:
        raise Newer(format)
    return Frame(kind, number, body, offset + at, offset + begin + length)


def wanted(data: memoryview, at: int) -> int:
    """The size of the frame at ``at`` according to its header; 0 if there is no frame."""
    if len(data) < at + HEADER_SIZE:
        return HEADER_SIZE
    magic, _, _, length, _, _ = _HEADER.unpack_from(data, at)
    return HEADER_SIZE + length if magic == MAGIC and length <= LONGEST else 0


def search(data: memoryview, at: int) -> Iterator[int]:
    """Yield where complete frames begin from ``at`` on, and skip the bytes between them.

    Stops after the first frame of a newer format.
    """
    whole = bytes(data)
    while (at := whole.find(MAGIC, at)) >= 0:
        try:
            frame = read(data, at)
        except Newer:
            yield at
            return
        if frame is not None:
            yield at
            at = frame.end
        else:
            at += 1
