"""The audit log: who changed what through the API, and who tried.

Entries of permitted changes are in one trail: who did what to which jobs, and the result. Requests that were
refused before their handler (not signed in, not allowed, too many) are counted, and a sample of them is in a
second, smaller trail. So unknown clients can neither displace the entries of operators nor fill a disk. Each
entry is also a line of the logger ``windlass.audit``, with its fields as ``extra``.

With a file, entries of all processes are stored there, and in ``<name>.refused``; see ``audit_trail`` for
their limits.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request

from windlass.core.job import JobRef
from windlass.core.text import clean_text, printable
from windlass.dashboard.audit_trail import AuditTrail
from windlass.dashboard.scope import SAFE, address_of, identity_of
from windlass.dashboard.shapes.server import Audit, AuditEntry
from windlass.dashboard.throttle import Buckets

log = logging.getLogger("windlass.audit")

#: Entries that can be read, and the size and number of files: for changes, and for refused requests.
KEPT = 1_000
FILE_BYTES = 16_777_216
FILES = 5
REFUSED_KEPT = 200
REFUSED_FILE_BYTES = 1_048_576
REFUSED_FILES = 2
#: Status codes of requests that were refused before their handler.
REFUSED = frozenset({401, 403, 429})
#: Refused requests that are recorded: this many at once, and this many more each second.
_SAMPLE_BURST = 20
_SAMPLES_PER_SECOND = 1.0
#: Maximum length of a name, of a path, of a fact.
_NAME = 200
_PATH = 300
_FACT = 2_000
_FACTS = "windlass.facts"

Fact = str | float | bool | None


def note(request: Request[Any, Any, Any], **facts: Fact) -> None:
    """Add facts to the audit entry of this request."""
    scope: Any = request.scope
    scope.setdefault(_FACTS, {}).update(facts)


def named(refs: Iterable[JobRef]) -> str:
    """Jobs in the form of a fact: ``mail: a b c; shop: d``."""
    by_queue: dict[str, list[str]] = {}
    for ref in refs:
        by_queue.setdefault(ref.queue, []).append(ref.id)
    return "; ".join(f"{queue}: {' '.join(ids)}" for queue, ids in by_queue.items())


def is_recorded(scope: Mapping[str, Any], status: int) -> bool:
    """Whether to record a request: it was a change, was refused, or has facts."""
    return scope["method"] not in SAFE or status in REFUSED or _FACTS in scope


def entry_of(scope: Mapping[str, Any], status: int, at_ms: int) -> AuditEntry:
    """The entry for a request that was answered with ``status``.

    Its facts include the path parameters (queue, job, schedule, group).
    """
    identity = identity_of(scope)
    template = scope.get("path_template") or scope["path"]
    facts: dict[str, Fact] = {**scope.get("path_params", {}), **scope.get(_FACTS, {})}
    return AuditEntry(
        id=0,
        at_ms=at_ms,
        who=clean_text(identity.name, _NAME) if identity is not None else "",
        role=identity.role if identity is not None else "none",
        client=clean_text(address_of(scope), _NAME),
        method=clean_text(scope["method"], _NAME),
        action=clean_text(f"{scope['method']} {template}", _PATH),
        target=clean_text(scope["path"], _PATH),
        status=status,
        outcome="ok" if status < 400 else "refused" if status < 500 else "failed",
        facts={name: _short(fact) for name, fact in facts.items()},
    )


def _short(fact: Any) -> Fact:
    return fact if fact is None or isinstance(fact, (bool, int, float)) else clean_text(fact, _FACT)


class AuditLog:
    """Stores entries and returns them, newest first."""

    def __init__(self, file: Path | None, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms
        self._changes = AuditTrail(file, kept=KEPT, file_bytes=FILE_BYTES, files=FILES)
        self._refused = AuditTrail(
            None if file is None else file.with_name(f"{file.name}.refused"),
            kept=REFUSED_KEPT,
            file_bytes=REFUSED_FILE_BYTES,
            files=REFUSED_FILES,
        )
        self._samples = Buckets(_SAMPLE_BURST, _SAMPLES_PER_SECOND)
        self._counts: Counter[str] = Counter()
        self._unwritten = 0

    def add(self, entry: AuditEntry, *, admitted: bool) -> None:
        """Record a request. ``admitted`` is False if it was refused before its handler, or has no route."""
        if not admitted or entry.status in REFUSED or not entry.who:
            self._add_refused(entry)
        else:
            self._report(entry)
            self._changes.add(entry)

    def _add_refused(self, entry: AuditEntry) -> None:
        self._counts[str(entry.status)] += 1
        if self._samples.take("all", self._now_ms()):
            self._unwritten += 1
            return
        entry.facts["unwritten_before"] = self._unwritten
        self._unwritten = 0
        self._report(entry)
        self._refused.add(entry)

    def _report(self, entry: AuditEntry) -> None:
        log.info(
            "%s (%s, %s) %s %s -> %d",
            printable(entry.who),
            entry.role,
            printable(entry.client),
            printable(entry.action),
            printable(entry.target),
            entry.status,
            extra={"audit": msgspec.to_builtins(entry)},
        )

    def page(self, skip: int, limit: int, *, refused: bool = False) -> Audit:
        """``limit`` entries after the newest ``skip``: of changes, or of refused requests."""
        found = (self._refused if refused else self._changes).newest(skip, limit + 1)
        return Audit(
            items=found[:limit],
            next_cursor=str(skip + limit) if len(found) > limit else None,
            refused=dict(self._counts),
        )
