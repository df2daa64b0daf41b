"""The conformance suite that every backend passes.

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

Each test gets its own namespace, so nothing needs to be flushed. For a store that has no URL, write a
subclass of ``Harness`` with one method, ``connect``. If the backend does not declare a capability, its tests
assert that requests for it are refused.
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

#: The most seconds that one test may take, also on a busy machine.
LIMIT = 40

__all__ = ["Harness", "UrlHarness", "all_tests", "behaviour_tests", "clock_tests", "contract_tests"]


def contract_tests() -> dict[str, Callable[..., Any]]:
    """The tests of level one by name: what each verb does."""
    return _collect("contract_")


def behaviour_tests() -> dict[str, Callable[..., Any]]:
    """The tests of level two by name: what users of queues and workers see."""
    return _collect("behaviour_")


def clock_tests() -> dict[str, Callable[..., Any]]:
    """Tests of a machine whose clock was ahead, by name. For stores that use the clock of the machine."""
    return _collect("clock_")


def all_tests() -> dict[str, Callable[..., Any]]:
    """The tests of both levels by name."""
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
    """``test`` with a timeout, so that a test that hangs does not stop the others.

    If the backend does not declare ``capability``, the wrapper asserts that it is refused.
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
