"""Adds values to events that the log does not contain: results of completed jobs, and long progress.

The event log of a queue is kept small: it has no results, and only the size of long progress. Readers get
these values from the job records, in batches, as long as the records are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import Event, EventType, JobRecord, JobRef
from windlass.core.states import JobState
from windlass.serde.codecs import Codecs

#: The maximum number of records per read.
_BATCH: Final = 500
#: Events that have values.
VALUED: Final = (EventType.COMPLETED, EventType.PROGRESS, EventType.CUSTOM)


class EventValues:
    """Adds values to the events of one queue."""

    def __init__(self, store: Store, codecs: Codecs, queue: str) -> None:
        self._store = store
        self._codecs = codecs
        self._queue = queue

    async def fill(self, events: list[Event]) -> list[Event]:
        """Return ``events`` with ``return_value`` of completed jobs and decoded ``progress``.

        ``return_value`` is missing when the result is no longer kept, or when the job has completed again
        since.
        """
        filled = [_decoded(event) for event in events]
        wanted = {event.job_id for event in filled if _is_open(event)}
        if not wanted:
            return filled
        records = await self._records(wanted)
        return [
            self._from_record(event, records.get(event.job_id)) if _is_open(event) else event
            for event in filled
        ]

    async def _records(self, ids: Iterable[str]) -> dict[str, JobRecord]:
        refs = [JobRef(self._queue, job_id) for job_id in ids]
        found: dict[str, JobRecord] = {}
        for start in range(0, len(refs), _BATCH):
            request = rq.GetJobs(refs=refs[start : start + _BATCH], late=True)
            found |= {
                record.id: record for record in await self._store.execute(request) if record is not None
            }
        return found

    def _from_record(self, event: Event, record: JobRecord | None) -> Event:
        try:
            if record is None:
                return event
            if event.type is EventType.PROGRESS:
                return _with(event, progress=self._codecs.read_progress(record))
            if record.result is None or not _is_end_of(event, record):
                return event
            return _with(event, return_value=self._codecs.read_result(record))
        except Exception:  # written by a codec that this app does not read, or one that raises
            return event


def _is_open(event: Event) -> bool:
    """Whether the job's record has a value that the event lacks."""
    if event.type is EventType.PROGRESS:
        text = event.data.get("progress")
        return isinstance(text, _Size)
    return event.type is EventType.COMPLETED


def _is_end_of(event: Event, record: JobRecord) -> bool:
    """Whether ``event`` is the last completion of the job. A later one has another result."""
    return record.state is JobState.COMPLETED and (record.finished_ms or 0) <= event.at_ms


class _Size(str):
    """The size note that replaces long progress, or progress in another codec than JSON."""

    __slots__ = ()


#: The JSON field of these events.
_JSON: Final = {EventType.PROGRESS: "progress", EventType.CUSTOM: "data"}


def _decoded(event: Event) -> Event:
    """Return ``event`` with its JSON fields decoded."""
    name = _JSON.get(event.type, "")
    text = event.data.get(name)
    if not isinstance(text, str):
        return event
    try:
        return _with(event, **{name: msgspec.json.decode(text)})
    except msgspec.DecodeError:
        return _with(event, **{name: _Size(text)})


def _with(event: Event, **values: Any) -> Event:
    return msgspec.structs.replace(event, data={**event.data, **values})
