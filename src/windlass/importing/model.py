"""The types that readers and the mover exchange."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, Protocol

import msgspec

Kind = Literal["list", "zset", "rows"]
P = ParamSpec("P")
#: Errors that reading bytes raises if they are not a job.
_NOT_A_JOB = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True)
class Shelf:
    """A Redis key, or a query, that holds jobs of one queue. Lists are read from their ``oldest`` end."""

    queue: str
    key: bytes
    kind: Kind
    oldest: Literal["left", "right"] = "left"
    #: The jobs are due later.
    later: bool = False
    #: In a sorted set: the lowest score that belongs to this list.
    least: float | None = None


class ForeignJob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job of another system in our terms. The holding hash stores it as JSON."""

    source: str
    #: Its id in the other system.
    id: str
    queue: str
    task: str
    #: The arguments of a call, or ``data`` as for ``queue.add``.
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    data: Any = None
    #: Whether to use ``data`` instead of ``args`` and ``kwargs``.
    plain: bool = False
    due_ms: int | None = None
    expires_ms: int | None = None
    priority: int = 0
    max_attempts: int | None = None
    timeout_s: float | None = None
    backoff: dict[str, Any] | None = None
    #: A unique key within its queue while the job waits.
    unique: str | None = None
    #: Keys to delete once the job was added.
    keys: list[str] = []
    #: Fields of hashes and members of sorted sets to delete then: (``hash`` or ``zset``, key, name).
    parts: list[tuple[str, str, str]] = []

    @property
    def job_id(self) -> str:
        """The id of the job here. Always the same for the same message."""
        if re.fullmatch(r"[A-Za-z0-9._-]{1,200}", self.id):
            return f"{self.source}-{self.id}"
        return f"{self.source}-{hashlib.sha256(self.id.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An entry that cannot be moved, and why. ``task`` and ``id`` if they are known."""

    reason: str
    task: str = ""
    id: str = ""


Found = ForeignJob | Refusal


class Unreadable(ValueError):
    """A reader cannot interpret a message. The text says why."""


@dataclass(slots=True)
class Entry:
    """An entry that is being read: its id in the other system, and its task once known."""

    id: str
    task: str = ""


def refuses(
    what: str,
) -> Callable[[Callable[Concatenate[Entry, P], ForeignJob]], Callable[Concatenate[Entry, P], Found]]:
    """Make a function return a refusal for an entry that it cannot read. ``what``: what it reads."""

    def make(
        read: Callable[Concatenate[Entry, P], ForeignJob],
    ) -> Callable[Concatenate[Entry, P], Found]:
        @wraps(read)
        def answer(entry: Entry, /, *args: P.args, **kwargs: P.kwargs) -> Found:
            try:
                return read(entry, *args, **kwargs)
            except Unreadable as exc:
                return Refusal(str(exc), entry.task, entry.id)
            except _NOT_A_JOB as exc:
                return Refusal(f"it is not {what} ({type(exc).__name__}: {exc})", entry.task, entry.id)

        return answer

    return make


class Source(Protocol):
    """The store of another system: its shelves, and a place for entries that are not added yet."""

    async def count(self, shelf: Shelf) -> int:
        """The number of entries of a shelf."""
        ...

    async def window(self, shelf: Shelf, skip: int, count: int) -> list[tuple[bytes, float]]:
        """Entries of a shelf, oldest first, after the first ``skip``, with their scores."""
        ...

    async def take(self, shelf: Shelf, holding: str, items: Sequence[tuple[bytes, str, bytes]]) -> list[bool]:
        """Move entries (member, id, text) to the holding place. False for entries that were already taken."""
        ...

    async def held_count(self, holding: str) -> int:
        """The number of held entries."""
        ...

    async def held(self, holding: str, count: int) -> list[tuple[bytes, bytes]]:
        """Some of the held entries."""
        ...

    async def release(self, holding: str, jobs: Sequence[ForeignJob]) -> None:
        """Delete held entries, with the keys and parts that belong to them."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class SourceReader(Protocol):
    """Reads the jobs of one system."""

    source: str

    async def shelves(self) -> list[Shelf]:
        """All shelves, in the order in which workers take from them."""
        ...

    async def read(self, shelf: Shelf, entries: Sequence[tuple[bytes, float]]) -> list[Found]:
        """Convert entries of a shelf (each with its score, 0 in a list), in order."""
        ...

    async def left(self) -> dict[str, int]:
        """Descriptions and counts of what is not imported, besides waiting and scheduled jobs."""
        ...


def to_text(raw: bytes) -> str:
    """An id or key as text. One that is not UTF-8 is damaged, and becomes a text that names no record."""
    return raw.decode(errors="backslashreplace")


def read_json(data: bytes, system: str) -> Any:
    """Parse JSON that ``system`` wrote. Raises ``Unreadable`` if it is not valid."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise Unreadable(f"it is not JSON (a pickle, say): let {system} run it") from None
