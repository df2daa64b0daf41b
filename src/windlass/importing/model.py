"""What readers and the mover exchange."""

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
#: What reading bytes raises that are no job at all.
_NOT_A_JOB = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True)
class Shelf:
    """A key that holds entries of one queue. Lists are read from their ``oldest`` end."""

    queue: str
    key: bytes
    kind: Kind
    oldest: Literal["left", "right"] = "left"
    #: Entries are due later.
    later: bool = False
    #: In a sorted set: entries of a lower score are not on this shelf.
    least: float | None = None


class ForeignJob(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A job of another system, in our words. Also what the holding hash keeps, as JSON."""

    source: str
    #: Its id there.
    id: str
    queue: str
    task: str
    #: A call's arguments; or ``data`` as ``queue.add`` takes it.
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    data: Any = None
    #: Whether ``data`` counts, not ``args`` and ``kwargs``.
    plain: bool = False
    due_ms: int | None = None
    expires_ms: int | None = None
    priority: int = 0
    max_attempts: int | None = None
    timeout_s: float | None = None
    backoff: dict[str, Any] | None = None
    #: While it waits, no other job of its queue may have this key.
    unique: str | None = None
    #: Keys that go with the entry once it was added.
    keys: list[str] = []
    #: Fields of hashes and members of sorted sets that go then: (``hash`` or ``zset``, key, name).
    parts: list[tuple[str, str, str]] = []

    @property
    def job_id(self) -> str:
        """The id that it gets here: the same for the same message, always."""
        if re.fullmatch(r"[A-Za-z0-9._-]{1,200}", self.id):
            return f"{self.source}-{self.id}"
        return f"{self.source}-{hashlib.sha256(self.id.encode()).hexdigest()[:32]}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An entry that cannot be moved, and why. ``task`` and ``id`` as far as they are known."""

    reason: str
    task: str = ""
    id: str = ""


Found = ForeignJob | Refusal


class Unreadable(ValueError):
    """A message that a reader cannot understand; the text says why."""


@dataclass(slots=True)
class Entry:
    """An entry that is being read: its id there, and its task once that is known."""

    id: str
    task: str = ""


def refuses(
    what: str,
) -> Callable[[Callable[Concatenate[Entry, P], ForeignJob]], Callable[Concatenate[Entry, P], Found]]:
    """Make a function that raises on an entry it cannot read return a refusal. ``what``: what it reads."""

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
    """Where another system keeps its jobs: shelves, and a place for what is taken and not added yet."""

    async def count(self, shelf: Shelf) -> int:
        """How many entries a shelf has."""
        ...

    async def window(self, shelf: Shelf, skip: int, count: int) -> list[tuple[bytes, float]]:
        """Entries of a shelf, oldest first, past the first ``skip``; with their scores."""
        ...

    async def take(self, shelf: Shelf, holding: str, items: Sequence[tuple[bytes, str, bytes]]) -> list[bool]:
        """Move entries (member, id, text) from the shelf into holding; False where another was quicker."""
        ...

    async def held_count(self, holding: str) -> int:
        """How many entries are held."""
        ...

    async def held(self, holding: str, count: int) -> list[tuple[bytes, bytes]]:
        """Some of the entries that are held."""
        ...

    async def release(self, holding: str, jobs: Sequence[ForeignJob]) -> None:
        """Forget held entries, and the keys and parts that go with them."""
        ...

    async def close(self) -> None:
        """Let the connection go."""
        ...


class SourceReader(Protocol):
    """Knows how one system keeps its jobs."""

    source: str

    async def shelves(self) -> list[Shelf]:
        """Every shelf, those that are taken first first."""
        ...

    async def read(self, shelf: Shelf, entries: Sequence[tuple[bytes, float]]) -> list[Found]:
        """What the entries (each with its score, 0 on a list) of a shelf mean, in order."""
        ...

    async def left(self) -> dict[str, int]:
        """What is there besides waiting and scheduled jobs and stays where it is, in words and numbers."""
        ...


def read_json(data: bytes, system: str) -> Any:
    """What ``data`` holds, which ``system`` wrote; ``Unreadable`` when that is not JSON."""
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        raise Unreadable(f"it is not JSON (a pickle, say): let {system} run it") from None
