"""A custom backend: jobs in memory, and a diary of requests that is read again at the start.

It shows what a backend is: a name, what it can do, ``open``, ``close``, ``execute``, ``listen``, ``clone``,
and a ``from_url`` for its scheme. The rules of jobs come from the state machine of the memory store, as they
may in any backend; its own part is where things are kept. What it does not promise (here flows) it declares
missing, and callers who ask for that are refused. ``docs/own-backend.md`` tells how to hold it to the suite.

Prints::

    added on diary
    after a restart the job is waiting
    hello ada
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from windlass import Windlass, Worker
from windlass.backend import (
    flow_requests,
    limit_requests,
    metric_requests,
    schedule_requests,
    stream_requests,
)
from windlass.backend import requests as rq
from windlass.backend.capabilities import Capabilities
from windlass.backend.hub import Hub, HubListener
from windlass.backend.urls import BackendUrl, register_scheme
from windlass.backends.memory.store import MemoryStore
from windlass.core.clock import SteadyClock
from windlass.errors import StorageError

R = TypeVar("R")

#: Every request by its name, to read the diary; those that only look are not written down.
VERBS = {
    kind.__name__: kind
    for module in (rq, flow_requests, limit_requests, metric_requests, schedule_requests, stream_requests)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, rq.Request)
}
LOOKS = ("Get", "List", "Count", "Read", "Due", "MetricsProgress")


class Diary:
    """One store: its state, its file, and its listeners. Shared by all clients of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.hub = Hub()
        self.clients = 0
        self._file: BinaryIO | None = None

    def open(self) -> None:
        """Read the diary: the same requests at the same times give the same state."""
        self._store, self._clock, last_ms = MemoryStore(), SteadyClock(), 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        for line in self.path.read_bytes().splitlines():
            name, last_ms, body = msgspec.json.decode(line)
            self._store.apply(msgspec.convert(body, VERBS[name], str_keys=True), last_ms)
        self._clock.now_ms(last_ms)
        self._file = self.path.open("ab")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def execute(self, request: rq.Request[R]) -> R:
        """Decide, write down, then answer."""
        with self.lock:
            if self._file is None:
                raise StorageError(f"{self.path} is not open: await backend.open() first")
            now_ms = request.now_ms if request.now_ms is not None else self._clock.now_ms()
            name = type(request).__name__
            line = msgspec.json.encode([name, now_ms, request]) + b"\n"
            answer, topics = self._store.apply(request, now_ms)
            if not name.startswith(LOOKS):
                self._file.write(line)
                self._file.flush()
                os.fsync(self._file.fileno())
        self.hub.publish(topics)
        return answer


class DiaryBackend:
    """A client of one diary."""

    name = "diary"
    capabilities = Capabilities(
        durable=True, shared=False, lifo=True, unique=True, groups=True, limits=True, schedules=True
    )

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        self._opened = False

    async def open(self) -> None:
        with self._diary.lock:
            if not self._opened:
                self._opened = True
                self._diary.clients += 1
                if self._diary.clients == 1:
                    self._diary.open()

    async def close(self) -> None:
        with self._diary.lock:
            if self._opened:
                self._opened = False
                self._diary.clients -= 1
                if self._diary.clients == 0:
                    self._diary.close()

    async def execute(self, request: rq.Request[R]) -> R:
        return self._diary.execute(request)

    def listen(self, topics: Iterable[str]) -> HubListener:
        return self._diary.hub.listen(topics)

    def clone(self) -> DiaryBackend:
        return DiaryBackend(self._diary)


_diaries: dict[Path, Diary] = {}


def from_url(url: BackendUrl) -> DiaryBackend:
    """The diary in the directory that the URL names; every namespace has one of its own."""
    url.check_options(set())
    path = Path(url.path) / f"{url.namespace}.diary"
    return DiaryBackend(_diaries.setdefault(path, Diary(path)))


register_scheme("diary", __name__)


async def main(directory: str) -> None:
    url = f"diary://{directory}"
    app = Windlass(url)

    @app.task(queue="greetings")
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with app:
        job: Any = await greet.enqueue("ada")
        print(f"added on {app.store.name}")
    async with app:  # everything was closed: the diary is read again
        found = await app.queue("greetings").get_job(job.id)
        print(f"after a restart the job is {found.state if found else 'gone'}")
        await Worker("greetings", url_or_app=app).drain()
        print(await job.result())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
