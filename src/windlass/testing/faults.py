"""Injects faults at named points, in a repeatable way.

In this process::

    with probing() as probe:
        probe.arm("worker.claimed", lose_reply)
        ...
        assert probe.count("worker.claimed") == 1

In child processes, through ``$WINDLASS_PROBES``: ``point=action``, separated by commas, each optionally with
``@n`` for the n-th time the point is reached (by default the first) and ``:argument``::

    WINDLASS_PROBES="worker.claimed=kill@3,sqlite.committed=stop,worker.claimed=touch:/tmp/claimed"

Actions: ``kill`` (SIGKILL), ``stop`` (SIGSTOP), ``lose`` (``StorageError``: a lost reply), ``block:PATH``
(until the file appears), ``touch:PATH``.

Around a backend: ``FaultyBackend`` loses replies, refuses, delays or never answers requests of a type.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from windlass.core.probe import Action, Probe, install
from windlass.errors import ConfigError, StorageError
from windlass.testing.wrapper import BackendWrapper

if TYPE_CHECKING:
    from windlass.backend import Backend
    from windlass.backend.requests import Request

ENVIRONMENT_VARIABLE = "WINDLASS_PROBES"
R = TypeVar("R")


@contextmanager
def probing(probe: Probe | None = None) -> Iterator[Probe]:
    """Install a probe in this process for the duration of the block."""
    probe = probe or Probe()
    before = install(probe)
    try:
        yield probe
    finally:
        install(before)


# --- actions --------------------------------------------------------------------------------------


def kill(point: str, facts: dict[str, Any]) -> None:
    """Kill this process, like a power loss."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop(point: str, facts: dict[str, Any]) -> None:
    """Freeze this process at this point until it receives SIGCONT.

    The signal is sent to this thread. If another thread received it, this one would run on.
    """
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def lose_reply(point: str, facts: dict[str, Any]) -> None:
    """Raise the error of a lost reply."""
    raise StorageError(f"the reply was lost at {point} (injected)")


def block_until(path: str | os.PathLike[str], timeout: float = 60) -> Action:
    """An action that blocks its thread until ``path`` exists."""

    def block(point: str, facts: dict[str, Any]) -> None:
        give_up = time.monotonic() + timeout
        while not Path(path).exists():
            if time.monotonic() > give_up:
                raise TimeoutError(f"{path} did not appear within {timeout:g} s")
            time.sleep(0.002)

    return block


def touch(path: str | os.PathLike[str]) -> Action:
    """An action that creates ``path``, to show another process how far this one has come."""

    def mark(point: str, facts: dict[str, Any]) -> None:
        Path(path).touch()

    return mark


def _ignore(point: str, facts: dict[str, Any]) -> None:
    """Does nothing. Used for the first times that a point is reached."""


def _nothing_more(argument: str, action: Action) -> Action:
    if argument:
        raise ConfigError(
            ENVIRONMENT_VARIABLE,
            message=f"{ENVIRONMENT_VARIABLE}: this action takes no argument, got {argument!r}",
            got=argument,
        )
    return action


def _with_path(argument: str, action: Callable[[str], Action]) -> Action:
    if not argument:
        raise ConfigError(
            ENVIRONMENT_VARIABLE,
            message=f"{ENVIRONMENT_VARIABLE}: this action needs a path, like touch:/tmp/file",
        )
    return action(argument)


_ACTIONS: dict[str, Callable[[str], Action]] = {
    "kill": lambda argument: _nothing_more(argument, kill),
    "stop": lambda argument: _nothing_more(argument, stop),
    "lose": lambda argument: _nothing_more(argument, lose_reply),
    "block": lambda argument: _with_path(argument, block_until),
    "touch": lambda argument: _with_path(argument, touch),
}


# --- the environment ------------------------------------------------------------------------------


def install_from_environment() -> Probe | None:
    """Install the probe that ``$WINDLASS_PROBES`` describes; None if it is not set."""
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not text.strip():
        return None
    probe = parse_probes(text)
    install(probe)
    return probe


