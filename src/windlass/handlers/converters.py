"""Convert plain data to annotated types. A converter is built once per type and reused."""

from __future__ import annotations

import enum
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from typing import Annotated, Any, ForwardRef, TypeVar, Union, get_args, get_origin

import msgspec

Convert = Callable[[Any], Any]
REFUSALS = (msgspec.ValidationError, ValueError, TypeError, KeyError)
_EMPTY = inspect.Parameter.empty


def _is_model(kind: Any) -> bool:
    """Whether ``kind`` is a pydantic model class (version 2), without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def converter(kind: Any) -> Convert | None:
    """Return a function from plain data to ``kind``; None when values are not converted.

    The function raises one of ``REFUSALS`` for a value that does not match.
    """
    if kind in (Any, object, _EMPTY) or isinstance(kind, (TypeVar, ForwardRef, str)):
        return None
    try:
        info = msgspec.inspect.type_info(kind)
    except Exception:  # unsupported by msgspec (mixed enums, unions of classes), or not a type
        return _by_hand(kind)
    return _by_hand(kind) if any_part(info, _is_unknown) else _by_msgspec(kind)


def any_part(info: msgspec.inspect.Type, is_wanted: Callable[[msgspec.inspect.Type], bool]) -> bool:
    """Whether ``is_wanted`` holds for a type or a part of it. Fields of a class are not parts of it."""
    return is_wanted(info) or any(any_part(part, is_wanted) for part in _parts(info))


def _parts(info: msgspec.inspect.Type) -> tuple[msgspec.inspect.Type, ...]:
    match info:
        case msgspec.inspect.UnionType(types=members):
            return members
        case msgspec.inspect.TupleType(item_types=members):
            return members
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return key, value
        case msgspec.inspect.CollectionType(item_type=item):
            return (item,)
    return ()


def _is_unknown(info: msgspec.inspect.Type) -> bool:
    """Whether it is a class that neither msgspec nor ``_dec_hook`` can create."""
    match info:
        case msgspec.inspect.CustomType(cls=cls):
            return not (_is_model(cls) or (isinstance(cls, type) and issubclass(cls, PurePath)))
    return False


def _dec_hook(kind: type, value: Any) -> Any:
    if isinstance(value, kind):
        return value
    if _is_model(kind):
        return kind.model_validate(value)  # type: ignore[attr-defined]
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    raise ValueError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _by_msgspec(kind: Any) -> Convert:
    # A struct caches the type of its field; a bare type would be analysed on each call.
    holder = msgspec.defstruct("Holder", [("value", kind)], array_like=True)
    convert = functools.partial(msgspec.convert, type=holder, dec_hook=_dec_hook, str_keys=True)

    def by_msgspec(value: Any) -> Any:
        return convert([value]).value

    return by_msgspec


def _by_hand(kind: Any) -> Convert | None:
    """Return a converter for types that msgspec refuses, or that contain classes it does not know."""
    origin, inner = get_origin(kind), get_args(kind)
    if isinstance(kind, typing.NewType):
        return converter(kind.__supertype__)
    if origin is Annotated:
        return converter(inner[0])
    if origin in (Union, types.UnionType):
        return _union(inner)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return functools.partial(_to_enum, kind)
    if isinstance(origin, type):
        return _container(origin, inner)
    return None


def _union(members: tuple[Any, ...]) -> Convert | None:
    """Return a converter to the first member, from left to right, that accepts the value."""
    known = [converter(member) for member in members]
    if all(convert is None for convert in known):
        return None
    left = tuple(type(None) if member is None else member for member in members)
    tries = [convert for convert in known if convert is not None]
    takes_all = len(tries) < len(known)

    def union(value: Any) -> Any:
        for convert in tries:
            try:
                return convert(value)
            except REFUSALS:
                continue
        if takes_all:
            return value
        raise ValueError(f"it fits none of {', '.join(map(describe, left))}")

    return union


def _to_enum(kind: type[enum.Enum], value: Any) -> enum.Enum:
    if isinstance(value, kind):
        return value
    for member in kind:
        stored = msgspec.to_builtins(member.value)
        if type(stored) is type(value) and stored == value:
            return member
        if isinstance(stored, tuple) and list(stored) == value:
            return member
    raise ValueError(f"Invalid enum value {value!r}")


def _container(origin: type, inner: tuple[Any, ...]) -> Convert | None:
    if issubclass(origin, Mapping) and len(inner) == 2:
        return _mapping(*(converter(part) or _unchanged for part in inner))
    if issubclass(origin, tuple) and inner and inner[-1] is not Ellipsis:
        return _fixed_tuple([converter(part) or _unchanged for part in inner])
    if issubclass(origin, (Sequence, AbstractSet)) and inner:
        made = next((kind for kind in (tuple, set, frozenset) if issubclass(origin, kind)), list)
        return _many(made, converter(inner[0]) or _unchanged)
    return None


def _unchanged(value: Any) -> Any:
    return value


def _mapping(key: Convert, value: Convert) -> Convert:
    def mapping(given: Any) -> Any:
        if not isinstance(given, dict):
            raise ValueError(f"Expected `object`, got `{type(given).__name__}`")
        return {key(k): value(v) for k, v in given.items()}

    return mapping


def _fixed_tuple(parts: list[Convert]) -> Convert:
    def fixed_tuple(given: Any) -> Any:
        if not isinstance(given, (list, tuple)) or len(given) != len(parts):
            raise ValueError(f"Expected `array` of length {len(parts)}")
        return tuple(convert(item) for convert, item in zip(parts, given, strict=True))

    return fixed_tuple


def _many(made: Callable[[Any], Any], convert: Convert) -> Convert:
    def many(given: Any) -> Any:
        if not isinstance(given, (list, tuple, set, frozenset)):
            raise ValueError(f"Expected `array`, got `{type(given).__name__}`")
        return made([convert(item) for item in given])

    return many


def describe(kind: Any) -> str:
    """Return a type as it is written in code."""
    return "None" if kind is type(None) else inspect.formatannotation(kind)
