"""Live updates over a real server: figures, events of a queue, one job's life; and what they cost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from tests.http.support import OPERATOR
from windlass import Windlass, Worker
from windlass.backend import requests as rq
from windlass.backends.memory import MemoryBackend
from windlass.core.ids import new_id
from windlass.core.job import WorkerInfo
from windlass.dashboard import Identity, ServerLimits, create_app, identity
from windlass.dashboard.guard import Guard
from windlass.dashboard.routes import export
from windlass.dashboard.routes.live import new_lines
from windlass_conformance import Harness
from windlass_conformance.stage import live

backend_name = "memory"
HEADERS = {"Authorization": f"Bearer {OPERATOR}"}


class Server(uvicorn.Server):
    """Tells when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@asynccontextmanager
async def serving(guard: Guard) -> AsyncIterator[httpx.AsyncClient]:
    """A real server on a free port, and a client of it."""
    config = uvicorn.Config(guard, host="127.0.0.1", port=0, log_level="error", timeout_graceful_shutdown=1)
    server = Server(config)
    running = asyncio.ensure_future(server._serve())
    await server.is_up.wait()
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", headers=HEADERS, timeout=20
        ) as client:
            yield client
    finally:
        server.should_exit = True
        await running


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass(f"memory://live?namespace={new_id()}") as app:
        yield app


@pytest.fixture
async def client(app: Windlass) -> AsyncIterator[httpx.AsyncClient]:
    limits = ServerLimits(streams_per_client=2)
    async with serving(create_app(app, operator_tokens=OPERATOR, limits=limits)) as client:
        yield client


class Events:
    """Server-sent events as they come."""

    def __init__(self, answer: httpx.Response) -> None:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        self._lines = answer.aiter_lines()

    async def next(self, *names: str) -> tuple[str, Any, str | None]:
        """The next event of one of these names: name, data, id."""
        name, data, number = "", None, None
        async with asyncio.timeout(20):
            async for line in self._lines:
                field, _, value = line.partition(": ")
                if field == "event":
                    name = value
                elif field == "id":
                    number = value
                elif field == "data":
                    data = json.loads(value)
                elif not line and name:
                    if not names or name in names:
                        return name, data, number
                    name, data, number = "", None, None
        raise AssertionError("the stream ended")


@asynccontextmanager
async def stream(client: httpx.AsyncClient, path: str, **headers: str) -> AsyncIterator[Events]:
    async with client.stream("GET", path, headers=headers) as answer:
        yield Events(answer)


async def test_a_stream_ends_with_the_session_of_its_caller(client: httpx.AsyncClient) -> None:
    csrf = {"X-Windlass-CSRF": "1"}
    signed_in = await client.post("/api/session", json={"token": OPERATOR}, headers=csrf)
    cookie = {"Cookie": signed_in.headers["set-cookie"].partition(";")[0]}
    async with httpx.AsyncClient(base_url=client.base_url, headers={**csrf, **cookie}, timeout=20) as browser:
        async with browser.stream("GET", "/api/live") as answer:
            lines = answer.aiter_lines()
            async for line in lines:
                if line.startswith("data: "):
                    break
            assert (await browser.delete("/api/session")).status_code == 204
            async with asyncio.timeout(20):
                rest = [line async for line in lines if line.startswith("data: ")]
    assert len(rest) <= 1, "at most the tick that was on its way"


async def test_an_export_whose_user_is_refused_breaks_off(
    app: Windlass, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "_ASK_AGAIN_MS", 0)
    monkeypatch.setattr(export, "_STEP", 1)
    await app.queue("mail").add_bulk([{"name": "send"}] * 3)
    ada = Identity("ada", "reader")
    answers = [ada, ada, None]
    async with serving(create_app(app, auth=lambda scope: answers.pop(0))) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/api/v1/jobs/export")
    assert answers == []


@pytest.mark.parametrize("path", ["/api/live", "/api/v1/jobs/export", "/api/job-queues/mail/events"])
async def test_streams_that_end_before_they_begin_take_no_place(client: httpx.AsyncClient, path: str) -> None:
    for _ in range(5):
        assert (await client.head(path)).status_code == 200
    async with stream(client, "/api/live") as events:
        await events.next("tick")


