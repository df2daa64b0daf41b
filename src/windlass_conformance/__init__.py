"""The suite that every backend passes, ours and yours.

Level one (``contract_*``) drives the verbs of ``windlass.backend.requests``; level two (``behaviour_*``)
drives queues and workers. Every test is a coroutine function that takes a ``harness``. To run the suite on
a backend of your own, with pytest and any plugin that runs coroutine tests (anyio's, in its auto mode):

.. code-block:: python

    # conftest.py
    pytest_plugins = ["windlass_conformance.plugin"]

    # test_conformance.py
    import pytest
    from windlass.backend.urls import register_scheme
    from windlass_conformance import UrlHarness, all_tests

    register_scheme("mystore", "mypackage.backend")

    @pytest.fixture(params=["mystore"])
    async def harness(request):
        async with UrlHarness("mystore", "mystore://localhost") as harness:
            yield harness

    globals().update(all_tests())

Each test gets a namespace of its own, so nothing needs to be flushed. A store that no URL opens gets its
own subclass of ``Harness`` with one method, ``connect``. For a capability that the backend does not declare,
its refusal is asserted instead.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import pkgutil
from typing import TYPE_CHECKING, Any

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{info.name}" for info in pkgutil.iter_modules(__path__)))

from windlass_conformance.harness import Harness, UrlHarness  # noqa: E402 (asserts rewritten first)
from windlass_conformance.needs import capability_of, refuses  # noqa: E402 (the same)

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds that one test may take, whatever the machine does besides.
LIMIT = 40

__all__ = ["Harness", "UrlHarness", "all_tests", "behaviour_tests", "clock_tests", "contract_tests"]


def contract_tests() -> dict[str, Callable[..., Any]]:
    """Level one, by name: what each verb does."""
    return _collect("contract_")


def behaviour_tests() -> dict[str, Callable[..., Any]]:
    """Level two, by name: what users of queues and workers see."""
    return _collect("behaviour_")


def clock_tests() -> dict[str, Callable[..., Any]]:
    """What happens when the machine's clock was ahead, by name: for stores whose clock is the machine's."""
    return _collect("clock_")


def all_tests() -> dict[str, Callable[..., Any]]:
    """Both levels, which every backend passes."""
    return contract_tests() | behaviour_tests()


def _collect(prefix: str) -> dict[str, Callable[..., Any]]:
    found: dict[str, Callable[..., Any]] = {}
    for info in pkgutil.iter_modules(__path__):
        if not info.name.startswith(prefix):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        for name, value in vars(module).items():
            if name.startswith("test_") and inspect.isfunction(value):
                if name in found:
                    raise RuntimeError(f"two conformance tests are named {name}")
                found[name] = _limited(value, capability_of(value, module))
    return found


def _limited(test: Callable[..., Any], capability: str | None) -> Callable[..., Any]:
    """``test`` with a limit of its own: one that hangs fails, and takes nothing else down with it.

    Where the backend declares ``capability`` missing, its refusal is asserted instead.
    """

    @functools.wraps(test)
    async def run(harness: Harness, **kwargs: Any) -> None:
        async with asyncio.timeout(LIMIT):
            if capability is None or getattr(harness.backend.capabilities, capability):
                await test(harness, **kwargs)
            else:
                harness.declare_missing(test, capability)
                await refuses(harness, capability)

    return run
