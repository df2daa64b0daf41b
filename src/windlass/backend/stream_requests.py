"""Requests about the live output of a job."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from windlass.backend.requests import ChangeResult, Request
from windlass.core.job import JobRef
from windlass.core.states import JobState
from windlass.core.stream_rules import Chunk


class AppendStream(Request[ChangeResult], kw_only=True):
    """Append chunks to the output of a running job; needs its token. Touches topic ``stream:<queue>``.

    ``first`` is the number of the first chunk within this attempt, from 1: chunks that are there already are
    skipped, so the request may be repeated. 10,000 chunks or 16 MB are kept, the oldest go.
    """

    needs: ClassVar[str] = "streams"

    ref: JobRef
    token: str
    first: int
    chunks: list[bytes]


class StreamPage(msgspec.Struct):
    """Chunks in order, and what the stream holds now (``last`` 0: nothing yet).

    ``state`` is the job's (None: there is no record); once it has finished, nothing is added any more.
    ``codec`` reads the chunks.
    """

    chunks: list[Chunk]
    last: int
    oldest: int
    state: JobState | None
    codec: str = "json"


class ReadStream(Request[StreamPage], kw_only=True):
    """Chunks after number ``after``, oldest first, at most ``limit``; trimmed ones are skipped
    (see ``oldest``)."""

    needs: ClassVar[str] = "streams"

    ref: JobRef
    after: int = 0
    limit: int = 1_000
