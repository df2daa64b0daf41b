"""Batches: one call of a handler for many jobs. The settings of batch tasks and the types of their jobs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, get_args, get_origin

import msgspec

from windlass.core.option_values import Duration, check_known, seconds_to_ms
from windlass.errors import ConfigError
from windlass.handlers.hints import type_hints
from windlass.handlers.inject import InjectedParameters, takes_one
from windlass.handlers.signature import Signature
from windlass.jobs.job import Job


class Batch(msgspec.Struct, frozen=True):
    """How jobs are collected: at most ``size``, for at most ``timeout`` after the first one.

    With ``timeout=0`` a batch consists of jobs that were claimed together. A batch never waits for more jobs
    than the worker has slots.
    """

    size: int = 100
    timeout: Duration = 0

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 1 <= self.size <= 10_000:
            raise ConfigError("batch.size", "a whole number from 1 to 10000", self.size)
        seconds_to_ms(self.timeout, "batch.timeout")

    @property
    def timeout_ms(self) -> int:
        """The timeout in milliseconds."""
        return seconds_to_ms(self.timeout, "batch.timeout")


def to_batch(value: Batch | Mapping[str, Any] | int | None) -> Batch | None:
    """Convert any accepted value: a ``Batch``, a size, or ``{"size": ..., "timeout": ...}``."""
    if value is None or isinstance(value, Batch):
        return value
    if isinstance(value, Mapping):
        check_known(value, {"size", "timeout"}, "batch setting")
        return Batch(**value)
    if isinstance(value, (float, timedelta)):
        raise ConfigError("batch", 'a size, or {"size": ..., "timeout": ...}', value)
    return Batch(value)


def takes_jobs(fn: Callable[..., Any]) -> bool:
    """Whether a batch function takes the jobs themselves: its list is of ``Job``, or is not annotated."""
    kind = _item_type(fn)
    return kind is Any or kind is Job or get_origin(kind) is Job


def item_signature(fn: Callable[..., Any], name: str, needs: InjectedParameters | None) -> Signature:
    """Return the signature for enqueuing one job of a batch task: one item of the function's list."""
    if not takes_one(fn, needs):
        raise ConfigError(f"task {name!r}", "a function of one parameter, the list, as it has batch", fn)
    if takes_jobs(fn):

        def anything(*args: Any, **kwargs: Any) -> Any: ...

        return Signature.of(anything, name=name)

    def one(item: Any, /) -> Any: ...

    one.__annotations__ = {"item": _item_type(fn), "return": _result_type(fn)}
    return Signature.of(one, name=name)


def _item_type(fn: Callable[..., Any]) -> Any:
    hints = type_hints(fn)
    first = next(iter(inspect.signature(fn).parameters), "")
    inner = get_args(hints.get(first, Any))
    return inner[0] if inner else Any


def _result_type(fn: Callable[..., Any]) -> Any:
    kind = type_hints(fn).get("return", Any)
    inner = get_args(kind)
    return inner[0] if get_origin(kind) in (list, tuple) and inner else Any
