"""The stored form of a call: ``args`` and ``kwargs``, and how they were given.

``queue.add(name, data)`` takes an object as keyword arguments, a list as positional ones and any other value
as one argument. ``form`` records which, so that ``job.data`` returns exactly what was added. Any language can
write it: ``{"args": [...], "kwargs": {...}}``, both optional.

A step of a flow may take the results of the previous steps: ``RESULT`` in its arguments is a placeholder for
them. It is stored as null. ``takes`` lists its positions, and the worker inserts the results before it calls
the handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from windlass.errors import ConfigError, shown
from windlass.serde import JSON

if TYPE_CHECKING:
    from windlass.core.job import JobRecord, NewJob
    from windlass.serde.codecs import Codecs


class _StepResult:
    """The type of ``RESULT``, the placeholder for the result of the previous step."""

    def __repr__(self) -> str:
        return "RESULT"

    def model_dump(self, mode: str) -> None:
        """Refuse to be a part of a value that is stored (called by ``serde.plain_hook``)."""
        raise TypeError("RESULT must be a whole argument of a step, not a part of one: task.s(RESULT)")


#: As an argument of a step: the result of the previous step; after a group, the list of its results.
RESULT: Any = _StepResult()


class TakenResults(msgspec.Struct, frozen=True, omit_defaults=True):
    """The arguments that are results of jobs that this job waits for."""

    #: Their positions in ``args`` and names in ``kwargs``.
    at: list[int | str]
    #: The number of edges the job was added with. Later edges (children of its run) do not count.
    of: int
    #: Whether the argument is a list of results, even of one.
    gathered: bool = False


class Call(msgspec.Struct):
    """Decoded arguments. ``form`` is ``call``, ``none``, ``object``, ``list`` or ``value``."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    form: str = "call"
    takes: TakenResults | None = None

    def fill(self, result: Any) -> None:
        """Replace the placeholders by the result of the previous steps."""
        assert self.takes is not None
        for place in self.takes.at:
            if isinstance(place, int):
                self.args[place] = result
            else:
                self.kwargs[place] = result

    def filled(self) -> dict[str, Any]:
        """Return the stored form of a filled call, for a child process, which cannot read the store."""
        return {"args": self.args, "kwargs": self.kwargs, "form": self.form}

    @property
    def data(self) -> Any:
        """The arguments as one value, as they were given to ``queue.add``."""
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
    """Return the stored form of a task's call."""
    packed: dict[str, Any] = {}
    if args:
        packed["args"] = list(args)
    if kwargs:
        packed["kwargs"] = kwargs
    return packed


def pack_data(data: Any) -> dict[str, Any]:
    """Return the stored form of data given to ``queue.add``."""
    if data is None:
        return {"form": "none"}
    if isinstance(data, dict):
        for key in data:
            if not isinstance(key, str):
                raise ConfigError("data", message=f"data has a key that is not a text: {shown(key)}", got=key)
        return {"kwargs": data, "form": "object"}
    if isinstance(data, (list, tuple)):
        return {"args": list(data), "form": "list"}
    return {"args": [data], "form": "value"}


def places_of_result(packed: dict[str, Any]) -> list[int | str]:
    """Return the positions and names of ``RESULT`` in packed arguments."""
    args, kwargs = packed.get("args", ()), packed.get("kwargs", {})
    return [
        *(place for place, value in enumerate(args) if value is RESULT),
        *(name for name, value in kwargs.items() if value is RESULT),
    ]


def with_result_first(packed: dict[str, Any]) -> dict[str, Any]:
    """Return packed arguments with ``RESULT`` as the first one."""
    args, kwargs = [RESULT, *packed.get("args", ())], packed.get("kwargs", {})
    if not kwargs and "form" in packed:
        return pack_data(args if len(args) > 1 else RESULT)
    return pack_call(args, kwargs)


def pack_taking(packed: dict[str, Any], at: list[int | str], of: int, *, gathered: bool) -> dict[str, Any]:
    """Return the stored form of a call that takes the results of ``of`` jobs at the positions ``at``."""
    call = msgspec.convert(packed, Call)
    args, kwargs = list(call.args), dict(call.kwargs)
    taking = Call(args, kwargs, takes=TakenResults(at, of, gathered))
    taking.fill(None)
    found = {**packed, "takes": msgspec.to_builtins(taking.takes)}
    return found | {name: value for name, value in (("args", args), ("kwargs", kwargs)) if value}


_read_json = msgspec.json.Decoder(Call).decode


def read_call(codecs: Codecs, job: JobRecord | NewJob) -> Call:
    """Decode the arguments of a job. Raises ``ValueError`` or the errors of its codec."""
    known = codecs.payload(job.codec)
    if known is JSON:
        try:
            call = _read_json(job.payload)
        except (msgspec.DecodeError, RecursionError):
            pass  # ``unpack`` raises a better error
        else:
            if call.takes is None and (call.form != "value" or len(call.args) == 1):
                return call
    return unpack(codecs.arguments(known, job))


def unpack(stored: Any) -> Call:
    """Return arguments from their stored form. Raises ``ValueError`` when it is invalid."""
    if not isinstance(stored, dict):
        raise ValueError(f"expected an object with args and kwargs, got {type(stored).__name__}")
    args, kwargs = stored.get("args", []), stored.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise ValueError("args must be a list and kwargs an object")
    form = stored.get("form", "call")
    if form == "value" and len(args) != 1:
        raise ValueError("a single value has exactly one argument")
    return Call(args, kwargs, form, _read_takes(stored.get("takes"), args, kwargs))


def _read_takes(stored: Any, args: list[Any], kwargs: dict[str, Any]) -> TakenResults | None:
    if stored is None:
        return None
    takes = msgspec.convert(stored, TakenResults)  # its error is a ValueError
    for place in takes.at:
        if not (0 <= place < len(args) if isinstance(place, int) else place in kwargs):
            raise ValueError(f"takes names the argument {place!r}, which is not there")
    return takes
