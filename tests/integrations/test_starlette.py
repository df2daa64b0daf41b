"""The lifespan and the dependencies, on real Starlette and FastAPI applications."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi import WebSocket as FastAPIWebSocket
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from windlass import ConfigError, StorageError, Windlass
from windlass.contrib.fastapi import Jobs, queue
from windlass.contrib.starlette import get_windlass, lifespan


@pytest.fixture
def jobs(tmp_path: Path) -> Windlass:
    app = Windlass(f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task(name="double", queue="sums")
    async def double(value: int) -> int:
        return 2 * value

    return app


async def double(request: Request) -> JSONResponse:
    found = await get_windlass(request).queue("sums").add_and_wait("double", [21], timeout=20)
    return JSONResponse({"answer": found, "colour": getattr(request.state, "colour", None)})


def site(manager: Any) -> Starlette:
    return Starlette(routes=[Route("/double", double)], lifespan=manager)


@pytest.mark.feature("Y4")
def test_a_server_can_run_its_own_jobs(jobs: Windlass) -> None:
    with TestClient(site(lifespan(jobs, worker={"concurrency": 2}))) as client:
        assert client.get("/double").json() == {"answer": 42, "colour": None}


def test_a_lifespan_of_ones_own_goes_inside(jobs: Windlass) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def inner(asgi: Any) -> AsyncIterator[Mapping[str, Any]]:
        seen.append(f"open with {asgi.state.windlass.url == jobs.url}")
        yield {"colour": "red"}
        seen.append("closed")

    with TestClient(site(lifespan(jobs, worker=True, inner=inner))) as client:
        assert client.get("/double").json() == {"answer": 42, "colour": "red"}
    assert seen == ["open with True", "closed"]


def test_a_store_that_cannot_be_opened_stops_the_start(tmp_path: Path) -> None:
    jobs = Windlass(f"sqlite:///{tmp_path}")  # a folder
    with pytest.raises(StorageError), TestClient(site(lifespan(jobs))):
        raise AssertionError("it started")


def test_a_worker_without_queues_is_refused(tmp_path: Path) -> None:
    empty = Windlass(f"sqlite:///{tmp_path / 'jobs.db'}")
    with (
        pytest.raises(ConfigError, match="the app has no tasks, so name the queues of the worker"),
        TestClient(site(lifespan(empty, worker=True))),
    ):
        raise AssertionError("it started")


def test_without_the_lifespan_the_error_says_what_is_missing() -> None:
    client = TestClient(site(None))
    with pytest.raises(
        ConfigError, match=r"has no Windlass app: give it windlass\.contrib\.starlette\.lifespan"
    ):
        client.get("/double")


def test_a_web_socket_has_the_dependency_too(jobs: Windlass) -> None:
    api = FastAPI(lifespan=lifespan(jobs))

    @api.websocket("/watch")
    async def watch(socket: FastAPIWebSocket, jobs: Jobs) -> None:
        await socket.accept()
        await socket.send_json(await jobs.queue("sums").count())
        await socket.close()

    with TestClient(api) as client, client.websocket_connect("/watch") as socket:
        assert socket.receive_json() == 0


def test_a_dependency_on_a_bad_queue_name_is_refused_at_import() -> None:
    with pytest.raises(ConfigError, match="queue must be"):
        queue("no spaces")


def test_a_server_that_starts_again_in_the_same_process_uses_the_same_app(jobs: Windlass) -> None:
    web = site(lifespan(jobs, worker=True))
    for _ in range(2):
        with TestClient(web) as client:
            assert client.get("/double").json() == {"answer": 42, "colour": None}
