"""Escaped text for the terminal, so that data of a job cannot control it.

This is a separate module because it imports Rich, which is slow. ``windlass.cli.output`` imports it lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from windlass.core.text import printable

if TYPE_CHECKING:
    from rich.style import StyleType


class SafeText(Text):
    """One line of text. Control characters, line breaks and bidirectional marks are escaped; no markup."""

    def __init__(self, text: str = "", style: StyleType = "") -> None:
        super().__init__(printable(text), style=style)

    def append(self, text: Text | str, style: StyleType | None = None) -> Text:
        """Append text, escaped too."""
        return super().append(printable(text) if isinstance(text, str) else text, style)