def parse_probes(text: str) -> Probe:
    """Parse a probe (see the module docstring). Raises ``ConfigError``."""
    plans: dict[str, dict[int, list[Action]]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        point, nth, action = _parse_item(item)
        plans.setdefault(point, {}).setdefault(nth, []).append(action)
    probe = Probe()
    for point, plan in plans.items():
        for nth in range(1, max(plan) + 1):
            probe.arm(point, _all_of(plan.get(nth, [_ignore])))
    return probe


#: The largest n in ``@n``.
_MOST_TIMES = 100_000


def _parse_item(item: str) -> tuple[str, int, Action]:
    point, equals, rest = item.partition("=")
    word, at, count = rest.rpartition("@")
    if not at or not count.isdecimal():
        word, count = rest, "1"
    name, _, argument = word.partition(":")
    counts = len(count) <= 6 and 1 <= int(count) <= _MOST_TIMES
    if not equals or not point or name not in _ACTIONS or not counts:
        raise ConfigError(ENVIRONMENT_VARIABLE, f"point={'|'.join(_ACTIONS)}[:argument][@n], ...", item)
    return point.strip(), int(count), _ACTIONS[name](argument)


def _all_of(actions: list[Action]) -> Action:
    def run(point: str, facts: dict[str, Any]) -> None:
        for action in actions:
            action(point, facts)

    return run


# --- a backend with faults ------------------------------------------------------------------------


class _Fault:
    """A fault for some requests of one type."""

    def __init__(self, request: type[Any], kind: str, skip: int, times: int) -> None:
        self.request = request
        self.kind = kind
        self.skip = skip
        self.times = times
        self.until: asyncio.Event | None = None


class _Plan:
    """The faults that a backend and its clones share."""

    def __init__(self) -> None:
        self.faults: list[_Fault] = []
        self.sent: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def take(self, request: Request[Any], kinds: tuple[str, ...]) -> _Fault | None:
        """The fault for ``request``, if any. Reduces its remaining count by one."""
        for fault in self.faults:
            if fault.kind not in kinds or not isinstance(request, fault.request):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self.faults.remove(fault)
            return fault
        return None


class FaultyBackend(BackendWrapper):
    """A backend around ``inner`` that loses replies, refuses, delays or hangs requests when asked to.

    ``sent`` counts requests by type name, ``failed`` those that failed because of a fault.
    """

    def __init__(self, inner: Backend, plan: _Plan | None = None) -> None:
        super().__init__(inner)
        self._plan = plan or _Plan()

    @property
    def sent(self) -> Counter[str]:
        return self._plan.sent

    @property
    def failed(self) -> Counter[str]:
        return self._plan.failed

    def lose_reply(self, request: type[Any], times: int = 1, *, skip: int = 0) -> None:
        """Execute the next ``times`` requests of that type (after ``skip`` of them), then raise
        ``StorageError``: the store has done it, but the caller does not know."""
        self._plan.faults.append(_Fault(request, "lose", skip, times))

    def refuse(self, request: type[Any], times: int = 1, *, skip: int = 0) -> None:
        """Raise ``StorageError`` instead of executing the next ``times`` requests of that type."""
        self._plan.faults.append(_Fault(request, "refuse", skip, times))

    def delay(self, request: type[Any], until: asyncio.Event, times: int = 1, *, skip: int = 0) -> None:
        """Delay the next ``times`` requests of that type until the event is set."""
        fault = _Fault(request, "delay", skip, times)
        fault.until = until
        self._plan.faults.append(fault)

    def hang(self, request: type[Any], times: int = 1, *, skip: int = 0) -> None:
        """Neither execute nor answer the next ``times`` requests of that type, like a frozen server."""
        self._plan.faults.append(_Fault(request, "hang", skip, times))

    def crash(self, request: type[Any], times: int = 1, *, skip: int = 0) -> None:
        """Raise ``RuntimeError``, which no backend should, for the next ``times`` requests of that type."""
        self._plan.faults.append(_Fault(request, "crash", skip, times))

    def heal(self) -> None:
        """Remove all faults. Requests that hang keep hanging."""
        self._plan.faults.clear()

    async def execute(self, request: Request[R]) -> R:
        plan, kind = self._plan, type(request).__name__
        plan.sent[kind] += 1
        fault = plan.take(request, ("delay",))
        if fault is not None and fault.until is not None:
            await fault.until.wait()
        fault = plan.take(request, ("hang", "crash"))
        if fault is not None and fault.kind == "hang":
            await asyncio.Event().wait()
        if fault is not None:
            plan.failed[kind] += 1
            raise RuntimeError(f"{kind} crashed (injected)")
        fault = plan.take(request, ("refuse", "lose"))
        if fault is not None and fault.kind == "refuse":
            plan.failed[kind] += 1
            raise StorageError(f"{kind} was refused (injected)")
        answer = await self.inner.execute(request)
        if fault is not None:
            plan.failed[kind] += 1
            raise StorageError(f"the reply to {kind} was lost (injected)")
        return answer

    def clone(self) -> Backend:
        return FaultyBackend(self.inner.clone(), self._plan)
