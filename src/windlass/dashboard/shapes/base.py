"""The bases of requests and responses, and bounded texts."""

from __future__ import annotations

from typing import Annotated

import msgspec

from windlass.core.ids import JOB_ID, NAME

QUEUE_PATTERN = rf"^{NAME}$"
ID_PATTERN = rf"^{JOB_ID}$"
#: Any text of one line.
TEXT_PATTERN = r"^[^\u0000-\u001f\u007f]+$"

QueueText = Annotated[str, msgspec.Meta(pattern=QUEUE_PATTERN)]
IdText = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
TaskText = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=TEXT_PATTERN)]
ShortText = Annotated[str, msgspec.Meta(max_length=1_000)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3_155_760_000)]


class Shape(msgspec.Struct, kw_only=True):
    """An answer."""


class Body(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of a request. Unknown names are refused."""
