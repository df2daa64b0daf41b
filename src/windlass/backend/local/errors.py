"""What Python says about values that no store takes, as the error that callers see."""

from __future__ import annotations

from windlass.errors import ConfigError


def bad_value(exc: Exception) -> ConfigError | None:
    """The error for a value that cannot be stored; None when ``exc`` is about something else."""
    if isinstance(exc, OverflowError):
        return ConfigError("numbers", f"of at most 64 bits ({exc})")
    if isinstance(exc, UnicodeEncodeError):
        return ConfigError("texts", f"valid Unicode ({exc})")
    if isinstance(exc, TypeError):
        return ConfigError("values", f"of types and sizes that can be stored ({exc})")
    return None
