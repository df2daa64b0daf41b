"""Hides values of fields whose names the application masks (``core.masks``)."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from windlass.core.flow_rules import DEPENDENCY_MESSAGE
from windlass.core.masks import DEPTH, NameMask, key_text
from windlass.core.masks import HIDDEN as HIDDEN
from windlass.serde import JSON
from windlass.serde.codecs import Codecs

#: Larger arguments are shown only on the job's own page: masking a megabyte takes about 0.1 s, and a list has
#: up to 1,000 jobs.
PREVIEWED_BYTES = 65_536
#: Replaces a message that names a queue which the caller may not see.
_OF_ANOTHER = "a job of another queue did not complete"


class Mask:
    """Hides values by the name of their field, at any depth. ``*`` alone hides every value.

    ``codecs`` are those of the app, which decode stored values before they are masked.
    """

    def __init__(self, patterns: Sequence[str], codecs: Codecs | None = None) -> None:
        self.codecs: Codecs = codecs or Codecs(JSON)
        self._names = NameMask(patterns)
        self.everything = self._names.everything
        self.nothing = not patterns
        self._shows: Callable[[str], bool] | None = None
        #: Whether the value of a name is hidden.
        self.covers: Callable[[str], bool] = self._names.covers

    def seeing(self, shows: Callable[[str], bool]) -> Mask:
        """This mask for a caller who sees the queues that ``shows`` accepts. Our messages name no other."""
        mine = copy.copy(self)
        mine._shows = shows
        return mine

    def brief(self) -> Mask:
        """This mask for lists: a compressed value that is large counts as one that cannot be decoded."""
        mine = copy.copy(self)
        mine.codecs = self.codecs.bounded(PREVIEWED_BYTES)
        return mine

    def hide(self, value: Any) -> Any:
        """The value with all hidden parts replaced. Parts that are nested too deep are hidden too."""
        return self._names.hide(value)

    def hides(self, value: Any) -> bool:
        """Whether some part of the value is hidden, even if that part is None or the mask's own text."""
        if self.everything:
            return True
        ahead = [value]
        while ahead:
            one = ahead.pop()
            if isinstance(one, Mapping):
                if any(self.covers(key_text(key)) for key in one):
                    return True
                ahead += one.values()
            elif isinstance(one, (list, tuple)):
                ahead += one
        return False

    def unread(self, data: str) -> str:
        """The text of bytes that cannot be decoded and may hold any field. Hidden if anything is masked."""
        return data if self.nothing else HIDDEN

    def text(self, value: str) -> str:
        """A text such as a log line. Hidden only if everything is, or where it names a hidden queue."""
        if self.everything:
            return HIDDEN if value else value
        return DEPENDENCY_MESSAGE.sub(self._unless_hidden, value)

    def json_text(self, value: str) -> str:
        """A JSON text with all hidden parts replaced. Other texts are treated as by ``text``."""
        try:
            plain = msgspec.json.decode(value)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return self.text(value)
        hidden = self.hide(plain)
        return value if hidden == plain else msgspec.json.encode(hidden).decode()

    def place(self, place: str | None) -> str | None:
        """A reference to a job as ``queue/id``; None if the caller may not see its queue."""
        hidden = place is not None and self._shows is not None and not self._shows(place.partition("/")[0])
        return None if hidden else place

    def _unless_hidden(self, found: re.Match[str]) -> str:
        hidden = self._shows is not None and not self._shows(found[1])
        return _OF_ANOTHER if hidden else found[0]

    def keeps(self, text: str) -> bool:
        """Whether a shown value that contains this text (in lower case) also contains it in the store."""
        return not self.everything and text not in HIDDEN.lower() and text not in _OF_ANOTHER

    def restore(self, given: Any, stored: Any, depth: int = 0) -> Any:
        """``given`` with its hidden parts replaced by those of ``stored``, so that an edit keeps secrets."""
        if given == HIDDEN:
            return stored
        if depth > DEPTH:  # nothing below this depth is shown
            return given
        if isinstance(given, Mapping) and isinstance(stored, Mapping):
            return {key: self.restore(item, stored.get(key), depth + 1) for key, item in given.items()}
        if isinstance(given, list) and isinstance(stored, (list, tuple)):
            padded = [*stored, *[None] * len(given)]
            return [self.restore(item, padded[at], depth + 1) for at, item in enumerate(given)]
        return given
