"""Translate Python's errors about values that cannot be stored."""

from __future__ import annotations

from windlass.errors import ConfigError


def bad_value(exc: Exception) -> ConfigError | None:
    """Return the error for a value that cannot be stored; None if ``exc`` has another cause."""
    if isinstance(exc, OverflowError):
        return ConfigError("numbers", message=f"a number has more than 64 bits and cannot be stored ({exc})")
    if isinstance(exc, UnicodeEncodeError):
        return ConfigError("texts", message=f"a text is not valid Unicode and cannot be stored ({exc})")
    if isinstance(exc, TypeError):
        return ConfigError("values", message=f"a value cannot be stored ({exc})")
    return None
