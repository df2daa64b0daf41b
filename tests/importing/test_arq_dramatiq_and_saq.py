"""Jobs that real arq, Dramatiq and SAQ enqueued arrive here, run, and are gone there; counts are equal."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import dramatiq
import pytest
import redis
from dramatiq.brokers.redis import RedisBroker

from tests.backends.valkey.servers import redis_server
from tests.cli.support import Cli
from tests.importing.test_celery_and_rq import total
from tools.peers import python
from windlass import JobState, Windlass, Worker
from windlass.importing.client import SourceClient

pytestmark = [pytest.mark.service("redis"), pytest.mark.timeout(180)]  # the first run installs the packages

COUNT = 30

ARQ = """
import asyncio, sys
from datetime import timedelta
from arq import create_pool
from arq.connections import RedisSettings

class Thing:
    pass

async def main(url, count):
    pool = await create_pool(RedisSettings.from_dsn(url))
    for number in range(count):
        await pool.enqueue_job("send", number, b=1, _job_id=f"job-{number:04}")
    await pool.enqueue_job("later", "x", _defer_by=timedelta(hours=1), _job_id="later")
    await pool.enqueue_job("mail", "y", _queue_name="arq:mail", _job_id="mail")
    await pool.enqueue_job("thing", Thing(), _job_id="thing")
    await pool.enqueue_job("running", _job_id="running")
    await pool.set("arq:in-progress:running", b"1")
    await pool.aclose()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""

