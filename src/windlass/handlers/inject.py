"""Dependencies of a task: parameters that the worker provides and that no producer passes.

    async def connection() -> AsyncIterator[Connection]:
        async with pool.acquire() as found:
            yield found

    @app.task
    async def charge(order: int, db: Connection = Depends(connection)) -> None: ...

``db: Annotated[Connection, Depends(connection)] = INJECTED`` is equivalent. Without the default, type
checkers require producers to pass it. A dependency is a function, an async function, a generator or an async
generator that yields once. Code after the ``yield`` runs when the job has ended, in reverse order. A
dependency may have dependencies itself; each is created once per run. Plain functions run on the worker's
loop, so they must be fast.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Annotated, Any, TypeVar, get_args, get_origin, overload

from windlass.errors import ConfigError, shown
from windlass.handlers.hints import accepts, type_hints

T = TypeVar("T")
Invoke = Callable[[list[Any], dict[str, Any]], Awaitable[Any]]


class InjectedParameter:
    """Marks a parameter that the worker fills."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        if not callable(make):
            raise ConfigError(
                "Depends",
                message=f"Depends needs a function that makes the value, got {shown(make)}",
                got=make,
            )
        self.make: Callable[..., Any] = make

    def __repr__(self) -> str:
        return f"Depends({getattr(self.make, '__qualname__', self.make)})"


class _Injected:
    """The type of ``INJECTED``."""

    def __repr__(self) -> str:
        return "INJECTED"


#: The default of a parameter that is ``Annotated[T, Depends(...)]``, so that type checkers allow producers to
#: omit it.
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
    """Mark a parameter, as default or annotation: the worker calls ``make`` and passes its value."""
    return InjectedParameter(make)


class InjectedParameters:
    """The dependencies of one function."""

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
        """Return the dependencies of ``fn``; None without any. Raises ``ConfigError`` for a cycle."""
        if fn in _above:
            circle = (*_above[_above.index(fn) :], fn)
            raise ConfigError(
                "Depends", message=f"dependencies form a cycle: {' -> '.join(map(_name, circle))}", got=fn
            )
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
        """Call ``invoke`` with the job's arguments and the dependencies; close those afterwards."""
        async with AsyncExitStack() as stack:
            return await invoke(*self.merged(args, kwargs, await self.open(stack)))

    def merged(
        self, args: list[Any], kwargs: dict[str, Any], values: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the job's arguments together with the dependencies, in the order of the parameters."""
        args, kwargs = list(args), {**kwargs, **values}
        for name, place in self._places.items():
            if place < len(args):
                args.insert(place, kwargs.pop(name))
        return args, kwargs

    async def open(self, stack: AsyncExitStack) -> dict[str, Any]:
        """Create every dependency. ``stack`` closes them."""
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


def takes_one(fn: Callable[..., Any], needs: InjectedParameters | None) -> bool:
    """Whether ``fn`` can be called with one argument and its dependencies."""
    args, kwargs = ([None], {}) if needs is None else needs.merged([None], {}, dict.fromkeys(needs.names))
    return accepts(fn, *args, **kwargs)


async def _made(stack: AsyncExitStack, make: Callable[..., Any], given: dict[str, Any]) -> Any:
    if inspect.isasyncgenfunction(make):
        return await stack.enter_async_context(asynccontextmanager(make)(**given))
    if inspect.isgeneratorfunction(make):
        return stack.enter_context(contextmanager(make)(**given))
    value = make(**given)
    return await value if inspect.isawaitable(value) else value


def _name(fn: object) -> str:
    return str(getattr(fn, "__qualname__", fn))


def _marks(fn: Callable[..., Any]) -> dict[str, InjectedParameter]:
    """Return the marked parameters of ``fn``, by name."""
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return {}  # a built-in function has no marks
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
            raise ConfigError(
                f"parameter {name!r}",
                message=f"parameter {name!r} of {_name(fn)} is filled by the worker and cannot be "
                "positional-only",
            )
    return found
