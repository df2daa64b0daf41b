"""Parameters that many routes share."""

from __future__ import annotations

from typing import Annotated

from litestar.params import PathParameter, QueryParameter

from windlass.core.order import Sort
from windlass.core.states import JobState
from windlass.dashboard.paging import MAX_OFFSET
from windlass.dashboard.shapes.base import ID_PATTERN, QUEUE_PATTERN, TEXT_PATTERN

QueueName = Annotated[str, PathParameter(pattern=QUEUE_PATTERN, description="Name of a queue.")]
JobId = Annotated[str, PathParameter(pattern=ID_PATTERN, description="Id of a job.")]
#: A name in a path: ``~0`` means ``~``, ``~1`` means ``/``, ``~2`` means ``.``.
PathText = Annotated[
    str,
    PathParameter(
        pattern=TEXT_PATTERN,
        min_length=1,
        max_length=512,
        description="A name; ~0 stands for ~, ~1 for / and ~2 for a dot.",
    ),
]
OptionalQueue = Annotated[
    str | None, QueryParameter(pattern=QUEUE_PATTERN, description="The queue, when several have such an id.")
]
Queues = Annotated[
    list[Annotated[str, QueryParameter(pattern=QUEUE_PATTERN)]] | None,
    QueryParameter(description="Only these queues."),
]
States = Annotated[
    list[JobState] | None, QueryParameter(name="state", description="Only jobs in these states.")
]
Limit = Annotated[int, QueryParameter(ge=1, le=1_000, description="Most entries of the answer.")]
Offset = Annotated[
    int, QueryParameter(ge=0, le=MAX_OFFSET, description="Entries to skip; cursors reach further.")
]
Cursor = Annotated[
    str | None, QueryParameter(max_length=8_000, description="From the page before (header X-Next-Cursor).")
]
Text = Annotated[str | None, QueryParameter(max_length=1_000)]
Instant = Annotated[int | None, QueryParameter(ge=0, le=2**53, description="Milliseconds since 1970.")]
StreamSeconds = Annotated[
    float, QueryParameter(ge=0, le=86_400, description="End the stream after this many seconds.")
]

SearchText = Annotated[
    str | None,
    QueryParameter(
        max_length=2_000,
        description="A query, such as task:charge_card error:Payment* args.customer.id:42 finished:<1h.",
    ),
]
SortBy = Annotated[
    Sort,
    QueryParameter(
        description="By the time of adding, of being due (scheduled, retrying, suspended), or of the end "
        "(completed, failed, cancelled)."
    ),
]


def versioned(*paths: str) -> list[str]:
    """Paths of the API with and without version: ``/api/jobs``, ``/api/v1/jobs``.

    ``job-queues`` of the path without a version is ``queues`` in the versioned one.
    """
    return [
        *paths,
        *(path.replace("/api/", "/api/v1/", 1).replace("/job-queues", "/queues") for path in paths),
    ]


_ESCAPES = {"~1": "/", "~2": ".", "~0": "~"}


def unescape(segment: str) -> str:
    """The name that a path segment encodes."""
    for escape, letter in _ESCAPES.items():
        segment = segment.replace(escape, letter)
    return segment
