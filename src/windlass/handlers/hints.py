"""Reads the signature of a function: what it can be called with, and its annotations.

Annotations that cannot be resolved at run time are omitted.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, get_args, get_origin


def _underlying(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that has the annotations, behind partials, wrappers and callable objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if inspect.isroutine(fn) or isinstance(fn, type):
        return fn
    call: Callable[..., Any] = inspect.unwrap(type(fn).__call__)
    return call


def accepts(fn: Any, *args: Any, **kwargs: Any) -> bool:
    """Whether ``fn`` can be called with these arguments. True for a built-in that has no signature.

    A decorator may take other parameters than the function that it wraps, so its own count.
    """
    try:
        inspect.signature(fn, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def type_hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations by parameter, without those that cannot be resolved."""
    source = _underlying(fn)
    source = source.__init__ if isinstance(source, type) else source  # type: ignore[misc]
    try:
        return typing.get_type_hints(source, include_extras=True)
    except Exception:  # for example a name that only type checkers know: skip that one
        return _hints_one_by_one(source)


def _hints_one_by_one(source: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    scope = getattr(source, "__globals__", {})
    for name, annotation in getattr(source, "__annotations__", {}).items():
        shim = types.SimpleNamespace(__annotations__={name: annotation})
        # An annotation may be any expression and raise anything; its parameter stays unchecked.
        try:
            found.update(typing.get_type_hints(shim, globalns=scope, include_extras=True))
        except Exception:
            continue
    return found


def awaited(kind: Any) -> Any:
    """Return the result type of an awaitable ``kind``; other types unchanged."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Awaitable, Coroutine) and inner:
        return inner[-1]
    return kind
