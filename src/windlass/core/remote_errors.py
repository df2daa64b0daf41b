"""Rebuild errors of other processes as exceptions that can be raised, caught and classified here.

Only texts of the original error are available: the name of its class, the message and the traceback. The
rebuilt exception is a ``RemoteError`` with the original's class name. It is also an instance of the nearest
base class that both processes have.
"""

from __future__ import annotations

import builtins
import functools
from typing import Any

from windlass import errors
from windlass.core.job import ErrorInfo
from windlass.errors import JobSignal, RemoteError

#: Raising these in a coroutine has another meaning, or they cannot be created from a message.
_NEVER_REBUILT = (StopIteration, StopAsyncIteration, BaseExceptionGroup)


def of_record(info: ErrorInfo) -> RemoteError:
    """The recorded error of a failed attempt as an exception: ``except ValueError`` works.

    Records have no module names, so an application's class with the name of a built-in one counts as that.
    """
    name = info.error_class or "Exception"
    kind = remote_class(name, "", name, name)
    return kind(name, "", info.message, info.traceback)


@functools.lru_cache(maxsize=256)
def remote_class(name: str, module: str, windlass_base: str, builtin_base: str) -> type[RemoteError]:
    """The class of a rebuilt error, with the name of the original and those of its bases that exist here."""
    known = [*_known(errors, windlass_base), *_known(builtins, builtin_base)]
    bases = [base for base in known if not any(base is not b and issubclass(b, base) for b in known)]
    bases = [base for base in bases if not issubclass(RemoteError, base)]
    space = {"__module__": module or RemoteError.__module__, "__qualname__": name}
    try:
        return type(name, (RemoteError, *bases), space)
    except TypeError:  # layouts or orders that do not go together
        return type(name, (RemoteError,), space)
    except ValueError:  # another program wrote it, and it cannot be the name of a class
        return RemoteError


def _known(module: Any, name: str) -> list[type[Exception]]:
    found = getattr(module, name, None) if name else None
    if not isinstance(found, type) or not issubclass(found, Exception):
        return []
    return [] if issubclass(found, (*_NEVER_REBUILT, JobSignal)) else [found]
