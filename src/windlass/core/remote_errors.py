"""Errors that happened elsewhere, as exceptions that can be raised, caught and classified here.

All that is left of them are texts: the name of the class, the message, the traceback. What is built is a
``RemoteError`` with the original's class name that is also an instance of the nearest class both sides know.
"""

from __future__ import annotations

import builtins
import functools
from typing import Any

from windlass import errors
from windlass.core.job import ErrorInfo
from windlass.errors import JobSignal, RemoteError

#: Raising these in a coroutine means something else, or they cannot be made from a message.
_NEVER_REBUILT = (StopIteration, StopAsyncIteration, BaseExceptionGroup)


def of_record(info: ErrorInfo) -> RemoteError:
    """The error of a failed attempt, as its record has it: ``except ValueError`` still works.

    Records keep no module: a class of the application that is named like a built-in one is taken for it.
    """
    name = info.error_class or "Exception"
    kind = remote_class(name, "", name, name)
    return kind(name, "", info.message, info.traceback)


@functools.lru_cache(maxsize=256)
def remote_class(name: str, module: str, windlass_base: str, builtin_base: str) -> type[RemoteError]:
    """The class of a rebuilt error: named as the original, below what is known of its bases."""
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
