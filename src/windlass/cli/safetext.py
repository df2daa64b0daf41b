"""Text for the terminal: whatever is put into it is escaped, so that data of a job cannot steer a terminal.

Apart from ``windlass.cli.output``, which imports it when something is drawn, because Rich is slow to import.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from windlass.core.text import printable

if TYPE_CHECKING:
    from rich.style import StyleType


class SafeText(Text):
    """One line of text. Control characters, line breaks and turned writing show as escapes; no markup."""

    def __init__(self, text: str = "", style: StyleType = "") -> None:
        super().__init__(printable(text), style=style)

    def append(self, text: Text | str, style: StyleType | None = None) -> Text:
        """Add to it, escaped too."""
        return super().append(printable(text) if isinstance(text, str) else text, style)