async def test_streams_of_one_user_take_no_place_from_another_at_the_same_address(app: Windlass) -> None:
    users = {"ada": "ada-random-text-of-22-characters", "bob": "bob-random-text-of-22-characters"}
    guard = create_app(app, reader_tokens=users, limits=ServerLimits(streams_per_client=1))
    async with serving(guard) as client:
        ada, bob = ({"Authorization": f"Bearer {token}"} for token in users.values())
        async with stream(client, "/api/live", **ada) as events:
            await events.next("tick")
            assert (await client.get("/api/live", headers=ada)).status_code == 429
            async with stream(client, "/api/live", **bob) as others:
                await others.next("tick")


@pytest.mark.feature("P17", "O17")
async def test_figures_come_by_themselves(app: Windlass, client: httpx.AsyncClient) -> None:
    async with stream(client, "/api/live") as events:
        _, first, _ = await events.next("tick")
        assert first["queues"] == []
        await app.queue("mail").add_bulk([{"name": "send"}] * 5)
        while True:
            _, tick, _ = await events.next("tick")
            if tick["counts"]["waiting"]:
                break
        assert (tick["counts"]["waiting"], tick["queues"][0]["size"]) == (5, 5)


@pytest.mark.feature("P17")
async def test_figures_tell_only_of_queues_that_changed(app: Windlass, client: httpx.AsyncClient) -> None:
    await app.queue("mail").add("send", delay=60)
    await app.queue("films").add("render", delay=60)
    async with stream(client, "/api/live?changes=true") as events:
        _, first, _ = await events.next("tick")
        assert [queue["name"] for queue in first["queues"]] == first["names"] == ["films", "mail"]
        await app.queue("mail").add("send", delay=60)
        _, tick, _ = await events.next("tick")
        while not tick["queues"]:
            _, tick, _ = await events.next("tick")
        assert [(queue["name"], queue["counts"]["scheduled"]) for queue in tick["queues"]] == [("mail", 2)]
        assert not tick["names"], "no queue came or went"
        await app.queue("post").add("send", delay=60)
        _, last, _ = await events.next("tick")
        while not last["names"]:
            _, last, _ = await events.next("tick")
        assert last["names"] == ["films", "mail", "post"]
        assert [queue["name"] for queue in last["queues"]] == ["post"]


@pytest.mark.feature("P7", "P17")
async def test_figures_hold_what_each_worker_uses_when_that_changed(
    app: Windlass, client: httpx.AsyncClient
) -> None:
    async def beat(name: str, busy: int) -> None:
        info = WorkerInfo(id=name, queues=("mail",), concurrency=4, busy=busy, rss_kb=1_000, cpu_percent=12.5)
        await app.store.execute(rq.Beat(worker=info))

    await app.queue("mail").add("send", delay=60)
    await beat("one", 1)
    await beat("two", 2)
    async with stream(client, "/api/live?changes=true") as events:
        _, first, _ = await events.next("tick")
        assert first["worker_ids"] == ["one", "two"]
        assert first["workers"][0] == {"id": "one", "busy": 1, "rss_kb": 1_000, "cpu_percent": 12.5}
        await beat("two", 3)
        _, tick, _ = await events.next("tick")
        while not tick["workers"]:
            _, tick, _ = await events.next("tick")
        assert [(one["id"], one["busy"]) for one in tick["workers"]] == [("two", 3)]
        assert not tick["worker_ids"]


@pytest.mark.feature("P10", "P17")
async def test_a_running_job_tells_what_it_puts_out(app: Windlass, client: httpx.AsyncClient) -> None:
    go = asyncio.Event()

    async def speak(job: Any) -> None:
        await job.stream("first", {"part": 2, "password": "hunter2"})
        await go.wait()
        await job.stream("last", "x" * 10_000)

    job = await app.queue("mail").add("speak")
    worker = Worker(["mail"], url_or_app=app)
    worker.register("speak", speak)
    async with worker, stream(client, f"/api/jobs/mail/{job.id}/events") as events:
        _, told, _ = await events.next("output")
        chunks = told["chunks"]
        while len(chunks) < 2:
            chunks += (await events.next("output"))[1]["chunks"]
        assert [(chunk["index"], chunk["delivery"]) for chunk in chunks] == [(1, 1), (2, 1)]
        assert chunks[0]["text"] == "first" and '"part":2' in chunks[1]["text"]
        assert "hunter2" not in chunks[1]["text"], "the mask holds for output too"
        go.set()
        _, told, _ = await events.next("output")
        assert told["chunks"][0]["text"] == "last"
        assert told["chunks"][-1]["text"].startswith("xxx") and len(told["chunks"][-1]["text"]) <= 4_000
        await events.next("end")


