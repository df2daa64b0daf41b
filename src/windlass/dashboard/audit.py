"""Who changed what through the API: every attempt, also a refused one.

Each entry is a line of the logger ``windlass.audit`` (with its fields as ``extra``), and stands in a ring of
the last entries of this process. With a file, entries of all processes stand there, one JSON document per
line, and are read back from it; at ``FILE_BYTES`` it becomes ``<name>.1``, in place of the one before.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from litestar import Request

from windlass.dashboard.scope import address_of, identity_of
from windlass.dashboard.shapes.server import Audit, AuditEntry

log = logging.getLogger("windlass.audit")

#: Entries that one process keeps.
KEPT = 1_000
FILE_BYTES = 16_777_216
_TAIL_BYTES = 2_097_152
_FACTS = "windlass.facts"


def note(request: Request[Any, Any, Any], **facts: str | int | float | bool | None) -> None:
    """Put facts into the audit entry of this request."""
    scope: Any = request.scope
    scope.setdefault(_FACTS, {}).update(facts)


def entry_of(scope: Mapping[str, Any], status: int, at_ms: int) -> AuditEntry:
    """What is written down about a request that was answered with ``status``."""
    identity = identity_of(scope)
    template = scope.get("path_template") or scope["path"]
    return AuditEntry(
        id=0,
        at_ms=at_ms,
        who=identity.name if identity is not None else "",
        role=identity.role if identity is not None else "none",
        client=address_of(scope),
        method=scope["method"],
        action=f"{scope['method']} {template}",
        target=scope["path"],
        status=status,
        outcome="ok" if status < 400 else "refused" if status < 500 else "failed",
        facts=scope.get(_FACTS, {}),
    )


class AuditLog:
    """Keeps entries and gives them back, newest first."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._ring: deque[AuditEntry] = deque(maxlen=KEPT)
        self._number = 0

    def add(self, entry: AuditEntry) -> None:
        """Write one entry. A file that cannot be written is told about, and never stops a request."""
        self._number += 1
        entry.id = self._number
        self._ring.append(entry)
        log.info(
            "%s (%s, %s) %s %s -> %d",
            entry.who,
            entry.role,
            entry.client,
            entry.action,
            entry.target,
            entry.status,
            extra={"audit": msgspec.to_builtins(entry)},
        )
        if self._file is not None:
            try:
                self._write(self._file, msgspec.json.encode(entry) + b"\n")
            except OSError as exc:
                log.error("the audit file cannot be written: %s", exc)

    def _write(self, file: Path, line: bytes) -> None:
        with suppress(FileNotFoundError):
            if file.stat().st_size + len(line) > FILE_BYTES:
                os.replace(file, file.with_name(f"{file.name}.1"))
        handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, line)  # one write of one line: processes do not mix
        finally:
            os.close(handle)

    def page(self, skip: int, limit: int) -> Audit:
        """``limit`` entries after the newest ``skip``."""
        entries = list(self._ring) if self._file is None else self._read(self._file)
        entries.reverse()
        more = len(entries) > skip + limit
        return Audit(items=entries[skip : skip + limit], next_cursor=str(skip + limit) if more else None)

    def _read(self, file: Path) -> list[AuditEntry]:
        """The entries at the end of the file; lines that are none are left out."""
        try:
            with file.open("rb") as handle:
                size = handle.seek(0, os.SEEK_END)
                handle.seek(max(size - _TAIL_BYTES, 0))
                lines = handle.read().split(b"\n")[1 if size > _TAIL_BYTES else 0 :]
        except OSError:
            return []
        found = []
        for number, line in enumerate(lines, 1):
            with suppress(msgspec.MsgspecError):
                entry = msgspec.json.decode(line, type=AuditEntry)
                entry.id = number
                found.append(entry)
        return found[-KEPT:]
