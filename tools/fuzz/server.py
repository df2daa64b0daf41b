"""Hostile calls to a real store: odd values through our own API, and hostile arguments to server functions.

Through the API, what is refused has a typed error and changes nothing. Whoever calls the server functions by
hand has the rights of a client and can spoil the queue that they name; but the server must live and answer,
and no other queue may change.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import redis
from redis.exceptions import ResponseError

from tools.fuzz.engine import Target, damaged, odd_value
from tools.services.valkey import Server, redis_binary, valkey_binary
from windlass import Windlass, WindlassError
from windlass.backend import open_backend
from windlass.backend import requests as rq
from windlass.core.job import NewJob
from windlass.core.options import OPTION_NAMES

_pack = msgspec.msgpack.encode
_NAMESPACE = "fuzz"


@contextlib.contextmanager
def server_targets(kind: str) -> Iterator[list[Target]]:
    """The targets on one server, which lives as long as the block."""
    binary = valkey_binary() if kind == "valkey" else redis_binary()
    if binary is None:
        raise RuntimeError(f"no {kind} server was found: see scripts/test for what it needs")
    with tempfile.TemporaryDirectory(prefix="windlass-fuzz-") as folder:
        server = Server(binary, Path(folder), "--appendonly", "no", "--enable-debug-command", "yes")
        server.start()
        try:
            with server.client() as client, api_target(f"api-{kind}", server.url) as api:
                yield [api, _functions(kind, server, client)]
        finally:
            server.stop()


# --- through the API ------------------------------------------------------------------------------


@contextlib.contextmanager
def api_target(name: str, url: str) -> Iterator[Target]:
    """Verbs of a queue with values that nobody should pass."""
    loop = asyncio.new_event_loop()
    app = Windlass(url)
    queue = app.queue("api")
    options = sorted(OPTION_NAMES)

    def make(rng: random.Random) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        verb = rng.choice(
            ("add", "add", "add", "add_bulk", "cancel", "get_job", "retry", "remove", "get_jobs")
        )
        verb = rng.choice((verb, verb, "clean", "get_result", "update_result_ttl", "signal", "search_jobs"))
        if verb == "add":
            task = rng.choice(("task", odd_value(rng)))
            given = {rng.choice(options): odd_value(rng) for _ in range(rng.randrange(3))}
            return verb, (task, odd_value(rng)), given
        if verb == "add_bulk":
            return verb, ([{"name": "task", "data": odd_value(rng)} for _ in range(rng.randrange(3))],), {}
        if verb == "update_result_ttl":
            return verb, (odd_value(rng), odd_value(rng)), {}
        if verb == "signal":
            return verb, ("job1", odd_value(rng), odd_value(rng)), {}
        if verb == "search_jobs":
            names = ("name", "state", "data", "tag", "error", "limit", "cursor", "scan")
            return verb, (), {rng.choice(names): odd_value(rng)}
        return verb, (odd_value(rng),), {}

    async def call(verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        before = await _added(app)
        try:
            await getattr(queue, verb)(*args, **kwargs)
        except WindlassError:
            if await _added(app) != before:
                raise AssertionError(f"{verb} was refused and changed something") from None
            raise

    def read(given: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
        loop.run_until_complete(call(*given))

    try:
        yield Target(name, make, read, (WindlassError,))
    finally:
        loop.run_until_complete(app.close())
        loop.close()


async def _added(app: Windlass) -> tuple[Any, Any]:
    counts = await app.store.execute(rq.CountJobs(queue="api"))
    return counts, await app.store.execute(rq.ReadCounters(queue="api"))


# --- server functions -----------------------------------------------------------------------------


def _fill(server: Server) -> None:
    """Two queues with jobs in several states: one to be hurt, one that must not change."""

    async def fill() -> None:
        store = open_backend(f"{server.url}?namespace={_NAMESPACE}")
        for queue in ("q", "other"):
            jobs = [
                NewJob(
                    queue=queue,
                    id=f"job{n}",
                    task="t",
                    payload=b"{}",
                    request_id=f"job{n}",
                    delay_ms=n % 3 * 60_000,
                )
                for n in range(30)
            ]
            await store.execute(rq.Add(jobs=jobs))
            lines = [rq.ClaimQueue(queue, 5, 5)]
            await store.execute(rq.Claim(worker="w", queues=lines, limit=5, claim_id=f"c{queue}"))
        await store.close()

    asyncio.run(fill())


def _functions(kind: str, server: Server, client: redis.Redis) -> Target:
    _fill(server)
    names = _function_names(client)
    found: Any = client.keys("*")
    root = min((key for key in found if b"q}" in key), key=len)
    others = sorted(key for key in found if b"other}" in key)
    assert others, found
    examples = [
        b"", b"0", b"-1", b"1", b"9" * 30, b"nan", b"1.5", b"\xff\xfe", b"job1", b"q", b"w", b"cq.0",
        _pack([["job1", "t", 0, 0, -1, -1, 0, 0]]), _pack([]), _pack({}), _pack([1, [2, [3]]]),
        _pack("x" * 300),
        _pack([[0, "job1", "cq.0", 1, 5, 0]]), _pack(2**63), _pack(None), _pack(-5.5),
        b"\xdd\xff\xff\xff\xff",
    ]  # fmt: skip

    def make(rng: random.Random) -> tuple[bytes, list[bytes], list[bytes]]:
        keys = [root] * rng.choice((0, 1, 1, 1, 1, 2, 3))
        return rng.choice(names), keys, [damaged(rng, examples) for _ in range(rng.randrange(9))]

    untouched = _ask(client, "DEBUG", "DIGEST-VALUE", *others)

    def read(given: tuple[bytes, list[bytes], list[bytes]]) -> None:
        name, keys, arguments = given
        try:
            _ask(client, "FCALL", name, len(keys), *keys, *arguments)
        finally:
            if _ask(client, "DEBUG", "DIGEST-VALUE", *others) != untouched:
                raise AssertionError(f"{name.decode()} changed another queue")

    return Target(f"server-{kind}", make, read, (ResponseError,))


def _function_names(client: redis.Redis) -> list[bytes]:
    names: list[bytes] = []
    for library in _ask(client, "FUNCTION", "LIST"):
        fields = dict(zip(library[::2], library[1::2], strict=True))
        names += [dict(zip(one[::2], one[1::2], strict=True))[b"name"] for one in fields[b"functions"]]
    return names


def _ask(client: redis.Redis, *parts: str | bytes | int) -> Any:
    return client.execute_command(*parts)  # type: ignore[no-untyped-call]
