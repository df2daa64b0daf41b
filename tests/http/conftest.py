"""The stores that the API is tested on. A further one is one more line of ``STORES``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.backends.amqp.servers import make_harness as make_amqp
from tests.backends.harnesses import HARNESSES
from tests.backends.harnesses import make_harness as make_local
from tests.backends.valkey.servers import make_harness as make_valkey
from tests.http.security_support import JOB
from tests.http.support import Shop, api
from windlass import Windlass
from windlass_conformance import Harness
from windlass_conformance.stage import Stage

#: By name: how to make a store for one test, and the service that it needs.
STORES: dict[str, tuple[Callable[[Path], Harness], str | None]] = {
    **{name: (partial(make_local, name), None) for name in HARNESSES},
    "valkey": (lambda folder: make_valkey("valkey"), "valkey"),
    "redis": (lambda folder: make_valkey("redis"), "valkey"),
    "cluster": (lambda folder: make_valkey("cluster"), "valkey"),
    "amqp": (lambda folder: make_amqp(), "rabbitmq"),
}
#: Other deployments of a store in the list: the contract of the job-queue routes runs on them as well,
#: and what proves these rows.
ALIKE = ("redis", "cluster")
EVERYWHERE = frozenset({"O14", "O15", "O16", "O17", "O18"})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every test of a store runs on all of them."""
    if "harness" in metafunc.fixturenames:
        proved = {row for mark in metafunc.definition.iter_markers("feature") for row in mark.args}
        whole = metafunc.module.__name__.endswith("test_contract") or bool(proved & EVERYWHERE)
        names = [name for name in STORES if whole or name not in ALIKE]
        metafunc.parametrize("harness", [_parameter(name) for name in names], indirect=True)


def _parameter(name: str) -> Any:
    service = STORES[name][1]
    return pytest.param(name, marks=[pytest.mark.service(service)] if service is not None else [])


@pytest.fixture
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, declare_missing: Callable[..., None]
) -> AsyncIterator[Harness]:
    """A fresh store of each backend."""
    async with STORES[request.param][0](tmp_path) as started:
        started.on_missing = declare_missing
        yield started


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    """An app with one job that is due later."""
    async with Windlass(f"memory://http-{id(object())}") as app:
        await app.queue("mail").add("send", JOB["data"], job_id="one", delay=100)
        yield app


@pytest.fixture
async def stage(harness: Harness) -> AsyncIterator[Stage]:
    """An application on that store, under a clock that the test drives."""
    async with Stage(harness) as stage:
        yield stage


@pytest.fixture
async def shop(stage: Stage) -> Shop:
    """Jobs in many states."""
    return await Shop(stage).fill()


@pytest.fixture
async def client(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    """A client of its API."""
    async with api(stage.app) as client:
        yield client
