"""Translate Python's errors about values that cannot be stored."""

from __future__ import annotations

from windlass.errors import ConfigError


def bad_value(exc: Exception) -> ConfigError | None:
    """Return the error for a value that cannot be stored; None if ``exc`` has another cause."""
    if isinstance(exc, OverflowError):
        return ConfigError("numbers", f"of at most 64 bits ({exc})")
    if isinstance(exc, UnicodeEncodeError):
        return ConfigError("texts", f"valid Unicode ({exc})")
    if isinstance(exc, TypeError):
        return ConfigError("values", f"of types and sizes that can be stored ({exc})")
    return None
