"""One parameter of a handler: checks its values, and describes values that do not match."""

from __future__ import annotations

import inspect
import types
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from windlass.errors import ConfigError
from windlass.handlers.converters import REFUSALS, Convert, any_part, converter, describe
from windlass.serde import plain_hook

_EMPTY = inspect.Parameter.empty
#: Types that can usually be checked by ``type(value)`` alone.
EXACT = frozenset({int, str, float, bool, list, dict, type(None)})
#: Values of these types are the same after a round trip through any codec.
PLAIN = frozenset({int, str, float, bool, type(None)})
_BINARY = (bytes, bytearray, memoryview)
#: Containers that JSON stores alike. An annotation says which of them the handler gets.
_SEQUENCES = (list, tuple, set, frozenset)
_UNSTORABLE = (TypeError, ValueError, RecursionError, OverflowError, KeyError)
#: The maximum length of a value in a message.
_SHOWN = 60


class Parameter:
    """One parameter: its exact plain type (if any), its converter, and its description for errors."""

    __slots__ = ("convert", "exact", "name", "open", "want")

    def __init__(self, name: str, kind: Any, convert: Convert) -> None:
        self.name: str = name
        self.want: str = describe(kind)
        self.convert: Convert = convert
        self.exact: type | None = kind if kind in EXACT else None
        #: Whether the content of its values is not annotated, as in ``dict`` and ``list[Any]``.
        self.open: bool = _is_open(kind)


def _is_open(kind: Any) -> bool:
    """Whether values of a type may contain data that no annotation describes."""
    try:
        return any_part(msgspec.inspect.type_info(kind), _is_any)
    except Exception:  # unknown to msgspec: such types have their own converter
        return False


def _is_any(info: msgspec.inspect.Type) -> bool:
    return isinstance(info, msgspec.inspect.AnyType)


def read_parameter(name: str, kind: Any, default: Any = _EMPTY) -> Parameter | None:
    """Return the parameter; None if it accepts any value."""
    if default is None and kind is not _EMPTY:
        kind = kind | None if isinstance(kind, (type, types.UnionType)) else Union[kind, None]  # noqa: UP007
    convert = converter(kind)
    return None if convert is None else Parameter(name, _unmarked(kind), convert)


def _unmarked(kind: Any) -> Any:
    """Return ``kind`` in a hashable form."""
    try:
        hash(kind)
    except TypeError:
        return get_args(kind)[0] if get_origin(kind) is Annotated else repr(kind)
    return kind


def check_value(task: str, param: Parameter, name: str, value: Any) -> None:
    """Raise ``ConfigError`` at enqueue for values that ``decode`` would refuse in the worker."""
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=plain_hook)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return  # the codec reports values that it cannot store
    option = f"argument {name!r} of task {task!r}"
    try:
        converted = param.convert(plain)
    except REFUSALS as exc:
        raise ConfigError(option, f"{param.want} ({detail(exc)})", Excerpt(value)) from None
    if isinstance(value, _BINARY) and isinstance(converted, str):
        want = f"{param.want} (bytes would arrive as base64 text: decode them, or annotate bytes)"
        raise ConfigError(option, want, Excerpt(value))


def check_kept(task: str, param: Parameter | None, name: str, value: Any, as_read: Convert) -> None:
    """Raise ``ConfigError`` for a value that the handler would receive as another type, without an
    annotation.
    """
    try:
        got = as_read(value)
        if param is not None:
            got = param.convert(got)
            if isinstance(value, _SEQUENCES) and type(got) in _SEQUENCES:
                value = type(got)(value)  # the annotation asks for this type
    except _UNSTORABLE:
        return  # the codec reports values that it cannot store
    if got == value:
        return
    lost, became = _first_lost(value, got)
    kind = describe(type(lost))
    change = f"a {kind} would arrive as {describe(type(became))}"
    if type(lost) is dict and type(became) is dict:  # their keys differ
        key = next((describe(type(key)) for key in lost if type(key) is not str), "str")
        kind, change = f"dict[{key}, ...]", f"the {key} keys of a dict would arrive as str"
    held = f"list[{kind}]" if type(value) is list else f"dict[str, {kind}]"
    where = f"write {name}: {kind}" if lost is value else f"say what {name!r} holds, with {held}"
    raise ConfigError(
        f"argument {name!r} of task {task!r}",
        f"annotated: {change} "
        f"({where}, or a dataclass, in the task; or keep types with Windlass(codec='json+tagged'))",
        Excerpt(value),
    )


def _first_lost(value: Any, got: Any) -> tuple[Any, Any]:
    """Return the innermost part of ``value`` that was changed, and what it became."""
    pairs: list[tuple[Any, Any]] = []
    if type(value) is dict and type(got) is dict and value.keys() == got.keys():
        pairs = [(value[key], got[key]) for key in value]
    elif type(value) is list and type(got) is list:
        pairs = list(zip(value, got, strict=False))
    return next((_first_lost(one, other) for one, other in pairs if one != other), (value, got))


class Excerpt:
    """A value with a shortened ``repr``."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        text = repr(self._value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def detail(exc: BaseException) -> str:
    return " ".join(str(exc).replace("`$[0]", "`$").replace(" - at `$`", "").split())[:300]
