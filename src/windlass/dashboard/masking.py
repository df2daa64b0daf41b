"""Values that are not shown: those of fields whose names the application masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from windlass.serde import JSON
from windlass.serde.codecs import Codecs

#: Stands where a value is hidden.
HIDDEN = "[masked]"
_DEPTH = 64


class Mask:
    """Hides values by the name of their field, at any depth. ``*`` alone hides every value.

    ``codecs`` are those of the app: what reads stored values before they are hidden.
    """

    def __init__(self, patterns: Sequence[str], codecs: Codecs | None = None) -> None:
        self.codecs: Codecs = codecs or Codecs(JSON)
        self._patterns = tuple(pattern.lower() for pattern in patterns)
        self.everything = "*" in self._patterns

    def covers(self, name: str) -> bool:
        """Whether values under ``name`` are hidden."""
        lower = name.lower()
        return any(fnmatchcase(lower, pattern) for pattern in self._patterns)

    def hide(self, value: Any, depth: int = 0) -> Any:
        """The value with all hidden parts replaced. What is nested too deep is hidden as well."""
        if self.everything or depth > _DEPTH:
            return None if value is None else HIDDEN
        if isinstance(value, Mapping):
            return {
                key: HIDDEN if self.covers(str(key)) and item is not None else self.hide(item, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.hide(item, depth + 1) for item in value]
        return value

    def text(self, value: str) -> str:
        """A text such as a log line: hidden only when everything is."""
        return HIDDEN if self.everything and value else value

    def restore(self, given: Any, stored: Any) -> Any:
        """``given`` with its hidden parts taken from the same places of ``stored``: an edit keeps secrets."""
        if given == HIDDEN:
            return stored
        if isinstance(given, Mapping) and isinstance(stored, Mapping):
            return {key: self.restore(item, stored.get(key)) for key, item in given.items()}
        if isinstance(given, list) and isinstance(stored, (list, tuple)):
            padded = [*stored, *[None] * len(given)]
            return [self.restore(item, padded[at]) for at, item in enumerate(given)]
        return given
