"""What a handler may be called with: checked at enqueue, decoded in the worker.

Stored arguments are plain data (JSON's types, plus bytes in other codecs). A handler's annotations say what
they were: ``datetime``, ``UUID``, ``Decimal``, enums, ``bytes``, dataclasses, msgspec structs, typed
dicts, named tuples, paths, pydantic models, and lists, sets, tuples, dicts and unions of these. Nothing is
guessed: an int fits ``float``, but ``"5"`` does not fit ``int``. Parameters without an annotation, and
annotations that cannot be read here (unknown classes, names that only a type checker sees), take what came.

Everything is worked out once per function, so that a call with plain types costs about a microsecond.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from typing import Annotated, Any, ForwardRef, TypeVar, Union, get_args, get_origin

import msgspec

from windlass.core.options import OPTION_NAMES
from windlass.errors import ConfigError, ResultError, UnrecoverableError
from windlass.jobs.payload import RESULT
from windlass.serde import plain_hook

Convert = Callable[[Any], Any]

_REFUSALS = (msgspec.ValidationError, ValueError, TypeError, KeyError)
_EMPTY = inspect.Parameter.empty
#: Types for which a look at ``type(value)`` is the whole check, most of the time.
_EXACT = frozenset({int, str, float, bool, list, dict, type(None)})
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
#: Values of these types come back as they were, in every codec.
_PLAIN = frozenset({int, str, float, bool, type(None)})
_UNSTORABLE = (TypeError, ValueError, RecursionError, OverflowError, KeyError)
#: Longest excerpt of a value in a message.
_SHOWN = 60


class ArgumentError(UnrecoverableError, ValueError):
    """A stored argument does not fit the handler's annotation: the job fails, and no retry can help."""

    code = "argument"

    def __init__(self, message: str, parameter: str = "") -> None:
        self.parameter = parameter
        super().__init__(message)


def _is_model(kind: Any) -> bool:
    """Whether ``kind`` is a pydantic model class (version 2), without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


# --- converters: from plain data to one type -----------------------------------------------------------


def converter(kind: Any) -> Convert | None:
    """A function from plain data to ``kind``; ``None`` when every value is to be left as it came.

    The function raises one of ``_REFUSALS`` for a value that does not fit.
    """
    if kind in (Any, object, _EMPTY) or isinstance(kind, (TypeVar, ForwardRef, str)):
        return None
    try:
        info = msgspec.inspect.type_info(kind)
    except Exception:  # msgspec cannot do it (mixed enums, unions of classes) or the hint is no type
        return _by_hand(kind)
    return _by_hand(kind) if _has_unknown(info) else _by_msgspec(kind)


def _has_unknown(info: msgspec.inspect.Type) -> bool:
    """Whether a class that only its own module understands stands in ``info``, outside of a class."""
    match info:
        case msgspec.inspect.CustomType(cls=cls):
            return not (_is_model(cls) or (isinstance(cls, type) and issubclass(cls, PurePath)))
        case msgspec.inspect.UnionType(types=members):
            return any(_has_unknown(member) for member in members)
        case msgspec.inspect.TupleType(item_types=members):
            return any(_has_unknown(member) for member in members)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return _has_unknown(key) or _has_unknown(value)
        case msgspec.inspect.CollectionType(item_type=item):
            return _has_unknown(item)
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
    # A struct keeps its field's type ready; a bare type would be analysed again on each call.
    holder = msgspec.defstruct("Holder", [("value", kind)], array_like=True)
    convert = functools.partial(msgspec.convert, type=holder, dec_hook=_dec_hook, str_keys=True)

    def by_msgspec(value: Any) -> Any:
        return convert([value]).value

    return by_msgspec


def _by_hand(kind: Any) -> Convert | None:
    """Types that msgspec refuses, or that hold classes it does not know."""
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
    """The first member, from left to right, that the value fits."""
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
            except _REFUSALS:
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
        return _mapping(*(converter(part) or _as_it_came for part in inner))
    if issubclass(origin, tuple) and inner and inner[-1] is not Ellipsis:
        return _fixed_tuple([converter(part) or _as_it_came for part in inner])
    if issubclass(origin, (Sequence, AbstractSet)) and inner:
        made = next((kind for kind in (tuple, set, frozenset) if issubclass(origin, kind)), list)
        return _many(made, converter(inner[0]) or _as_it_came)
    return None


def _as_it_came(value: Any) -> Any:
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


# --- hints ---------------------------------------------------------------------------------------------


def describe(kind: Any) -> str:
    """A type as people write it."""
    return "None" if kind is type(None) else inspect.formatannotation(kind)


def _underlying(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose annotations count: behind partials, wrappers and callable objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if inspect.isroutine(fn) or isinstance(fn, type):
        return fn
    call: Callable[..., Any] = inspect.unwrap(type(fn).__call__)
    return call


def type_hints(fn: Callable[..., Any]) -> dict[str, Any]:
    """Annotations by parameter; those that do not resolve are left out, the others stay."""
    source = _underlying(fn)
    source = source.__init__ if isinstance(source, type) else source  # type: ignore[misc]
    try:
        return typing.get_type_hints(source, include_extras=True)
    except Exception:  # a name that exists for type checkers only: find out which
        return _hints_one_by_one(source)


def _hints_one_by_one(source: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    scope = getattr(source, "__globals__", {})
    for name, annotation in getattr(source, "__annotations__", {}).items():
        shim = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found.update(typing.get_type_hints(shim, globalns=scope, include_extras=True))
        except Exception:  # it may be any expression, and fail in any way: this parameter takes what comes
            continue
    return found


def _awaited(kind: Any) -> Any:
    """What awaiting ``kind`` gives, for functions that return an awaitable."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Awaitable, Coroutine) and inner:
        return inner[-1]
    return kind


