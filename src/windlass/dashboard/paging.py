"""Pages of jobs from one or many queues, by cursor, without reading all of them.

Stores list one queue in the order of adding, or by due time or end time. The lists of several queues are
merged in the same order, and the cursor records how far each was read. A record is returned as soon as every
other queue was read past its position, even if the next record there is far away. At most ``MERGED`` queues
are merged at once. If there are more, the next block of queues (by name) starts when the previous one ends.

A page reads at most ``SCAN`` records in ``BUDGET_MS`` until it is full. Then it returns what was found and a
cursor. A round over its queues is not started if it would not end in time, except for the first.
"""

from __future__ import annotations

import base64
import binascii
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from windlass.api.search import Search
from windlass.backend import requests as rq
from windlass.backend.concurrent_requests import gather_limited
from windlass.backend.store import Store
from windlass.core.job import JobRecord
from windlass.core.order import Sort, check_cursor, cursor_of, place_of_cursor
from windlass.dashboard.problems import ApiError
from windlass.engine.views import is_wanted
from windlass.errors import ConfigError
from windlass.serde.codecs import Codecs

#: Queues that are merged at once.
MERGED = 32
#: Queues that are read concurrently. In a store that runs one call at a time, other calls wait for them.
READ_AT_ONCE = 2
#: Records that one page reads, at most, and how long it reads.
SCAN = 100_000
BUDGET_MS = 150
#: The maximum ``offset``. Cursors have no limit.
MAX_OFFSET = 10_000
_STEP = 1_000

