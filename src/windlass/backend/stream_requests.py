"""Requests about the live output of a job."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backend.requests import ChangeResult, Request
from windlass.core.job import JobRef
from windlass.core.states import JobState
from windlass.core.stream_rules import Chunk


class AppendStream(Request[ChangeResult], kw_only=True):
    """Append chunks to the output of a running job, under its token. Sends the hint ``stream:<queue>``.

    ``first`` is the number of the first chunk within this attempt, from 1. Chunks that the store already has
    are skipped, so the request may be repeated. The store keeps 10,000 chunks or 16 MB and drops the oldest.
    """

    needs: ClassVar[str] = "streams"

    ref: JobRef
    token: str
    first: int
    chunks: list[bytes]


class StreamPage(msgspec.Struct):
    """Chunks in order, and the range of numbers in the stream now (``last`` 0: no chunks yet).

    ``state`` is the state of the job; None if it has no record. The stream of a finished job does not grow.
    ``codec`` decodes the chunks.
    """

    chunks: list[Chunk]
    last: int
    oldest: int
    state: JobState | None
    codec: str = "json"


class ReadStream(Request[StreamPage], kw_only=True):
    """At most ``limit`` chunks after number ``after``, oldest first. Dropped chunks are skipped: compare
    ``StreamPage.oldest``."""

    needs: ClassVar[str] = "streams"

    ref: JobRef
    after: int = 0
    limit: int = 1_000