SAQ = """
import asyncio, sys, time
from saq import Queue

async def main(url, count):
    queue = Queue.from_url(url, name="mail")
    for number in range(count):
        await queue.enqueue("send", a=number, b=1, key=f"job-{number:04}")
    options = {"retries": 5, "retry_delay": 2, "timeout": 60, "key": "later"}
    await queue.enqueue("later", a=1, scheduled=time.time() + 3600, **options)
    await queue.enqueue("running", key="running")
    await queue.redis.lrem(queue._queued, 0, queue.job_id("running"))
    await queue.redis.rpush(queue._active, queue.job_id("running"))
    await queue.disconnect()

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def run_all(cli: Cli, queue: str, name: str) -> tuple[list[int], dict[JobState, int]]:
    """Run what came over, one after the other; the first arguments, and how the queue is then."""

    async def work(app: Windlass) -> tuple[list[int], dict[JobState, int]]:
        seen: list[int] = []

        @app.task(name=name)
        async def send(a: int, b: int) -> None:
            seen.append(a)

        await Worker(queue, url_or_app=app, concurrency=1).drain()
        return seen, await app.queue(queue).get_job_counts()

    return cli.app(work)


class Bomb:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


# --- arq -----------------------------------------------------------------------------------------------


def test_arq_needs_another_release_of_the_client_than_we_do() -> None:
    (arq,) = metadata.distributions(name="arq", path=[str(python.install())])
    (wanted,) = [one for one in arq.requires or () if one.startswith("redis")]
    assert "<6" in wanted, (
        "the guide says that arq needs an environment of its own: see whether it still does"
    )
    assert int(redis.__version__.partition(".")[0]) >= 8, "and that we need redis 8"


def test_arqs_jobs_arrive_run_and_are_gone_there(peer: redis.Redis, peer_url: str, cli: Cli) -> None:
    python.run(ARQ, peer_url, str(COUNT))
    before = {key: peer.dump(key) for key in peer.keys()}
    looked = cli.json("import", "arq", peer_url)
    assert total(looked, "waiting", "scheduled", "added", "refused") == [COUNT + 1, 1, 0, 2]
    assert {key: peer.dump(key) for key in peer.keys()} == before, "a dry run changes nothing"
    assert looked["left"] == {"that run (stop the workers first)": 1}

    moved = cli.json("import", "arq", peer_url, "--confirm")
    assert total(moved, "added", "refused") == [COUNT + 2, 2]
    reasons = sorted(one["reason"] for one in moved["refusals"])
    assert reasons == ["a worker of arq runs it", "its pickle names __main__.Thing, which is not plain data"]
    assert sorted(peer.keys("arq:job:*")) == [b"arq:job:running", b"arq:job:thing"]
    assert sorted(peer.zrange("arq:queue", 0, -1)) == [b"running", b"thing"]
    assert not peer.exists("arq:mail", "windlass:import:arq")
    job = cli.job("mail", "arq-mail-mail")
    assert (job.name, job.args) == ("mail", ["y"])

    seen, counts = run_all(cli, "queue", "send")
    assert seen == list(range(COUNT)), "in their old order, each once"
    assert (counts[JobState.COMPLETED], counts[JobState.SCHEDULED]) == (COUNT, 1)
    again = cli.json("import", "arq", peer_url, "--confirm")
    assert total(again, "waiting", "scheduled", "added", "known") == [0, 0, 0, 0]


def test_a_pickle_of_arq_is_reported_and_never_loaded(
    peer: redis.Redis, peer_url: str, cli: Cli, tmp_path: Path
) -> None:
    trace = tmp_path / "loaded"
    record: dict[str, Any] = {"t": None, "f": "bomb", "a": (Bomb(trace),), "k": {}, "et": 1}
    peer.set("arq:job:bomb", pickle.dumps(record))
    peer.set("arq:job:odd", b"\x01\x02")
    peer.zadd("arq:queue", {"bomb": 1, "odd": 2, "gone": 3})
    answer = cli.json("import", "arq", peer_url, "--confirm")
    assert total(answer, "added", "refused") == [0, 3]
    reasons = " | ".join(one["reason"] for one in answer["refusals"])
    assert "which is not plain data" in reasons
    assert "its record is gone" in reasons
    assert not trace.exists()
    assert peer.zcard("arq:queue") == 3, "they are where they were"


def test_records_of_arq_in_json_and_msgpack_are_read(peer: redis.Redis, peer_url: str, cli: Cli) -> None:
    peer.set("arq:job:json", json.dumps({"t": None, "f": "send", "a": [1], "k": {"b": 2}, "et": 1}))
    peer.set("arq:job:pack", b"\x85\xa1t\xc0\xa1f\xa4send\xa1a\x91\x03\xa1k\x80\xa2et\x01")
    peer.set("arq:job:cron", json.dumps({"t": 1, "f": "cron:tick", "a": [], "k": {}, "et": 1}))
    peer.zadd("arq:queue", {"json": 1, "pack": 2, "cron": 3})
    answer = cli.json("import", "arq", peer_url, "--confirm")
    assert total(answer, "added", "refused") == [2, 1]
    assert "make it a schedule here" in answer["refusals"][0]["reason"]
    assert cli.job("queue", "arq-queue-json").kwargs == {"b": 2}
    assert cli.job("queue", "arq-queue-pack").args == [3]


# --- Dramatiq ------------------------------------------------------------------------------------------


@pytest.fixture
def broker(peer: redis.Redis) -> Iterator[RedisBroker]:
    made = RedisBroker(host="127.0.0.1", port=redis_server().port, db=5)
    before = dramatiq.broker.global_broker
    dramatiq.set_broker(made)
    yield made
    made.close()
    made.client.close()
    dramatiq.broker.global_broker = before


def actor(name: str, **options: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> None: ...

    return dramatiq.actor(run, actor_name=name, queue_name="mail", **options)


def test_dramatiqs_messages_arrive_run_and_are_gone_there(
    broker: RedisBroker, peer: redis.Redis, peer_url: str, cli: Cli
) -> None:
    send, other = actor("send"), actor("other")
    for number in range(COUNT):
        send.send(number, b=1)
    later = send.send_with_options(
        args=(99,), kwargs={"b": 2}, delay=3_600_000, max_retries=4, time_limit=60_000
    )
    dramatiq.pipeline([other.message(1), other.message(2)]).run()
    before = {key: peer.dump(key) for key in peer.keys()}
    looked = cli.json("import", "dramatiq", peer_url)
    assert total(looked, "waiting", "scheduled", "added", "refused") == [COUNT, 1, 0, 1]
    assert {key: peer.dump(key) for key in peer.keys()} == before, "a dry run changes nothing"

    moved = cli.json("import", "dramatiq", peer_url, "--confirm")
    assert total(moved, "added", "refused") == [COUNT + 1, 1]
    assert "part of a pipeline" in moved["refusals"][0]["reason"]
    assert (peer.llen("dramatiq:mail"), peer.hlen("dramatiq:mail.msgs")) == (1, 1)
    assert not peer.exists("dramatiq:mail.DQ", "dramatiq:mail.DQ.msgs", "windlass:import:dramatiq")
    job = cli.job("mail", f"dramatiq-{later.message_id}")
    assert (job.max_attempts, job.options.timeout_ms, job.kwargs) == (5, 60_000, {"b": 2})
    assert abs((job.run_at_ms or 0) - job.enqueued_ms - 3_600_000) < 60_000

    seen, counts = run_all(cli, "mail", "send")
    assert seen == list(range(COUNT)), "in their old order, each once"
    assert (counts[JobState.COMPLETED], counts[JobState.SCHEDULED]) == (COUNT, 1)
    assert total(cli.json("import", "dramatiq", peer_url, "--confirm"), "added", "known") == [0, 0]


def test_a_pickle_of_dramatiq_is_reported_and_never_loaded(
    broker: RedisBroker, peer: redis.Redis, peer_url: str, cli: Cli, tmp_path: Path
) -> None:
    trace = tmp_path / "loaded"
    encoder = dramatiq.get_encoder()
    dramatiq.set_encoder(dramatiq.PickleEncoder())
    try:
        actor("bomb").send(Bomb(trace))
    finally:
        dramatiq.set_encoder(encoder)
    answer = cli.json("import", "dramatiq", peer_url, "--confirm")
    assert total(answer, "added", "refused") == [0, 1]
    assert answer["refusals"][0]["reason"] == "it is not JSON (a pickle, say): let Dramatiq run it"
    assert not trace.exists()
    assert peer.llen("dramatiq:mail") == 1


def test_what_a_worker_of_dramatiq_holds_is_left_alone(
    broker: RedisBroker, peer: redis.Redis, peer_url: str, cli: Cli
) -> None:
    send = actor("send")
    for number in range(3):
        send.send(number)
    taken = next(broker.consume("mail", prefetch=1, timeout=1_000))
    assert taken is not None
    answer = cli.json("import", "dramatiq", peer_url, "--confirm")
    assert answer["added"] == 2
    assert answer["left"] == {"held by workers (stop them, and they return to their queue)": 1}
    assert peer.hlen("dramatiq:mail.msgs") == 1


def test_an_interrupted_run_loses_nothing_and_is_finished_by_the_next(
    broker: RedisBroker, peer: redis.Redis, peer_url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = actor("send")
    for number in range(10):
        send.send(number)

    async def die(*args: object) -> None:
        raise SystemError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(SourceClient, "release", die)
        cli("import", "dramatiq", peer_url, "--confirm", code=1)
    assert peer.hlen("windlass:import:dramatiq") == 10
    done = cli.json("import", "dramatiq", peer_url, "--confirm")
    assert (done["resumed"], done["added"]) == (10, 0)
    assert not peer.exists("windlass:import:dramatiq", "dramatiq:mail.msgs")
    jobs = cli.app(lambda app: app.queue("mail").get_jobs(limit=100))
    assert sorted(job.args[0] for job in jobs) == list(range(10))


# --- SAQ -----------------------------------------------------------------------------------------------


def test_saqs_jobs_arrive_run_and_are_gone_there(peer: redis.Redis, peer_url: str, cli: Cli) -> None:
    python.run(SAQ, peer_url, str(COUNT))
    before = {key: peer.dump(key) for key in peer.keys()}
    looked = cli.json("import", "saq", peer_url)
    assert total(looked, "waiting", "scheduled", "added", "refused") == [COUNT, 1, 0, 0]
    assert looked["left"] == {"that run (active)": 1}
    assert {key: peer.dump(key) for key in peer.keys()} == before, "a dry run changes nothing"

    assert cli.json("import", "saq", peer_url, "--copy")["added"] == COUNT + 1
    moved = cli.json("import", "saq", peer_url, "--confirm")
    assert total(moved, "added", "known", "refused") == [0, COUNT + 1, 0], "nothing is added twice"
    assert peer.zrange("saq:mail:incomplete", 0, -1) == [b"saq:job:mail:running"]
    assert peer.keys("saq:job:*") == [b"saq:job:mail:running"]
    assert not peer.exists("saq:mail:queued", "windlass:import:saq")
    job = cli.job("mail", "saq-mail-later")
    assert (job.max_attempts, job.options.timeout_ms, job.options.backoff.delay_ms) == (5, 60_000, 2_000)

    seen, counts = run_all(cli, "mail", "send")
    assert seen == list(range(COUNT)), "in their old order, each once"
    assert (counts[JobState.COMPLETED], counts[JobState.SCHEDULED]) == (COUNT, 1)


def test_a_pickle_of_saq_is_reported_and_never_loaded(
    peer: redis.Redis, peer_url: str, cli: Cli, tmp_path: Path
) -> None:
    trace = tmp_path / "loaded"
    peer.set("saq:job:mail:bomb", pickle.dumps({"function": "bomb", "kwargs": {"x": Bomb(trace)}}))
    peer.set("saq:job:mail:cron", json.dumps({"function": "tick", "queue": "mail", "key": "cron:tick"}))
    peer.zadd("saq:mail:incomplete", {"saq:job:mail:bomb": 0, "saq:job:mail:cron": 0})
    peer.rpush("saq:mail:queued", "saq:job:mail:bomb", "saq:job:mail:cron")
    answer = cli.json("import", "saq", peer_url, "--confirm")
    assert total(answer, "added", "refused") == [0, 2]
    reasons = " | ".join(one["reason"] for one in answer["refusals"])
    assert "it is not JSON (a pickle, say): let SAQ run it" in reasons
    assert "make it a schedule here" in reasons
    assert not trace.exists()
    assert peer.llen("saq:mail:queued") == 2


#: An entry of each system's queue that is not UTF-8, as a damaged or foreign program may leave it.
_GARBAGE: dict[str, Callable[[redis.Redis], object]] = {
    "rq": lambda peer: (peer.sadd("rq:queues", "mail"), peer.rpush("rq:queue:mail", b"\xff")),
    "arq": lambda peer: peer.zadd("arq:queue", {b"\xff": 1}),
    "dramatiq": lambda peer: (
        peer.hset("dramatiq:mail.msgs", "one", "{}"),
        peer.rpush("dramatiq:mail", b"\xff"),
    ),
    "saq": lambda peer: (
        peer.zadd("saq:mail:incomplete", {b"\xff": 0}),
        peer.rpush("saq:mail:queued", b"\xff"),
    ),
    "bullmq": lambda peer: (peer.hset("bull:mail:meta", "one", "1"), peer.rpush("bull:mail:wait", b"\xff")),
}


@pytest.mark.parametrize("source", _GARBAGE)
def test_an_id_that_is_not_text_is_refused_and_stays(
    peer: redis.Redis, peer_url: str, cli: Cli, source: str
) -> None:
    _GARBAGE[source](peer)
    answer = cli.json("import", source, peer_url, "--confirm")
    assert total(answer, "added", "refused") == [0, 1]
