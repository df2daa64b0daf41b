"""Pages of jobs over one queue or many, by cursor, without ever reading all of them.

Stores list one queue by the time of adding, of being due or of ending. Over several queues the lists are
merged by the same time; the cursor says how far each of them was read. At most ``MERGED`` queues are merged
at once: with more, the next block of queues (by name) begins where the one before has ended.

A page takes ``BUDGET_MS`` and ``SCAN`` records at most until it is full; then it answers with what was
found and a cursor.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from windlass.api.search import Search
from windlass.backend import requests as rq
from windlass.backend.store import Store
from windlass.core.job import JobRecord
from windlass.core.order import Sort, check_cursor, cursor_of, place_of
from windlass.dashboard.problems import ApiError
from windlass.engine.views import is_wanted
from windlass.errors import ConfigError
from windlass.serde.codecs import Codecs

#: Queues that are merged at once.
MERGED = 32
#: Records that one page looks at, at most, and how long it keeps looking.
SCAN = 100_000
BUDGET_MS = 200
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

    def has_ended(self, block: list[str]) -> bool:
        return all(name in self.ended for name in block)


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
        position = decode_cursor(cursor)
        until = self.clock() + BUDGET_MS
        while offset:
            step = min(offset, _STEP)
            skipped = await self._blocks(queues, position, step, until)
            offset -= len(skipped.records)
            if skipped.cursor is None:
                return Found([], None)
            position = decode_cursor(skipped.cursor)
        return await self._blocks(queues, position, limit, until)

    async def _blocks(self, queues: list[str], position: Position, limit: int, until: float) -> Found:
        names = sorted(name for name in queues if name >= position.queue)
        found: list[JobRecord] = []
        looked = 0
        for start in range(0, len(names), MERGED):
            block, rest = names[start : start + MERGED], names[start + MERGED :]
            if start:
                position = Position(block[0])
            while not position.has_ended(block):
                if len(found) >= limit or looked >= SCAN or (looked and self.clock() >= until):
                    return Found(found, encode_cursor(position), looked)
                step = await self._merged(block, position, limit - len(found))
                looked += step.looked
                found += step.records
                position = step.position
            if rest and len(found) >= limit:
                return Found(found, encode_cursor(Position(rest[0])), looked)
        return Found(found, None, looked)

    async def _merged(self, block: list[str], position: Position, limit: int) -> _Step:
        """The next records of a block of queues, merged."""
        alive = [name for name in block if name not in position.ended]
        plain = self.keep is None and not self.search.data
        size = min(limit, max(2 * limit // len(alive), 20)) if plain else max(_STEP // len(alive), 100)
        records: list[JobRecord] = []
        more: dict[str, str | None] = {}
        looked = 0
        for name in alive:
            page = await self._read(name, position.seen.get(name), size)
            looked += max(page.looked, len(page.jobs), 1)
            records += page.jobs
            more[name] = page.cursor
        records.sort(key=self._order, reverse=self.newest_first)
        return self._take(position, records, more, limit, looked)

    def _take(
        self,
        position: Position,
        records: list[JobRecord],
        more: dict[str, str | None],
        limit: int,
        looked: int,
    ) -> _Step:
        """Hand out the first of the merged records. A queue that was read to its edge stops the merge there:
        what it has beyond may come before the others' records."""
        seen, ended = dict(position.seen), set(position.ended)
        left = Counter(record.queue for record in records)
        stop = False
        for name, cursor in more.items():
            if not left[name]:
                stop |= _edge(name, cursor, seen, ended)
        taken: list[JobRecord] = []
        for record in [] if stop else records:
            if len(taken) >= limit:
                break
            name = record.queue
            seen[name] = cursor_of(record, self.sort)
            left[name] -= 1
            if self.past is not None and self.past(record):
                ended.add(name)
            elif name not in ended and self._wants(record):
                taken.append(record)
            if left[name] == 0 and name not in ended and _edge(name, more[name], seen, ended):
                break
        return _Step(taken, Position(position.queue, seen, tuple(sorted(ended))), looked)

    def fits(self, record: JobRecord) -> bool:
        """Whether a record that was found elsewhere is one of those that are listed."""
        asked = self.search.request(record.queue, cursor=None, limit=1, newest_first=True)
        return is_wanted(record, asked) and self._wants(record)

    def _wants(self, record: JobRecord) -> bool:
        return self.search.has(record, self.codecs) and (self.keep is None or self.keep(record))

    def _order(self, record: JobRecord) -> tuple[int, str]:
        place = place_of(record, self.sort)
        return 0 if place is None else place[0], record.queue

    async def _read(self, queue: str, seen: str | None, limit: int) -> rq.Page:
        request = self.search.request(queue, cursor=seen, limit=limit, newest_first=self.newest_first)
        return await self.store.execute(msgspec.structs.replace(request, sort=self.sort))


@dataclass(slots=True)
class _Step:
    records: list[JobRecord]
    position: Position
    looked: int


def _edge(name: str, cursor: str | None, seen: dict[str, str], ended: set[str]) -> bool:
    """A queue's page is used up: note where it continues (True), or that it has ended."""
    if cursor is None:
        ended.add(name)
        return False
    seen[name] = cursor
    return True


def encode_cursor(position: Position) -> str:
    """A cursor for callers: opaque, safe in a URL."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> Position:
    """What a cursor means; 400 when it is none of ours."""
    if not cursor:
        return Position()
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        position = msgspec.json.decode(data, type=Position)
        for place in position.seen.values():
            check_cursor(place)
    except (ValueError, RecursionError, binascii.Error, msgspec.MsgspecError, ConfigError) as exc:
        raise ApiError(
            400, "bad_cursor", "the cursor is none that a page before returned", "Begin without a cursor."
        ) from exc
    return position
