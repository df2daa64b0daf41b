"""What a durable store hears of the changes that the state machine makes; the memory store itself forgets it.

Every piece of state that cannot be worked out from the job records is named here once. A journal is told
*that* something changed, at the place where it changes; when the request is done it looks up how it is now
(see ``backends.file.journal``). So what it writes are effects, and nobody has to decide anything again.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windlass.core.edges import ChildEnd, Edge
    from windlass.core.job import AttemptRecord, Event, JobRecord
    from windlass.core.metrics import Mark
    from windlass.core.streams import Chunk, StreamHead


class Table(IntEnum):
    """Entries that are there or not, each with a key. The numbers are stored: they never change."""

    QUEUE = 1  # name
    GROUP = 2  # queue, name
    KEY = 3  # queue, unique key
    KEPT_ID = 4  # queue, id
    WORKER = 5  # id
    ARCHIVER = 6  # name
    LEADER = 7  # role
    SCHEDULE = 8  # queue, name
    COUNTER = 9  # queue, task, outcome
    CURSOR = 10  # queue
    ROLLUP = 11  # queue, step, start, task
    STUB = 12  # queue, id; it goes by itself, by its time


class Journal:
    """Hears of everything and forgets it at once: the journal of a store that is not kept."""

    def made(self, job: JobRecord) -> None:
        """A job was created, or its data, task or options were replaced."""

    def moved(self, job: JobRecord) -> None:
        """Anything else about a job changed."""

    def gone(self, job: JobRecord) -> None:
        """The record of a job was removed, with its edges, log lines and output."""

    def row(self, table: Table, *key: Any) -> None:
        """An entry of a table was put, changed or removed."""

    def started(self, queue: str, group: str | None) -> None:
        """A start time was added to those of a group, or of a queue (None)."""

    def refitted(self, queue: str, group: str | None) -> None:
        """The start times that count were cut down."""

    def logged(self, job: JobRecord, lines: list[str]) -> None:
        """A job got log lines."""

    def streamed(self, job: JobRecord, head: StreamHead, chunks: list[Chunk]) -> None:
        """A job put out chunks; ``head`` is where its stream stands now."""

    def edge(self, edge: Edge) -> None:
        """An edge was made, settled or forgiven."""

    def put_out(self, ends: Iterable[ChildEnd]) -> None:
        """Ends were left to later requests."""

    def told(self) -> None:
        """The oldest end that was left is dealt with."""

    def happened(self, queue: str, event: Event) -> None:
        """The event log grew."""

    def forgot_events(self, queue: str, last_event: int) -> None:
        """All events up to this one were forgotten."""

    def ended(self, queue: str, number: int, record: AttemptRecord) -> None:
        """The history grew."""

    def trimmed(self, queue: str) -> None:
        """The history lost its oldest records."""

    def marked(self, mark: Mark) -> None:
        """A mark was put beside the metrics."""


#: For stores that are not kept.
NO_JOURNAL = Journal()