@pytest.mark.feature("O17")
async def test_events_of_a_queue_go_on_after_the_last_one_seen(
    app: Windlass, client: httpx.AsyncClient
) -> None:
    queue = app.queue("mail")
    for name in ("a", "b", "c"):
        await queue.add(name)
    async with stream(client, "/api/job-queues/mail/events?after=0") as events:
        name, data, number = await events.next()
        assert (name, data["task"], number) == ("enqueued", "a", "1")
    async with stream(client, "/api/job-queues/mail/events", **{"Last-Event-ID": "1"}) as events:
        assert [(await events.next())[1]["task"] for _ in range(2)] == ["b", "c"]
        await queue.pause()
        assert (await events.next())[0] == "paused"
        backend = app.store.backend
        assert isinstance(backend, MemoryBackend)
        backend._shared.store.queues.clear()  # as when a server has lost its data
        await app.queue("mail").add("d")
        assert await events.next() == ("gap", {"oldest": 1, "reason": "lost"}, "0")
        assert (await events.next())[1]["task"] == "d"


@pytest.mark.feature("O17", "P17")
async def test_a_running_job_tells_its_progress_log_and_end(app: Windlass, client: httpx.AsyncClient) -> None:
    steps = [asyncio.Event() for _ in range(2)]

    async def work(job: Any) -> str:
        await job.log("begun")
        await steps[0].wait()
        await job.update_progress(50)
        await job.log("half")
        await steps[1].wait()
        return "done"

    job = await app.queue("mail").add("work")
    async with stream(client, f"/api/jobs/mail/{job.id}/events") as events:
        assert (await events.next("job"))[1]["state"] == "waiting"
        async with Worker("mail", work, url_or_app=app):
            while (await events.next("job"))[1]["state"] != "active":
                pass
            log = (await events.next("log"))[1]
            assert (log["lines"], log["total"]) == (["begun"], 1)
            (entry,) = log["entries"]
            assert (entry["level"], entry["attempt"], entry["run"]) == ("info", 1, 1)
            assert entry["at_ms"] > 0
            steps[0].set()
            while (await events.next("job"))[1]["progress"] != 50:
                pass
            assert (await events.next("log"))[1]["lines"] == ["half"]
            steps[1].set()
            assert (await events.next("end"))[1]["state"] == "completed"
    answer = await client.get("/api/jobs/mail/nobody/events")
    assert answer.status_code == 404


@pytest.mark.feature("O17")
async def test_open_streams_are_bounded_and_given_back(app: Windlass, client: httpx.AsyncClient) -> None:
    async with stream(client, "/api/live") as one, stream(client, "/api/live") as two:
        await one.next()
        await two.next()
        assert (await client.get("/api/live")).status_code == 429
    async with asyncio.timeout(20):
        while (await client.get("/api/live?seconds=0")).status_code != 200:
            await client.get("/live")  # the server notices with its next turn


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ([], ["a"], ["a"]),
        (["a"], ["a", "b"], ["b"]),
        (["a", "b", "c"], ["b", "c", "d"], ["d"]),
        (["a", "b"], ["x", "y"], ["x", "y"]),
        (["a", "a"], ["a", "a", "a"], ["a"]),
    ],
)
def test_new_log_lines_are_told_once(before: list[str], now: list[str], new: list[str]) -> None:
    assert new_lines(before, now) == new


@pytest.mark.feature("O17")
async def test_events_of_a_queue_and_of_a_job_come_from_every_store(harness: Harness) -> None:
    async with live(harness) as app, serving(create_app(app, operator_tokens=OPERATOR)) as client:
        queue = app.queue("mail")
        job = await queue.add("send")
        async with (
            stream(client, "/api/job-queues/mail/events?after=0") as events,
            stream(client, f"/api/jobs/mail/{job.id}/events") as about,
        ):
            assert (await events.next("enqueued"))[1]["task"] == "send"
            assert (await about.next("job"))[1]["state"] == "waiting"
            async with Worker("mail", lambda job: "sent", url_or_app=app):
                _, done, number = await events.next("completed")
                assert (done["job_id"], number is not None) == (job.id, True)
                assert (await about.next("end"))[1]["state"] == "completed"
            await queue.pause()
            assert (await events.next("paused"))[0] == "paused"
        again = {"Last-Event-ID": str(int(number or 0) - 1)}
        async with stream(client, "/api/job-queues/mail/events", **again) as events:
            assert (await events.next())[::2] == ("completed", number)
