"""The status of a lake: how recent it is, its sizes, its gaps and its last failure. Needs no JVM."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.text import clean_text
from windlass.errors import WindlassError
from windlass.pipeline.lake import NOTE, Conflict, Lake
from windlass.pipeline.schemas import BATCHED, BRONZE_GAPS, SILVER_ATTEMPTS, TABLES

#: Maximum length of a stored error message.
_MESSAGE_CHARS = 500
#: Commits that are searched for the last error.
_RECENT = 64


@dataclass(frozen=True)
class SourceStatus:
    """One store that fills the lake."""

    source: str
    #: The newest batch, and when it was read from the store.
    batch: int
    read_ms: int
    #: When the newest attempt of the lake ended; None before the first.
    newest_ms: int | None
    #: Tables that lack the newest batch: a run is writing it, or died. The next run finishes it.
    lacking: tuple[str, ...]


@dataclass(frozen=True)
class RunFailure:
    """Why a run stopped. ``is_over``: a later batch of the same source succeeded."""

    source: str
    at_ms: int
    error: str
    message: str
    is_over: bool


@dataclass(frozen=True)
class LakeStatus:
    """The content of ``windlass pipeline status``."""

    url: str
    sources: tuple[SourceStatus, ...]
    #: Rows and bytes by table.
    rows: dict[str, int]
    bytes: dict[str, int]
    #: Ranges of a log that were trimmed before they were read, and the records in them.
    gaps: int
    lost: int
    last_failure: RunFailure | None


def lake_status(lake: Lake) -> LakeStatus:
    """The newest state of an open lake, even if its tables do not all hold the same batches."""
    lake.refresh()
    entries = {path: lake.entries(table) for path, table in TABLES.items()}
    gaps = lake.delta(BRONZE_GAPS).to_pyarrow_table(columns=["after", "until"]).to_pylist()
    return LakeStatus(
        url=lake.url,
        sources=tuple(_source(lake, source, batch) for source, batch in sorted(lake.sources().items())),
        rows={path: sum(entry.rows for entry in found) for path, found in entries.items()},
        bytes={path: sum(entry.bytes for entry in found) for path, found in entries.items()},
        gaps=len(gaps),
        lost=sum(row["until"] - row["after"] for row in gaps),
        last_failure=_last_failure(lake),
    )


def _source(lake: Lake, source: str, batch: int) -> SourceStatus:
    ends = [
        entry.ranges["finished_ms"][1]
        for entry in lake.entries(SILVER_ATTEMPTS)
        if "finished_ms" in entry.ranges and entry.overlaps("source", source, source)
    ]
    lacking = tuple(table.path for table in BATCHED if lake.done(table, source) < batch)
    read_ms = lake.note(source, batch).get("seen_ms") or lake.note()["seen_ms"]
    return SourceStatus(source, batch, read_ms, max(ends, default=None), lacking)


# --- failures ----------------------------------------------------------------------------------------------


def note_failure(lake: Lake, source: str, error: Exception) -> None:
    """Record in the lake why a run of ``source`` stops. Messages of errors that are not ours are left out."""
    ours = isinstance(error, WindlassError)
    failure = {
        "source": source,
        "at_ms": SYSTEM_CLOCK.now_ms(),
        "error": type(error).__name__,
        "message": clean_text(str(error), _MESSAGE_CHARS) if ours else "",
        "batch": lake.done(BRONZE_GAPS, source),
    }
    lake.refresh(BRONZE_GAPS)
    try:
        lake.commit(BRONZE_GAPS, [], note={"failure": failure})
    except Conflict:
        return  # another run committed meanwhile, and its result is newer


def _last_failure(lake: Lake) -> RunFailure | None:
    for commit in lake.delta(BRONZE_GAPS).history(_RECENT):
        note: dict[str, Any] = json.loads(commit.get(NOTE, "{}"))
        if (found := note.get("failure")) is not None:
            is_over = lake.done(BRONZE_GAPS, found["source"]) > found.pop("batch")
            return RunFailure(**found, is_over=is_over)
    return None
