"""Values that are not shown: those of fields whose names the application masks.

A name means the same in every spelling: a pattern is compared by words, so that ``api_key`` covers
``apiKey``, ``Api-Key``, ``API_KEY`` and ``apikey`` too.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import Any

from windlass.core.flow_rules import DEPENDENCY_MESSAGE
from windlass.serde import JSON
from windlass.serde.codecs import Codecs

#: Stands where a value is hidden.
HIDDEN = "[masked]"
_DEPTH = 64
#: Where the capitals of ``camelCase`` and ``HTTPHeader`` begin a word.
_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TWO_WORDS = re.compile(r"\w_\w")


def _words(name: str, joint: str = r"[\W_]+") -> str:
    """The name in small letters with its words joined by ``_``."""
    return re.sub(joint, "_", _CAPITALS.sub("_", name)).lower()


def _spellings(pattern: str) -> set[str]:
    """What a pattern is looked for as: as it is, by its words, and with two words and more run together."""
    if "[" in pattern:
        return {pattern.lower()}
    words = _words(pattern, r"[^\w*?]+|_+")
    together = {words.replace("_", "")} if _TWO_WORDS.search(words) else set()
    return {pattern.lower(), words, *together}


class Mask:
    """Hides values by the name of their field, at any depth. ``*`` alone hides every value.

    ``codecs`` are those of the app: what reads stored values before they are hidden.
    """

    def __init__(self, patterns: Sequence[str], codecs: Codecs | None = None) -> None:
        self.codecs: Codecs = codecs or Codecs(JSON)
        self.everything = "*" in patterns
        self.nothing = not patterns
        self._shows: Callable[[str], bool] | None = None
        spellings = sorted({spelling for pattern in patterns for spelling in _spellings(pattern)})
        self._covered = re.compile("|".join(translate(spelling) for spelling in spellings) or r"(?!)")

    def seeing(self, shows: Callable[[str], bool]) -> Mask:
        """This mask, for a caller who sees the queues that ``shows`` tells: texts of ours name no other."""
        mine = copy.copy(self)
        mine._shows = shows
        return mine

    def covers(self, name: str) -> bool:
        """Whether values under ``name`` are hidden."""
        words = _words(name).strip("_")
        return any(self._covered.match(form) for form in (name.lower(), words, words.replace("_", "")))

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

    def hides(self, value: Any) -> bool:
        """Whether something in the value is hidden, whatever stands there: also None, and the word itself."""
        if self.everything:
            return True
        ahead = [value]
        while ahead:
            one = ahead.pop()
            if isinstance(one, Mapping):
                if any(self.covers(str(key)) for key in one):
                    return True
                ahead += one.values()
            elif isinstance(one, (list, tuple)):
                ahead += one
        return False

    def unread(self, data: str) -> str:
        """Bytes, as text, that cannot be read here and may hold any field: shown when nothing is masked."""
        return data if self.nothing else HIDDEN

    def text(self, value: str) -> str:
        """A text such as a log line: hidden only when everything is, or where it tells of a hidden queue."""
        if self.everything:
            return HIDDEN if value else value
        return DEPENDENCY_MESSAGE.sub(self._told, value)

    def _told(self, found: re.Match[str]) -> str:
        hidden = self._shows is not None and not self._shows(found[1])
        return "a job of another queue did not complete" if hidden else found[0]

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
