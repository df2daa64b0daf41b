"""Dependencies of a task: parameters that the worker provides and that no producer passes.

    async def connection() -> AsyncIterator[Connection]:
        async with pool.acquire() as found:
            yield found

    @app.task
    async def charge(order: int, db: Connection = Depends(connection)) -> None: ...

``db: Annotated[Connection, Depends(connection)] = INJECTED`` says the same (without the default, type
checkers want producers to pass it). A dependency is a function, an async function, a generator or an async
generator that yields once (what follows the ``yield`` runs when the job is over, last opened first). It may
have dependencies itself; each is made once per run. Plain functions run on the worker's loop: they must be
quick.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Annotated, Any, TypeVar, get_args, get_origin, overload

from windlass.errors import ConfigError
from windlass.handlers.hints import type_hints

T = TypeVar("T")
Invoke = Callable[[list[Any], dict[str, Any]], Awaitable[Any]]


class InjectedParameter:
    """The mark of a parameter that the worker fills."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        if not callable(make):
            raise ConfigError("Depends", "given a function that makes the value", make)
        self.make: Callable[..., Any] = make

    def __repr__(self) -> str:
        return f"Depends({getattr(self.make, '__qualname__', self.make)})"


class _Injected:
    """What replaces a parameter that the worker fills."""

    def __repr__(self) -> str:
        return "INJECTED"


#: The default of a parameter that is ``Annotated[T, Depends(...)]``. It shows type checkers that producers
#: leave the parameter out, which they cannot read from the annotation.
INJECTED: Any = _Injected()


@overload
def Depends(make: Callable[..., AsyncGenerator[T, Any] | AsyncIterator[T]]) -> T: ...
@overload
def Depends(make: Callable[..., Generator[T, Any, Any] | Iterator[T]]) -> T: ...
@overload
def Depends(make: Callable[..., Coroutine[Any, Any, T]]) -> T: ...
@overload
def Depends(make: Callable[..., T]) -> T: ...
def Depends(make: Callable[..., Any]) -> Any:
    """A parameter's default (or annotation) that says: call ``make`` in the worker, pass what it gives."""
    return InjectedParameter(make)


class InjectedParameters:
    """The dependencies of one function, read once."""

    def __init__(
        self,
        found: dict[str, InjectedParameter],
        inner: dict[Callable[..., Any], InjectedParameters],
        places: dict[str, int],
    ) -> None:
        self.names: frozenset[str] = frozenset(found)
        self._found = found
        self._inner = inner
        #: The positions of dependencies that precede parameters of the job, which keep their own positions.
        self._places = places

    @classmethod
    def of(cls, fn: Callable[..., Any], _above: tuple[Any, ...] = ()) -> InjectedParameters | None:
        """What ``fn`` needs; None when that is nothing. ``ConfigError`` for a circle."""
        if fn in _above:
            raise ConfigError("Depends", "free of circles", fn)
        found = _marks(fn)
        if not found:
            return None
        inner = {}
        for dependency in found.values():
            needs = cls.of(dependency.make, (*_above, fn))
            if needs is not None:
                inner[dependency.make] = needs
        order = list(inspect.signature(fn).parameters)
        return cls(found, inner, {name: order.index(name) for name in found})

    async def call(self, invoke: Invoke, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """``invoke`` with the dependencies beside the job's own arguments; closes them afterwards."""
        async with AsyncExitStack() as stack:
            return await invoke(*self.merged(args, kwargs, await self.open(stack)))

    def merged(
        self, args: list[Any], kwargs: dict[str, Any], values: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """The job's arguments and the dependencies, each at its place."""
        args, kwargs = list(args), {**kwargs, **values}
        for name, place in self._places.items():
            if place < len(args):
                args.insert(place, kwargs.pop(name))
        return args, kwargs

    async def open(self, stack: AsyncExitStack) -> dict[str, Any]:
        """Make every dependency; ``stack`` closes them."""
        return await self._values(stack, {})

    async def _values(self, stack: AsyncExitStack, made: dict[Callable[..., Any], Any]) -> dict[str, Any]:
        values = {}
        for name, dependency in self._found.items():
            make = dependency.make
            if make not in made:
                needs = self._inner.get(make)
                given = {} if needs is None else await needs._values(stack, made)
                made[make] = await _made(stack, make, given)
            values[name] = made[make]
        return values


async def _made(stack: AsyncExitStack, make: Callable[..., Any], given: dict[str, Any]) -> Any:
    if inspect.isasyncgenfunction(make):
        return await stack.enter_async_context(asynccontextmanager(make)(**given))
    if inspect.isgeneratorfunction(make):
        return stack.enter_context(contextmanager(make)(**given))
    value = make(**given)
    return await value if inspect.isawaitable(value) else value


def _marks(fn: Callable[..., Any]) -> dict[str, InjectedParameter]:
    """The marked parameters of ``fn``, by name."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return {}  # built in: it has no marks
    found: dict[str, InjectedParameter] = {}
    hints: dict[str, Any] | None = None
    for name, parameter in parameters.items():
        if isinstance(parameter.default, InjectedParameter):
            found[name] = parameter.default
            continue
        if parameter.annotation is parameter.empty:
            continue
        hints = type_hints(fn) if hints is None else hints
        hint = hints.get(name)
        if get_origin(hint) is Annotated:
            marks = [mark for mark in get_args(hint)[1:] if isinstance(mark, InjectedParameter)]
            if marks:
                found[name] = marks[0]
    for name in found:
        if parameters[name].kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigError(f"parameter {name!r}", "passed by name, to be filled by the worker")
    return found