class _Param:
    """One parameter: its exact plain type (if any), its converter, its words."""

    __slots__ = ("convert", "exact", "name", "open", "want")

    def __init__(self, name: str, kind: Any, convert: Convert) -> None:
        self.name = name
        self.want = describe(kind)
        self.convert = convert
        self.exact = kind if kind in _EXACT else None
        #: Whether it says nothing of what its values hold, as ``dict`` and ``list[Any]`` do.
        self.open: bool = _is_open(kind)


def _is_open(kind: Any) -> bool:
    try:
        return _holds_anything(msgspec.inspect.type_info(kind))
    except Exception:  # msgspec does not know the type: its own module reads it
        return False


def _holds_anything(info: msgspec.inspect.Type) -> bool:
    """Whether values of a type may hold what no annotation describes, outside of a class."""
    match info:
        case msgspec.inspect.AnyType():
            return True
        case msgspec.inspect.UnionType(types=members):
            return any(_holds_anything(member) for member in members)
        case msgspec.inspect.TupleType(item_types=members):
            return any(_holds_anything(member) for member in members)
        case msgspec.inspect.DictType(key_type=key, value_type=value):
            return _holds_anything(key) or _holds_anything(value)
        case msgspec.inspect.CollectionType(item_type=item):
            return _holds_anything(item)
    return False


def _param(name: str, kind: Any, default: Any = _EMPTY) -> _Param | None:
    """``None`` when the parameter takes what comes."""
    if default is None and kind is not _EMPTY:
        kind = kind | None if isinstance(kind, (type, types.UnionType)) else Union[kind, None]  # noqa: UP007
    convert = converter(kind)
    return None if convert is None else _Param(name, _unmarked(kind), convert)


def _unmarked(kind: Any) -> Any:
    """``kind`` in a form that can be looked up in a set."""
    try:
        hash(kind)
    except TypeError:
        return get_args(kind)[0] if get_origin(kind) is Annotated else repr(kind)
    return kind


# --- signatures ----------------------------------------------------------------------------------------