Keep = Callable[[JobRecord], bool]


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a listing continues: the first queue of the block, and a cursor for each queue in it."""

    queue: str = ""
    seen: dict[str, str] = {}
    #: Queues of the block that were read to their end.
    ended: tuple[str, ...] = ()


@dataclass(slots=True)
class Found:
    """Records of one page, and the cursor of the next (None: there are no more)."""

    records: list[JobRecord]
    cursor: str | None
    #: How many records were read to find them.
    scanned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What to list, and in which order."""

    store: Store
    codecs: Codecs
    search: Search
    #: A monotonic clock, in milliseconds.
    clock: Callable[[], float]
    sort: Sort = Sort.ADDED
    newest_first: bool = True
    #: A condition that the store cannot check.
    keep: Keep | None = None
    #: True for a record after which no matching one can follow.
    past: Keep | None = None

    async def page(self, queues: list[str], cursor: str | None, limit: int, offset: int = 0) -> Found:
        """Up to ``limit`` records of ``queues`` after the cursor, without the first ``offset``."""
        position = decode_cursor(cursor, self.sort)
        until = self.clock() + BUDGET_MS
        while offset:
            step = min(offset, _STEP)
            skipped = await self._blocks(queues, position, step, until)
            offset -= len(skipped.records)
            if skipped.cursor is None:
                return Found([], None)
            position = decode_cursor(skipped.cursor, self.sort)
        return await self._blocks(queues, position, limit, until)

    async def _blocks(self, queues: list[str], position: Position, limit: int, until: float) -> Found:
        names = sorted(name for name in queues if name >= position.queue)
        found = Found([], None)
        for start in range(0, len(names), MERGED):
            block, rest = names[start : start + MERGED], names[start + MERGED :]
            if start:  # start at the block of the cursor, even if its first queue is empty now
                position = Position(block[0])
            lines = [_Line(name, position.seen.get(name)) for name in block if name not in position.ended]
            await self._merge(lines, found, limit, until)
            left = [line for line in lines if not line.has_ended]
            if left:
                seen = {line.name: line.given for line in left if line.given is not None}
                ended = tuple(name for name in block if all(line.name != name for line in left))
                found.cursor = encode_cursor(Position(block[0], seen, ended))
                return found
            if rest and len(found.records) >= limit:
                found.cursor = encode_cursor(Position(rest[0]))
                return found
        return found

    async def _merge(self, lines: list[_Line], found: Found, limit: int, until: float) -> None:
        """Add the next records of these queues to ``found``, until there are enough or the time is up."""
        size = self._size(limit, len(lines))
        took = 0.0
        while len(found.records) < limit:
            ready = [line for line in lines if line.pending]
            first = min(ready, key=lambda line: self._rank(line.pending[0]), default=None)
            behind = [line for line in lines if line.is_short and not self._is_beyond(line, first)]
            if behind:
                began = self.clock()
                if found.scanned and (found.scanned >= SCAN or began + took >= until):
                    return
                looks = (self._read_on(line, size) for line in behind)
                found.scanned += sum(await gather_limited(looks, READ_AT_ONCE))
                took = self.clock() - began
            elif first is None:
                return
            else:
                found.records.append(first.take(self.sort))

    def _is_beyond(self, line: _Line, first: _Line | None) -> bool:
        """Whether all unread records of a queue come after the next record of another one."""
        if first is None or line.given is None:
            return False
        return self._signed(place_of_cursor(line.given)) >= self._rank(first.pending[0])

    def _rank(self, record: JobRecord) -> list[int]:
        """The sort key: the smallest comes first."""
        return self._signed(place_of_cursor(cursor_of(record, self.sort)))

    def _signed(self, place: Sequence[int]) -> list[int]:
        return [-number if self.newest_first else number for number in place]

    def _size(self, limit: int, queues: int) -> int:
        """How many records to request per queue: about a page, or more if most are filtered out here."""
        if self.keep is None and not self.search.data:
            return min(limit, max(2 * limit // max(queues, 1), 20))
        return max(_STEP // max(queues, 1), 100)

    async def _read_on(self, line: _Line, size: int) -> int:
        """Read the next records of a queue; returns how many were read.

        It compares them for ``BUDGET_MS`` at most: a record with large values takes long.
        """
        page = await self._read(line.name, line.read, size)
        looked, until = max(page.looked, len(page.jobs), 1), self.clock() + BUDGET_MS
        for number, record in enumerate(page.jobs, 1):
            if self.past is not None and self.past(record):
                page.cursor = None
                break
            if self._wants(record):
                line.pending.append(record)
            if number < len(page.jobs) and self.clock() >= until:
                page.cursor, looked = cursor_of(record, self.sort), number
                break
        line.read = page.cursor
        line.is_read = page.cursor is None
        if not line.pending:
            line.given = page.cursor
        return looked

    def fits(self, record: JobRecord) -> bool:
        """Whether a record that was found elsewhere belongs to this listing."""
        asked = self.search.request(record.queue, cursor=None, limit=1, newest_first=True)
        return is_wanted(record, asked) and self._wants(record)

    def _wants(self, record: JobRecord) -> bool:
        return self.search.has(record, self.codecs) and (self.keep is None or self.keep(record))

    async def _read(self, queue: str, seen: str | None, limit: int) -> rq.Page:
        request = self.search.request(queue, cursor=seen, limit=limit, newest_first=self.newest_first)
        return await self.store.execute(msgspec.structs.replace(request, sort=self.sort))


@dataclass(slots=True)
class _Line:
    """The reading state of one of the merged queues."""

    name: str
    #: The cursor after the last record that was returned or skipped.
    given: str | None
    #: The cursor after the last record that was read.
    read: str | None = None
    #: The queue was read to its end.
    is_read: bool = False
    #: Records that were read and not returned yet.
    pending: deque[JobRecord] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.read = self.given

    @property
    def has_ended(self) -> bool:
        return self.is_read and not self.pending

    @property
    def is_short(self) -> bool:
        """Whether more must be read to know the next record."""
        return not self.is_read and not self.pending

    def take(self, sort: Sort) -> JobRecord:
        """Return the next record."""
        record = self.pending.popleft()
        self.given = self.read if not self.pending and self.read is not None else cursor_of(record, sort)
        return record


def encode_cursor(position: Position) -> str:
    """An opaque cursor that is safe in a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def decode_cursor(cursor: str | None, sort: Sort = Sort.ADDED) -> Position:
    """Decode a cursor for this order. Raises 400 if it is invalid."""
    if not cursor:
        return Position()
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        position = msgspec.json.decode(data, type=Position)
        for place in position.seen.values():
            check_cursor(place, sort)
    except (ValueError, RecursionError, binascii.Error, msgspec.MsgspecError, ConfigError) as exc:
        raise ApiError(
            400, "bad_cursor", "the cursor was not returned by an earlier page", "Begin without a cursor."
        ) from exc
    return position
