"""Pages of jobs over one queue or many, by cursor, without ever reading all of them.

Stores list one queue in the order of adding. Over several queues the lists are merged by the time of adding;
the cursor says how far each of them was read. At most ``MERGED`` queues are merged at once: with more, the
next block of queues (by name) begins where the one before has ended.
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
from windlass.dashboard.problems import ApiError
from windlass.serde.codecs import Codecs

#: Queues that are merged at once.
MERGED = 32
#: Records that one page looks at when it filters by more than the store can.
SCAN = 1_000
#: The furthest that ``offset`` reaches; cursors reach any.
MAX_OFFSET = 10_000
_STEP = 1_000
#: What a page counts that the store could not fill, however little it holds.
_SHORT = SCAN // 4

Keep = Callable[[JobRecord], bool]


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Where a listing goes on: from this queue on, and in each queue after this record's number."""

    queue: str = ""
    seen: dict[str, int] = {}
    #: Queues of the block that are read to their end.
    ended: tuple[str, ...] = ()

    def has_ended(self, block: list[str]) -> bool:
        return all(name in self.ended for name in block)


@dataclass(slots=True)
class Found:
    """Records of one page, and the cursor of the next (None: that was all)."""

    records: list[JobRecord]
    cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What is listed, and how."""

    store: Store
    codecs: Codecs
    search: Search
    newest_first: bool = True
    #: What the store cannot filter by.
    keep: Keep | None = None
    #: Nothing that is wanted comes after such a record, in the order of the listing.
    past: Keep | None = None

    async def page(self, queues: list[str], cursor: str | None, limit: int, offset: int = 0) -> Found:
        """Up to ``limit`` records of ``queues`` after the cursor, ``offset`` of them skipped."""
        position = decode_cursor(cursor)
        while offset:
            step = min(offset, _STEP)
            skipped = await self._blocks(queues, position, step)
            offset -= len(skipped.records)
            if skipped.cursor is None:
                return Found([], None)
            position = decode_cursor(skipped.cursor)
        return await self._blocks(queues, position, limit)

    async def _blocks(self, queues: list[str], position: Position, limit: int) -> Found:
        names = sorted(name for name in queues if name >= position.queue)
        found: list[JobRecord] = []
        looked = 0
        for start in range(0, len(names), MERGED):
            block, rest = names[start : start + MERGED], names[start + MERGED :]
            if start:
                position = Position(block[0])
            while not position.has_ended(block):
                if len(found) >= limit or looked >= SCAN:
                    return Found(found, encode_cursor(position))
                step = await self._merged(block, position, limit - len(found))
                looked += step.looked
                found += step.records
                position = step.position
            if rest and len(found) >= limit:
                return Found(found, encode_cursor(Position(rest[0])))
        return Found(found, None)

    async def _merged(self, block: list[str], position: Position, limit: int) -> _Step:
        """The next records of a block of queues, merged."""
        alive = [name for name in block if name not in position.ended]
        plain = self.keep is None and not self.search.data
        size = min(limit, max(2 * limit // len(alive), 20)) if plain else min(max(limit, 200), _STEP)
        records: list[JobRecord] = []
        more: dict[str, str | None] = {}
        looked = 0
        for name in alive:
            page = await self._read(name, position.seen.get(name), size)
            looked += len(page.jobs)
            if page.cursor is not None and len(page.jobs) < size:
                looked += _SHORT  # the store looked at many more to find these
            records += page.jobs
            more[name] = page.cursor
        records.sort(key=lambda record: (record.enqueued_ms, record.queue), reverse=self.newest_first)
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
            seen[name] = record.seq
            left[name] -= 1
            if self.past is not None and self.past(record):
                ended.add(name)
            elif name not in ended and self._wants(record):
                taken.append(record)
            if left[name] == 0 and name not in ended and _edge(name, more[name], seen, ended):
                break
        return _Step(taken, Position(position.queue, seen, tuple(sorted(ended))), looked)

    def _wants(self, record: JobRecord) -> bool:
        return self.search.has(record, self.codecs) and (self.keep is None or self.keep(record))

    async def _read(self, queue: str, seen: int | None, limit: int) -> rq.Page:
        cursor = None if seen is None else str(seen)
        return await self.store.execute(
            self.search.request(queue, cursor=cursor, limit=limit, newest_first=self.newest_first)
        )


@dataclass(slots=True)
class _Step:
    records: list[JobRecord]
    position: Position
    looked: int


def _edge(name: str, cursor: str | None, seen: dict[str, int], ended: set[str]) -> bool:
    """A queue's page is used up: note where it goes on (True), or that it has ended."""
    if cursor is None:
        ended.add(name)
        return False
    seen[name] = int(cursor)
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
        if any(not 0 <= number < 2**63 for number in position.seen.values()):
            raise ValueError("a number that no record has")
    except (ValueError, RecursionError, binascii.Error, msgspec.MsgspecError) as exc:
        raise ApiError(
            400, "bad_cursor", "the cursor is none that a page before returned", "Begin without a cursor."
        ) from exc
    return position
