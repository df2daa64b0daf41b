"""Mask the values of sensitive names in data and in error messages.

Patterns are compared by words, in any spelling: ``api_key`` also covers ``apiKey``, ``Api-Key``, ``API_KEY``
and ``apikey``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from typing import Any

from windlass.core.job import BRIEF_CHARS

#: Replaces a hidden value.
HIDDEN = "[masked]"

#: Names of fields, in any spelling, whose values are never shown unless the application says otherwise.
DEFAULT_MASK = (
    "*password*",
    "*passwd*",
    "*passphrase*",
    "*pwd*",
    "*secret*",
    "*token*",
    "*credential*",
    "*authorization*",
    "auth",
    "auth_*",
    "*_auth",
    "oauth",
    "*cookie*",
    "*api_key*",
    "*access_key*",
    "*private_key*",
    "*signing_key*",
    "*encryption_key*",
    "dsn",
    "*_dsn",
    "*connection_string*",
    "*credit_card*",
    "*card_number*",
    "*cvv*",
    "cvc",
    "*_cvc",
    "ssn",
    "*_ssn",
    "*social_security*",
)
#: The maximum nesting depth. Values that are nested deeper are hidden.
DEPTH = 64
#: Where the capitals of ``camelCase`` and ``HTTPHeader`` begin a word.
_CAPITALS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TWO_WORDS = re.compile(r"\w_\w")


def _words(name: str, joint: str = r"[\W_]+") -> str:
    """The name in lower case with its words joined by ``_``."""
    return re.sub(joint, "_", _CAPITALS.sub("_", name)).lower()


def _spellings(pattern: str) -> set[str]:
    """The forms of a pattern to match: as written, with ``_`` between its words, and without separators."""
    if "[" in pattern:
        return {pattern.lower()}
    words = _words(pattern, r"[^\w*?]+|_+")
    together = {words.replace("_", "")} if _TWO_WORDS.search(words) else set()
    return {pattern.lower(), words, *together}


def key_text(key: Any) -> str:
    """The name in a key of a mapping. MessagePack also has keys that are bytes."""
    return key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key)


class NameMask:
    """The names that the patterns cover. ``*`` alone covers every value, also values without a name."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.everything: bool = "*" in patterns
        spellings = sorted({spelling for pattern in patterns for spelling in _spellings(pattern)})
        self._covered = re.compile("|".join(translate(spelling) for spelling in spellings) or r"(?!)")

    def covers(self, name: str) -> bool:
        """Whether values under ``name`` are hidden."""
        words = _words(name).strip("_")
        return any(self._covered.match(form) for form in (name.lower(), words, words.replace("_", "")))

    def hide(self, value: Any, depth: int = 0) -> Any:
        """The value with all hidden parts replaced. Parts that are nested too deep are hidden too."""
        if self.everything or depth > DEPTH:
            return None if value is None else HIDDEN
        if isinstance(value, Mapping):
            return {
                key: HIDDEN if self.covers(key_text(key)) and item is not None else self.hide(item, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.hide(item, depth + 1) for item in value]
        return value


#: ``name=value``, ``name: value`` and ``"name": "value"``, with the word that headers put before a secret.
_ASSIGNED = re.compile(
    r"""(?P<name>[A-Za-z_][\w.-]*)(?P<joint>["']?\s*[=:]\s*)"""
    r"""(?P<value>"[^"]*"?|'[^']*'?|(?:(?:Bearer|Basic|Token)\s+)?[^\s,;&)}\]]+)""",
    re.IGNORECASE,
)
#: The password in ``scheme://user:password@host``.
_IN_URL = re.compile(r"(?P<before>://[^/\s:@]*:)[^/\s@]+(?=@)")


def hide_url_passwords(value: Any) -> Any:
    """The value with passwords in URLs replaced, in every text at any depth."""
    if isinstance(value, str):
        return _IN_URL.sub(rf"\g<before>{HIDDEN}", value)
    if isinstance(value, Mapping):
        return {key: hide_url_passwords(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_url_passwords(item) for item in value]
    return value


class MessageMask:
    """Shortens error messages for history records, and hides the values of masked names in them."""

    def __init__(self, patterns: Sequence[str], *, keep: bool = True) -> None:
        """``keep``: if False, history records have no messages at all."""
        self._names = NameMask(patterns)
        self._keep = keep

    def brief(self, message: str) -> str | None:
        """The text that history records keep; None if that is the unchanged beginning of the message."""
        if not self._keep or self._names.everything:
            return "" if not self._keep else HIDDEN
        # Mask more than is kept, so that a value at the end is recognised even if it is cut off.
        masked = self._masked(hide_url_passwords(message[: 4 * BRIEF_CHARS]))
        kept = masked[:BRIEF_CHARS]
        return None if kept == message[:BRIEF_CHARS] else kept

    def _masked(self, text: str) -> str:
        parts, at, kept_to = [], 0, 0
        while (found := _ASSIGNED.search(text, at)) is not None:
            if self._names.covers(found["name"].rpartition(".")[2]):
                parts += [text[kept_to : found.start("value")], HIDDEN]
                at = kept_to = found.end()
            else:  # what stands behind it may be an assignment itself
                at = found.end("joint")
        return "".join([*parts, text[kept_to:]])
