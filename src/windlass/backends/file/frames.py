"""Frames: how steps stand in a file, each with its length, format, number and checksum.

The layout of the header is the same in all formats, forever: a frame of a newer format is not taken for a
damaged one. A frame is whole or it does not count, so a process that reads while another one appends sees
every step completely or not at all.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

#: What this version writes, and the newest that it reads. 2: stubs of removed records (table 12).
FORMAT = 2
MAGIC = b"\xa7W"
#: Magic, format, kind, length of the body, checksum, number.
_HEADER = struct.Struct("<2sBBIIQ")
HEADER_SIZE = _HEADER.size
#: No body is longer; a length beyond is damage.
LONGEST = 1 << 30


class FrameKind(IntEnum):
    """What a frame holds. A file has one HEAD, PIECEs, one BASE, then STEPs."""

    HEAD = 0
    #: A piece of the snapshot.
    PIECE = 1
    #: The snapshot ends; the steps to replay begin after the one with this frame's number.
    BASE = 2
    STEP = 3


class Frame(NamedTuple):
    """One whole frame; ``start`` and ``end`` are its place in the file."""

    kind: int
    number: int
    body: memoryview
    start: int
    end: int


class Newer(Exception):
    """A whole frame of a format that this version does not know."""

    def __init__(self, format: int) -> None:
        self.format = format
        super().__init__(format)


def make(kind: FrameKind, number: int, body: bytes) -> bytes:
    """The bytes of a frame."""
    return _HEADER.pack(MAGIC, FORMAT, kind, len(body), _sum(FORMAT, kind, number, body), number) + body


def _sum(format: int, kind: int, number: int, body: bytes | memoryview) -> int:
    return crc32(body, crc32(_HEADER.pack(MAGIC, format, kind, len(body), 0, number)))


def read(data: memoryview, at: int, offset: int = 0) -> Frame | None:
    """The frame at ``data[at:]``, in the file at ``offset + at``; None when no whole one is there."""
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
    """How many bytes from ``at`` on the frame there claims to have; 0 when it is no frame."""
    if len(data) < at + HEADER_SIZE:
        return HEADER_SIZE
    magic, _, _, length, _, _ = _HEADER.unpack_from(data, at)
    return HEADER_SIZE + length if magic == MAGIC and length <= LONGEST else 0


def search(data: memoryview, at: int) -> Iterator[int]:
    """Where whole frames begin from ``at`` on, whatever stands between them; up to the first of a newer
    format, which is whole too."""
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
