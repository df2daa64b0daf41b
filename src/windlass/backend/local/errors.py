"""Translate errors of Python, the disk and the database to those that callers see."""

from __future__ import annotations

from windlass.errors import ConfigError, StorageError, WindlassError


def to_error(exc: Exception, what: str, advice: str = "", *, is_value: bool = False) -> WindlassError:
    """The error that callers see for ``exc``: ``what`` failed, with ``advice``.

    ``is_value``: the cause is a value of the request. Some errors of Python say so by themselves.
    """
    error: WindlassError
    if isinstance(exc, WindlassError):
        return exc
    if isinstance(exc, OverflowError):
        error = ConfigError("numbers", message=f"a number has more than 64 bits and cannot be stored ({exc})")
    elif isinstance(exc, UnicodeEncodeError):
        error = ConfigError("texts", message=f"a text is not valid Unicode and cannot be stored ({exc})")
    elif is_value or isinstance(exc, TypeError):
        error = ConfigError("values", message=f"a value cannot be stored ({exc})")
    else:
        error = StorageError(f"{what}: {exc}" + (f"; {advice}" if advice else ""))
    error.__cause__ = exc
    return error
