"""Pages of jobs over one queue or many, by cursor, without ever reading all of them.

Stores list one queue by the order of adding, or by the time of being due or of ending. Over several queues
the lists are merged by the same order; the cursor says how far each of them was read. A record is handed out
as soon as every other queue was read beyond its place, however far it is to the next record there. At most
``MERGED`` queues are merged at once: with more, the next block of queues (by name) begins where the one
before has ended.

A page takes ``BUDGET_MS`` and ``SCAN`` records at most until it is full; then it answers with what was
found and a cursor. A round over its queues that would not end in time is not begun, except for the first.
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
#: Queues read at the same time: in a store that does one thing at once, other calls wait behind them.
READ_AT_ONCE = 2
#: Records that one page looks at, at most, and how long it keeps looking.
SCAN = 100_000
BUDGET_MS = 150
#: The furthest that ``offset`` reaches; cursors reach any.
MAX_OFFSET = 10_000
_STEP = 1_000

Keep = Callable[[JobRecord], bool]


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a listing continues: from this queue on, and in each queue after the cursor of this record."""

    queue: str = ""
    seen: dict[str, str] = {}
    #: Queues of the block that are read to their end.
    ended: tuple[str, ...] = ()


@dataclass(slots=True)
class Found:
    """Records of one page, and the cursor of the next (None: that was all)."""

    records: list[JobRecord]
    cursor: str | None
    #: How many records were looked at to find them.
    scanned: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is listed, and how."""

    store: Store
    codecs: Codecs
    search: Search
    #: Milliseconds of a clock that only continues.
    clock: Callable[[], float]
    sort: Sort = Sort.ADDED
    newest_first: bool = True
    #: What the store cannot filter by.
    keep: Keep | None = None
    #: Nothing that is wanted comes after such a record, in the order of the listing.
    past: Keep | None = None

    async def page(self, queues: list[str], cursor: str | None, limit: int, offset: int = 0) -> Found:
        """Up to ``limit`` records of ``queues`` after the cursor, ``offset`` of them skipped."""
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
            if start:  # the first block is that of the cursor, also when its first queue has drained since
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
        """Add the next records of these queues to ``found``, until there are enough or the time is over."""
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
        """Whether nothing of a queue that is yet to be read comes before the next record of another one."""
        if first is None or line.given is None:
            return False
        return self._signed(place_of_cursor(line.given)) >= self._rank(first.pending[0])

    def _rank(self, record: JobRecord) -> list[int]:
        """Less for what comes first."""
        return self._signed(place_of_cursor(cursor_of(record, self.sort)))

    def _signed(self, place: Sequence[int]) -> list[int]:
        return [-number if self.newest_first else number for number in place]

    def _size(self, limit: int, queues: int) -> int:
        """How many records to ask each queue for: about a page, or many where most are left out here."""
        if self.keep is None and not self.search.data:
            return min(limit, max(2 * limit // max(queues, 1), 20))
        return max(_STEP // max(queues, 1), 100)

    async def _read_on(self, line: _Line, size: int) -> int:
        """Read the next records of a queue; returns how many were looked at."""
        page = await self._read(line.name, line.read, size)
        for record in page.jobs:
            if self.past is not None and self.past(record):
                page.cursor = None
                break
            if self._wants(record):
                line.pending.append(record)
        line.read = page.cursor
        line.is_read = page.cursor is None
        if not line.pending:
            line.given = page.cursor
        return max(page.looked, len(page.jobs), 1)

    def fits(self, record: JobRecord) -> bool:
        """Whether a record that was found elsewhere is one of those that are listed."""
        asked = self.search.request(record.queue, cursor=None, limit=1, newest_first=True)
        return is_wanted(record, asked) and self._wants(record)

    def _wants(self, record: JobRecord) -> bool:
        return self.search.has(record, self.codecs) and (self.keep is None or self.keep(record))

    async def _read(self, queue: str, seen: str | None, limit: int) -> rq.Page:
        request = self.search.request(queue, cursor=seen, limit=limit, newest_first=self.newest_first)
        return await self.store.execute(msgspec.structs.replace(request, sort=self.sort))


@dataclass(slots=True)
class _Line:
    """One queue of those that are merged."""

    name: str
    #: The cursor behind what was handed out, or left out before anything else came.
    given: str | None
    #: The cursor behind what was read.
    read: str | None = None
    #: Nothing is left to read.
    is_read: bool = False
    #: Records that were read and not handed out yet.
    pending: deque[JobRecord] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.read = self.given

    @property
    def has_ended(self) -> bool:
        return self.is_read and not self.pending

    @property
    def is_short(self) -> bool:
        """Whether it has to be read to know its next record."""
        return not self.is_read and not self.pending

    def take(self, sort: Sort) -> JobRecord:
        """Hand out the next record."""
        record = self.pending.popleft()
        self.given = self.read if not self.pending and self.read is not None else cursor_of(record, sort)
        return record


def encode_cursor(position: Position) -> str:
    """A cursor for callers: opaque, safe in a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def decode_cursor(cursor: str | None, sort: Sort = Sort.ADDED) -> Position:
    """What a cursor of a listing in this order means; 400 when it is none of ours."""
    if not cursor:
        return Position()
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        position = msgspec.json.decode(data, type=Position)
        for place in position.seen.values():
            check_cursor(place, sort)
    except (ValueError, RecursionError, binascii.Error, msgspec.MsgspecError, ConfigError) as exc:
        raise ApiError(
            400, "bad_cursor", "the cursor is none that a page before returned", "Begin without a cursor."
        ) from exc
    return position
