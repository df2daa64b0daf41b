"""Read the ledger: the rows, their groups and the backends."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

MAX_TITLE = 90
_ROW_ID = re.compile(r"[A-Z][1-9][0-9]*")
_FIELDS = {"id", "group", "title", "demanded", "superseded", "backends", "store_free", "needs"}


class LedgerError(ValueError):
    """An error in the ledger, or in a reference to one of its rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One promised feature."""

    id: str
    group: str
    title: str
    #: True if the first design of Windlass asks for it, False if it goes beyond that.
    demanded: bool
    #: Why no test can or should prove this row, or None.
    superseded: str | None = None
    #: The backends that the row is about; empty means all of them.
    backends: tuple[str, ...] = ()
    #: It does not depend on a store. It is proved once, and is not in the table of stores.
    store_free: bool = False
    #: The capability that a store must declare for it; a store without it refuses the row.
    needs: str | None = None

    def concerns(self, backend: str) -> bool:
        """Whether the row applies to ``backend``."""
        return not self.backends or backend in self.backends


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All rows, in the order of the file."""

    groups: dict[str, str]
    backends: tuple[str, ...]
    rows: dict[str, Row]

    def in_group(self, group: str) -> list[Row]:
        """The rows of one group, in order."""
        return [row for row in self.rows.values() if row.group == group]

    def check_ids(self, ids: Iterable[str]) -> None:
        """Raise ``LedgerError`` if an id is not in the ledger."""
        unknown = [row_id for row_id in ids if row_id not in self.rows]
        if unknown:
            raise LedgerError(f"not in the feature ledger: {', '.join(map(repr, unknown))}")


def load_ledger(path: Path) -> Ledger:
    """Read and validate the ledger at ``path``."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    rows = [_row(entry) for entry in raw["rows"]]
    doubles = [row_id for row_id, seen in Counter(row.id for row in rows).items() if seen > 1]
    if doubles:
        raise LedgerError(f"rows that stand twice: {', '.join(doubles)}")
    groups: dict[str, str] = raw["groups"]
    strays = [row.id for row in rows if row.group not in groups]
    if strays:
        raise LedgerError(f"rows of an unknown group: {', '.join(strays)}")
    return Ledger(groups=groups, backends=tuple(raw["backends"]), rows={row.id: row for row in rows})


def _row(entry: dict[str, Any]) -> Row:
    row_id, title = entry["id"], entry["title"]
    if not _ROW_ID.fullmatch(row_id) or row_id[0] != entry["group"]:
        raise LedgerError(f"row id {row_id!r} does not fit its group {entry['group']!r}")
    if not 1 <= len(title) <= MAX_TITLE:
        raise LedgerError(f"the title of {row_id} has {len(title)} characters, wanted 1 to {MAX_TITLE}")
    unknown = entry.keys() - _FIELDS
    if unknown:
        raise LedgerError(f"row {row_id} has unknown fields: {', '.join(sorted(unknown))}")
    if entry.get("store_free") and (entry.get("backends") or entry.get("needs")):
        raise LedgerError(f"row {row_id} is store-free, so it can name neither stores nor a capability")
    return Row(
        id=row_id,
        group=entry["group"],
        title=title,
        demanded=bool(entry["demanded"]),
        superseded=entry.get("superseded"),
        backends=tuple(entry.get("backends", ())),
        store_free=bool(entry.get("store_free", False)),
        needs=entry.get("needs"),
    )
