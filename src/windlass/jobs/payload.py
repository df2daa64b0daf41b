"""The stored form of a call: ``args`` and ``kwargs``, and how it was written.

``queue.add(name, data)`` takes an object as keyword arguments, a list as positional ones and any other
value as one argument; ``form`` remembers which, so that ``job.data`` gives back exactly what was added.
Any language can write it: ``{"args": [...], "kwargs": {...}}``, both optional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from windlass.errors import ConfigError
from windlass.serde import JSON

if TYPE_CHECKING:
    from windlass.core.job import JobRecord, NewJob
    from windlass.serde.codecs import Codecs


class Call(msgspec.Struct):
    """Decoded arguments. ``form`` is ``call``, ``none``, ``object``, ``list`` or ``value``."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    form: str = "call"

    @property
    def data(self) -> Any:
        """The arguments as one value: what ``queue.add`` was given."""
        match self.form:
            case "none":
                return None
            case "object":
                return self.kwargs
            case "list":
                return self.args
            case "value":
                return self.args[0]
        if self.args and self.kwargs:
            return {"args": self.args, "kwargs": self.kwargs}
        return self.kwargs or self.args or None


def pack_call(args: tuple[Any, ...] | list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The stored form of a task's call."""
    packed: dict[str, Any] = {}
    if args:
        packed["args"] = list(args)
    if kwargs:
        packed["kwargs"] = kwargs
    return packed


def pack_data(data: Any) -> dict[str, Any]:
    """The stored form of what ``queue.add`` was given."""
    if data is None:
        return {"form": "none"}
    if isinstance(data, dict):
        for key in data:
            if not isinstance(key, str):
                raise ConfigError("data", "an object whose keys are texts", key)
        return {"kwargs": data, "form": "object"}
    if isinstance(data, (list, tuple)):
        return {"args": list(data), "form": "list"}
    return {"args": [data], "form": "value"}


_read_json = msgspec.json.Decoder(Call).decode


def read_call(codecs: Codecs, job: JobRecord | NewJob) -> Call:
    """The arguments of a job, if ``codecs`` accept them; raises what its codec does, or ``ValueError``."""
    known = codecs.payload(job.codec)
    if known is JSON:
        try:
            call = _read_json(job.payload)
        except (msgspec.DecodeError, RecursionError):
            pass  # what is wrong with it is reported below
        else:
            if call.form != "value" or len(call.args) == 1:
                return call
    return unpack(codecs.arguments(known, job))


def unpack(stored: Any) -> Call:
    """Arguments from their stored form; ``ValueError`` when it is not one."""
    if not isinstance(stored, dict):
        raise ValueError(f"expected an object with args and kwargs, got {type(stored).__name__}")
    args, kwargs = stored.get("args", []), stored.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError("args must be a list and kwargs an object")
    form = stored.get("form", "call")
    if form == "value" and len(args) != 1:
        raise ValueError("a single value has exactly one argument")
    return Call(args, kwargs, form)
