"""Texts from user code: cleaned and bounded before they are stored, escaped before they are printed.

An error message, a cancel reason or a task name may contain anything: lone surrogates from ``os.fsdecode``,
NUL, terminal escapes, five megabytes. Stores and codecs accept only well-formed text, so ``clean_text`` runs
where a request is built. ``printable`` runs where a text is written to a terminal or a log.
"""

from __future__ import annotations

import re
from typing import Final

#: The maximum length of a reason, and of any text without its own bound.
MESSAGE_CHARS: Final = 2_000

_CUT: Final = "..."
#: Control characters except for newline and tab, and surrogates, which UTF-8 cannot encode.
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
#: Also characters that move the cursor, break the line or change the direction of writing.
_UNPRINTABLE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)
_UNPRINTABLE_IN_JSON: Final = re.compile(
    "[\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]"
)


def clean_text(value: object, limit: int = MESSAGE_CHARS) -> str:
    """``value`` as well-formed text of at most ``limit`` characters; never raises.

    Surrogates and control characters are replaced with escapes. For a value whose ``str()`` raises, the text
    names its type.
    """
    text = _as_text(value)
    if len(text) > limit:
        text = text[: limit - len(_CUT)] + _CUT
    if _UNSAFE.search(text) is None:
        return text
    escaped = _UNSAFE.sub(_escape, text)
    return escaped if len(escaped) <= limit else escaped[: limit - len(_CUT)] + _CUT


def printable_json(text: str) -> str:
    """Equivalent JSON without characters that a terminal would interpret."""
    return _UNPRINTABLE_IN_JSON.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def printable_lines(text: str) -> str:
    """A text of several lines, such as a traceback, with each line ``printable``."""
    return "\n".join(map(printable, text.split("\n")))


def printable(text: str) -> str:
    """``text`` on one line, without characters that a terminal or a log reader would interpret."""
    return _UNPRINTABLE.sub(_escape, text)


def _as_text(value: object) -> str:
    if type(value) is str:
        return value
    try:
        text = str(value)
    except BaseException:  # user code: it may raise anything, also what would end the process
        return f"<a {type(value).__name__} that cannot be printed>"
    return str.__str__(text)  # a subclass of str becomes a plain one


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode("ascii")


def show_age(ms: float | None) -> str:
    """An age in one unit: ``now``, ``12s``, ``3m``, ``4h``, ``5d``."""
    if ms is None:
        return ""
    seconds = int(max(ms, 0) / 1000)
    if seconds < 1:
        return "now"
    for limit, size, unit in ((60, 1, "s"), (3_600, 60, "m"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86_400}d"


def many(count: int, word: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{count:,} {word}{'s' * (count != 1)}"