class Signature:
    """The parameters and the result of a handler. Build it once per function, with ``Signature.of``.

    ``skip_first`` leaves out the first parameter, for handlers that get the job itself there; ``without``
    names others that producers do not pass. ``name`` is how messages call the task.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        skip_first: bool = False,
        without: frozenset[str] = frozenset(),
    ) -> None:
        signature = inspect.signature(fn)
        params = list(signature.parameters.values())[1 if skip_first else 0 :]
        params = [param for param in params if param.name not in without]
        hints = type_hints(fn)
        self.name: str = str(name or getattr(fn, "__qualname__", type(fn).__qualname__))
        self.result_type: Any = _awaited(hints.get("return", Any))
        self._signature = signature.replace(parameters=params)
        self._result = None if self.result_type in _EXACT else converter(self.result_type)
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        #: The names of positional parameters, in order.
        self.names: tuple[str, ...] = tuple(param.name for param in params if param.kind in by_place)
        #: The names of all parameters, and whether others may be given by name.
        self.parameters: tuple[str, ...] = tuple(
            param.name for param in params if param.kind not in _VARIADIC
        )
        self.takes_any_name: bool = any(param.kind is param.VAR_KEYWORD for param in params)
        self._read_params(params, hints)
        self._read_binding(params)

    @classmethod
    def of(
        cls,
        fn: Callable[..., Any],
        *,
        name: str | None = None,
        skip_first: bool = False,
        without: frozenset[str] = frozenset(),
    ) -> Signature:
        """The signature of ``fn``; ``ConfigError`` when it has none that can be read."""
        try:
            return cls(fn, name=name, skip_first=skip_first, without=without)
        except (TypeError, ValueError) as exc:
            raise ConfigError("handler", f"a function whose signature can be read ({exc})", fn) from exc

    def _read_params(self, params: list[inspect.Parameter], hints: dict[str, Any]) -> None:
        positional: list[_Param | None] = []
        self._by_name: dict[str, _Param | None] = {}
        self._rest: _Param | None = None
        self._rest_by_name: _Param | None = None
        for param in params:
            read = _param(param.name, hints.get(param.name, _EMPTY), param.default)
            if param.kind is param.VAR_POSITIONAL:
                self._rest = read
            elif param.kind is param.VAR_KEYWORD:
                self._rest_by_name = read
            else:
                if param.kind is not param.KEYWORD_ONLY:
                    positional.append(read)
                if param.kind is not param.POSITIONAL_ONLY:
                    self._by_name[param.name] = read
        self._positional = tuple(positional)
        places = [param.name for param in params if param.kind not in (param.KEYWORD_ONLY, param.VAR_KEYWORD)]
        #: The names of positional parameters, a starred one last.
        self._places: tuple[str, ...] = tuple(places)
        self._typed_args = any(positional) or self._rest is not None
        self._typed_kwargs = any(self._by_name.values()) or self._rest_by_name is not None

    def _read_binding(self, params: list[inspect.Parameter]) -> None:
        """What it takes to tell whether a call would be accepted."""
        kinds = {param.kind for param in params}
        self._takes_more = inspect.Parameter.VAR_POSITIONAL in kinds
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        places = {
            param.name: place if param.kind in by_position else sys.maxsize
            for place, param in enumerate(params)
            if param.kind not in _VARIADIC
        }
        self._place = {name: place for name, place in places.items() if name in self._by_name}
        self._required = tuple(
            (param.name if param.name in self._by_name else None, places[param.name])
            for param in params
            if param.default is _EMPTY and param.kind not in _VARIADIC
        )

    # --- at enqueue --------------------------------------------------------------------------------

    def check(
        self,
        task: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        as_read: Convert | None = None,
        *,
        step: bool = False,
    ) -> None:
        """``ConfigError``, naming ``task``, unless the handler can be called so and could decode it all.

        With ``as_read``, which gives a value as the worker reads it, also for a value that no annotation
        turns back into what it was. In a ``step``, ``RESULT`` fits every parameter.
        """
        if not self.accepts(args, kwargs):
            raise self._refusal(task, args, kwargs)
        for place, value in enumerate(args):
            if (type(value) not in _PLAIN or self._typed_args) and not (step and value is RESULT):
                self._check_one(task, self._at(place), self._name_at(place), value, as_read)
        for name, value in kwargs.items():
            if (type(value) not in _PLAIN or self._typed_kwargs) and not (step and value is RESULT):
                param = self._by_name.get(name, self._rest_by_name)
                self._check_one(task, param, name, value, as_read)

    def _check_one(
        self, task: str, param: _Param | None, name: str, value: Any, as_read: Convert | None
    ) -> None:
        if value is RESULT:
            want = "a value: RESULT is for steps, whose flow says what comes before (task.s(RESULT))"
            raise ConfigError(f"argument {name!r} of task {task!r}", want)
        if param is not None and type(value) is not param.exact:
            _check_value(task, param, name, value)
        if as_read is not None and (param is None or param.open) and type(value) not in _PLAIN:
            _check_kept(task, param, name, value, as_read)

    def _name_at(self, place: int) -> str:
        return self._places[min(place, len(self._places) - 1)]

    def accepts(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the handler can be called with so many arguments of these names."""
        given, place = len(args), self._place
        if given > len(self._positional) and not self._takes_more:
            return False
        for name in kwargs:
            if name not in place:
                if not self.takes_any_name:
                    return False
            elif place[name] < given:
                return False
        for required, position in self._required:
            if position >= given and required not in kwargs:
                return False
        return True

    def _refusal(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> ConfigError:
        why = ""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            why = f" ({exc})"
        options = [name for name in kwargs if name in OPTION_NAMES and name not in self.parameters]
        if options:
            shown = ", ".join(f"{name}={_Excerpt(kwargs[name])!r}" for name in options)
            why += f"; job options go first: .options({shown}).enqueue(...)"
        want = f"what {self.name}{self._signature} can be called with{why}"
        return ConfigError(f"arguments of task {task!r}", want)

    # --- in the worker -----------------------------------------------------------------------------

    def decode(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Stored arguments as the annotated types. The given containers are not changed.

        ``ArgumentError`` names the parameter whose value does not fit. Arguments that the handler does
        not take are left to the call itself, which says so.
        """
        if self._typed_args and args:
            args = self._decode_args(args)
        if self._typed_kwargs and kwargs:
            kwargs = self._decode_kwargs(kwargs)
        return args, kwargs

    def _decode_args(self, args: list[Any]) -> list[Any]:
        decoded: list[Any] | None = None
        params = self._positional
        count = len(params)
        for place, value in enumerate(args):
            param = params[place] if place < count else self._rest
            if param is None or type(value) is param.exact:
                continue
            if decoded is None:
                decoded = list(args)
            decoded[place] = self._decode_value(param, param.name, value)
        return args if decoded is None else decoded

    def _decode_kwargs(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        decoded: dict[str, Any] | None = None
        by_name = self._by_name
        for name, value in kwargs.items():
            param = by_name[name] if name in by_name else self._rest_by_name
            if param is None or type(value) is param.exact:
                continue
            if decoded is None:
                decoded = dict(kwargs)
            decoded[name] = self._decode_value(param, name, value)
        return kwargs if decoded is None else decoded

    def _decode_value(self, param: _Param, name: str, value: Any) -> Any:
        try:
            return param.convert(value)
        except _REFUSALS as exc:
            came = f"{type(value).__name__} {_Excerpt(value)!r}"
            raise ArgumentError(
                f"argument {name!r} of task {self.name!r} must be {param.want}, got {came} ({_detail(exc)})",
                name,
            ) from None

    def _at(self, place: int) -> _Param | None:
        return self._positional[place] if place < len(self._positional) else self._rest

    # --- for callers -------------------------------------------------------------------------------

    def decode_result(self, value: Any) -> Any:
        """A stored result as the annotated return type; ``ResultError`` when it does not fit."""
        if self._result is None:
            return value
        try:
            return self._result(value)
        except _REFUSALS as exc:
            want = describe(self.result_type)
            raise ResultError(
                f"the result of task {self.name!r} is not {want} as annotated ({_detail(exc)})"
            ) from None


def _check_value(task: str, param: _Param, name: str, value: Any) -> None:
    """Refuse at enqueue exactly what ``decode`` would refuse in the worker."""
    try:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=plain_hook)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return  # whether it can be stored is the codec's question
    try:
        param.convert(plain)
    except _REFUSALS as exc:
        option = f"argument {name!r} of task {task!r}"
        raise ConfigError(option, f"{param.want} ({_detail(exc)})", _Excerpt(value)) from None


def _check_kept(task: str, param: _Param | None, name: str, value: Any, as_read: Convert) -> None:
    """Refuse a value that the handler would get as another type, since no annotation says which it was."""
    try:
        got = as_read(value)
        if param is not None:
            got = param.convert(got)
    except _UNSTORABLE:
        return  # whether it can be stored is the codec's question
    if got == value:
        return
    lost, became = _first_lost(value, got)
    kind = describe(type(lost))
    where = f"write {name}: {kind}" if lost is value else f"say what {name!r} holds, with dict[str, {kind}]"
    raise ConfigError(
        f"argument {name!r} of task {task!r}",
        f"annotated: a {kind} would arrive as {describe(type(became))} "
        f"({where}, or a dataclass, in the task; or keep types with Windlass(codec='json+tagged'))",
        _Excerpt(value),
    )


def _first_lost(value: Any, got: Any) -> tuple[Any, Any]:
    """The innermost part of ``value`` that differs from what came back, and what that became."""
    pairs: list[tuple[Any, Any]] = []
    if type(value) is dict and type(got) is dict and value.keys() == got.keys():
        pairs = [(value[key], got[key]) for key in value]
    elif type(value) is list and type(got) is list:
        pairs = list(zip(value, got, strict=False))
    return next((_first_lost(one, other) for one, other in pairs if one != other), (value, got))


class _Excerpt:
    """A value that shows itself shortened."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        text = repr(self._value)
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _detail(exc: BaseException) -> str:
    return " ".join(str(exc).replace("`$[0]", "`$").replace(" - at `$`", "").split())[:300]
