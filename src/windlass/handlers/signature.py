"""The arguments of a handler: checked at enqueue, decoded in the worker.

Stored arguments are plain data (the types of JSON, plus bytes in other codecs). The annotations of a handler
say what they were: ``datetime``, ``UUID``, ``Decimal``, enums, ``bytes``, dataclasses, msgspec structs, typed
dicts, named tuples, paths, pydantic models, and lists, sets, tuples, dicts and unions of these. Nothing is
guessed: an int is accepted for ``float``, but ``"5"`` is not accepted for ``int``. Parameters without an
annotation, or with one that cannot be resolved here, receive the stored value.

Everything is prepared once per function, so that a call with plain types costs about a microsecond.

``converters`` creates the decoding functions, ``hints`` reads annotations, ``parameters`` checks single
values.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.core.options import OPTION_NAMES
from windlass.errors import ConfigError, ResultError, UnrecoverableError, shown
from windlass.handlers.converters import REFUSALS, Convert, converter, describe
from windlass.handlers.hints import awaited, type_hints
from windlass.handlers.parameters import (
    EXACT,
    PLAIN,
    Excerpt,
    Parameter,
    check_kept,
    check_value,
    detail,
    read_parameter,
)
from windlass.jobs.payload import RESULT

_EMPTY = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class ArgumentError(UnrecoverableError, ValueError):
    """A stored argument does not match the handler's annotation. The job fails without a retry."""

    code = "argument"

    def __init__(self, message: str, parameter: str = "") -> None:
        self.parameter = parameter
        super().__init__(message)


class Signature:
    """The parameters and the result type of a handler. Created once per function, with ``Signature.of``.

    ``skip_first`` omits the first parameter, for handlers that take the job there. ``without`` names other
    parameters that producers do not pass. ``name`` is the task's name in messages.
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
        self.result_type: Any = awaited(hints.get("return", Any))
        self._signature = signature.replace(parameters=params)
        self._result = None if self.result_type in EXACT else converter(self.result_type)
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
        """Return the signature of ``fn``. Raises ``ConfigError`` when it cannot be read."""
        try:
            return cls(fn, name=name, skip_first=skip_first, without=without)
        except (TypeError, ValueError) as exc:
            raise ConfigError(
                "handler", message=f"cannot read the signature of {shown(fn)} ({exc})", got=fn
            ) from exc

    def _read_params(self, params: list[inspect.Parameter], hints: dict[str, Any]) -> None:
        positional: list[Parameter | None] = []
        self._by_name: dict[str, Parameter | None] = {}
        self._rest: Parameter | None = None
        self._rest_by_name: Parameter | None = None
        for param in params:
            read = read_parameter(param.name, hints.get(param.name, _EMPTY), param.default)
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
        """Prepare the data that ``accepts`` needs."""
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
        """Raise ``ConfigError`` unless the handler accepts these arguments and can decode them.

        ``as_read`` returns a value as the worker reads it. With it, values that would arrive as another type
        are refused too. In a ``step``, ``RESULT`` is accepted for every parameter.
        """
        if not self.accepts(args, kwargs):
            raise self._refusal(task, args, kwargs)
        for place, value in enumerate(args):
            if (type(value) not in PLAIN or self._typed_args) and not (step and value is RESULT):
                self._check_one(task, self._at(place), self._name_at(place), value, as_read)
        for name, value in kwargs.items():
            if (type(value) not in PLAIN or self._typed_kwargs) and not (step and value is RESULT):
                param = self._by_name.get(name, self._rest_by_name)
                self._check_one(task, param, name, value, as_read)

    def _check_one(
        self, task: str, param: Parameter | None, name: str, value: Any, as_read: Convert | None
    ) -> None:
        if value is RESULT:
            raise ConfigError(
                f"argument {name!r} of task {task!r}",
                message=f"argument {name!r} of task {task!r} is RESULT, which only a step of a flow can "
                "take: task.s(RESULT)",
            )
        if param is not None and type(value) is not param.exact:
            check_value(task, param, name, value)
        if as_read is not None and (param is None or param.open) and type(value) not in PLAIN:
            check_kept(task, param, name, value, as_read)

    def _name_at(self, place: int) -> str:
        return self._places[min(place, len(self._places) - 1)]

    def accepts(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the handler can be called with these arguments, by their number and names."""
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
        why, advice = "it cannot be called with these arguments", ""
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as exc:
            why = str(exc)
        options = [name for name in kwargs if name in OPTION_NAMES and name not in self.parameters]
        if options:
            given = ", ".join(f"{name}={Excerpt(kwargs[name])!r}" for name in options)
            advice = f"; job options go first: .options({given}).enqueue(...)"
        return ConfigError(
            f"arguments of task {task!r}",
            message=f"task {task!r}: {why} (signature: {self.name}{self._signature}){advice}",
        )

    # --- in the worker -----------------------------------------------------------------------------

    def decode(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Convert stored arguments to the annotated types. The given containers are not changed.

        Raises ``ArgumentError`` for a value that does not match. Unexpected arguments are kept; the call
        raises for them.
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

    def _decode_value(self, param: Parameter, name: str, value: Any) -> Any:
        try:
            return param.convert(value)
        except REFUSALS as exc:
            came = f"{type(value).__name__} {Excerpt(value)!r}"
            raise ArgumentError(
                f"argument {name!r} of task {self.name!r} must be {param.want}, got {came} ({detail(exc)})",
                name,
            ) from None

    def _at(self, place: int) -> Parameter | None:
        return self._positional[place] if place < len(self._positional) else self._rest

    # --- for callers -------------------------------------------------------------------------------

    def decode_result(self, value: Any) -> Any:
        """Convert a stored result to the annotated return type. Raises ``ResultError``."""
        if self._result is None:
            return value
        try:
            return self._result(value)
        except REFUSALS as exc:
            want = describe(self.result_type)
            raise ResultError(
                f"the result of task {self.name!r} is not {want} as annotated ({detail(exc)})"
            ) from None
