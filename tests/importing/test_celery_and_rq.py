"""Jobs that real Celery and RQ enqueued arrive here, run, and are gone there; counts are equal."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery
from celery import chain as celery_chain
from kombu import pools as kombu_pools
from rq import Queue as RqQueue
from rq import Retry as RqRetry
from rq.serializers import JSONSerializer

from tests.cli.support import Cli
from tests.importing.support import MANY
from windlass import JobState, Windlass, Worker
from windlass.importing.client import SourceClient

pytestmark = pytest.mark.service("redis")


@pytest.fixture
def celery(peer_url: str) -> Iterator[Celery]:
    app = Celery("shop", broker=peer_url, set_as_current=False)
    app.conf.task_serializer = "json"
    yield app
    app.close()
    kombu_pools.reset()  # type: ignore[no-untyped-call] # it remembers which queues it has declared


def total(answer: dict[str, Any], *names: str) -> list[int]:
    return [answer[name] for name in names]


@pytest.mark.feature("Z4")
@pytest.mark.timeout(300)
def test_celerys_jobs_arrive_run_and_are_gone_there(
    celery: Celery, peer: redis.Redis, peer_url: str, cli: Cli
) -> None:
    for number in range(MANY):
        celery.send_task("shop.add", args=[number], kwargs={"b": 1}, queue="sums")
    celery.send_task("shop.later", args=["x"], countdown=3_600, queue="sums")
    before = {key: peer.dump(key) for key in peer.keys()}

    looked = cli.json("import", "celery", peer_url)
    assert total(looked, "waiting", "scheduled", "added", "refused") == [MANY, 1, 0, 0]
    assert {key: peer.dump(key) for key in peer.keys()} == before, "a dry run changes nothing"

    moved = cli.json("import", "celery", peer_url, "--confirm", "--rename", "shop.add=add")
    assert total(moved, "added", "known", "gone", "refused") == [MANY + 1, 0, 0, 0]
    assert peer.llen("sums") == 0
    assert not peer.exists("windlass:import:celery")

    async def work(app: Windlass) -> tuple[list[int], dict[JobState, int]]:
        seen: list[int] = []

        @app.task(name="add")
        async def add(a: int, b: int) -> int:
            seen.append(a)
            return a + b

        await Worker("sums", url_or_app=app, concurrency=1).drain()
        return seen, await app.queue("sums").get_job_counts()

    seen, counts = cli.app(work)
    assert seen == list(range(MANY)), "in their old order, each once"
    assert (counts[JobState.COMPLETED], counts[JobState.SCHEDULED]) == (MANY, 1)
    again = cli.json("import", "celery", peer_url, "--confirm")
    assert total(again, "waiting", "scheduled", "added") == [0, 0, 0]


def test_a_copy_leaves_the_old_queue_and_a_move_after_it_adds_nothing_twice(
    celery: Celery, peer: redis.Redis, peer_url: str, cli: Cli
) -> None:
    for number in range(5):
        celery.send_task("add", args=[number], queue="sums")
    assert cli.json("import", "celery", peer_url, "--copy")["added"] == 5
    assert peer.llen("sums") == 5
    moved = cli.json("import", "celery", peer_url, "--confirm")
    assert total(moved, "added", "known") == [0, 5]
    assert peer.llen("sums") == 0
    assert cli.json("queues")[0]["counts"]["waiting"] == 5


def test_what_celery_said_about_a_job_is_kept(celery: Celery, peer_url: str, cli: Cli) -> None:
    eta = datetime.now(UTC) + timedelta(hours=2)
    sent = celery.send_task(
        "add", [1], queue="sums", eta=eta, expires=eta + timedelta(hours=1), priority=9, time_limit=60
    )
    cli.json("import", "celery", peer_url, "--confirm", "--map-queue", "sums=numbers")
    job = cli.job("numbers", f"celery-{sent.id}")
    assert job.run_at_ms == round(eta.timestamp() * 1000)
    assert (job.priority, job.options.timeout_ms, job.args) == (-9, 60_000, [1])
    assert job.record.expires_ms is not None
    assert abs(job.record.expires_ms - round(eta.timestamp() * 1000) - 3_600_000) < 5_000


def test_what_cannot_be_moved_stays_and_says_why(
    celery: Celery, peer: redis.Redis, peer_url: str, cli: Cli
) -> None:
    celery.send_task("plain", [1, (2, 3)], queue="sums", serializer="pickle", compression="gzip")
    celery.send_task("object", [Cli], queue="sums", serializer="pickle")
    celery.send_task("late", [1], queue="sums", expires=datetime.now(UTC) - timedelta(seconds=5))
    celery_chain(
        celery.signature("first", queue="sums"), celery.signature("second", queue="sums")
    ).apply_async()
    peer.lpush("sums", b"not json at all")
    answer = cli.json("import", "celery", peer_url, "--confirm")
    assert total(answer, "added", "refused") == [1, 4]
    reasons = {one["task"]: one["reason"] for one in answer["refusals"]}
    assert "which is not plain data" in reasons["object"]
    assert reasons["late"] == "it has expired"
    assert "part of a canvas (chain)" in reasons["first"]
    assert "not a message of Celery" in reasons[""]
    assert peer.llen("sums") == 4, "they are where they were"


@pytest.mark.feature("Z4")
@pytest.mark.timeout(300)
def test_rqs_jobs_arrive_run_and_are_gone_there(peer: redis.Redis, peer_url: str, cli: Cli) -> None:
    default, plain = (
        RqQueue("mail", connection=peer),
        RqQueue("plain", connection=peer, serializer=JSONSerializer),
    )
    with peer.pipeline() as pipe:
        default.enqueue_many(
            [RqQueue.prepare_data("shop.send", args=(n,), kwargs={"b": 1}) for n in range(MANY)],
            pipeline=pipe,
        )
        pipe.execute()
    plain.enqueue("shop.send", 7, b=2, retry=RqRetry(max=2, interval=[30]), job_timeout=90)
    default.enqueue_in(timedelta(hours=1), "shop.later", "x")

    looked = cli.json("import", "rq", peer_url)
    assert total(looked, "waiting", "scheduled", "added", "refused") == [MANY + 1, 1, 0, 0]
    moved = cli.json("import", "rq", peer_url, "--confirm")
    assert total(moved, "added", "refused") == [MANY + 2, 0]
    assert peer.keys("rq:job:*") == []
    assert default.count == plain.count == 0

    (job,) = cli.app(lambda app: app.queue("plain").get_jobs())
    assert (job.args, job.kwargs, job.max_attempts) == ([7], {"b": 2}, 3)
    assert (job.options.timeout_ms, job.options.backoff.delay_ms) == (90_000, 30_000)

    async def work(app: Windlass) -> list[int]:
        seen: list[int] = []

        @app.task(name="shop.send")
        async def send(a: int, b: int) -> None:
            seen.append(a)

        await Worker("mail", url_or_app=app, concurrency=1).drain()
        return seen

    assert cli.app(work) == list(range(MANY))


def test_rq_jobs_that_are_more_than_a_call_stay(peer: redis.Redis, peer_url: str, cli: Cli) -> None:
    queue = RqQueue("mail", connection=peer)
    first = queue.enqueue("shop.send", 1)
    queue.enqueue("shop.after", depends_on=first)
    queue.enqueue(UUID(int=7).__str__)  # a method of an object
    queue.enqueue("shop.thing", Cli("memory://"))
    answer = cli.json("import", "rq", peer_url, "--confirm")
    assert total(answer, "added", "refused") == [1, 2]
    assert answer["left"] == {"that wait for other jobs (deferred)": 1}
    assert sorted(one["reason"] for one in answer["refusals"]) == [
        "it calls a method of a stored object: let RQ run it",
        "its pickle names tests.cli.support.Cli, which is not plain data",
    ]


def test_an_interrupted_run_is_finished_by_the_next(
    celery: Celery, peer: redis.Redis, peer_url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        celery.send_task("add", args=[number], queue="sums")

    async def die(*args: object) -> None:
        raise SystemError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(SourceClient, "release", die)  # after they were added, before they are released
        cli("import", "celery", peer_url, "--confirm", code=1)
    with monkeypatch.context() as patch:
        patch.setattr("windlass.importing.mover.Mover._add", die)  # after they were taken
        celery.send_task("add", args=[10], queue="sums")
        cli("import", "celery", peer_url, "--confirm", code=1)
    assert peer.hlen("windlass:import:celery") > 0
    assert "are held by an interrupted run" in cli("import", "celery", peer_url).stdout
    done = cli.json("import", "celery", peer_url, "--confirm")
    assert done["resumed"] + done["added"] + done["known"] == 11
    assert not peer.exists("windlass:import:celery")
    jobs = cli.app(lambda app: app.queue("sums").get_jobs(limit=100, newest_first=False))
    assert sorted(job.args[0] for job in jobs) == list(range(11))


def test_a_message_that_a_worker_of_the_old_system_took_meanwhile_is_not_added(
    celery: Celery, peer: redis.Redis, peer_url: str, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        celery.send_task("add", args=[number], queue="sums")
    take = SourceClient.take

    async def late(self: SourceClient, *args: Any) -> list[bool]:
        peer.rpop("sums")  # the oldest
        return await take(self, *args)

    monkeypatch.setattr(SourceClient, "take", late)
    answer = cli.json("import", "celery", peer_url, "--confirm")
    assert total(answer, "added", "gone") == [2, 1]
    jobs = cli.app(lambda app: app.queue("sums").get_jobs())
    assert sorted(job.args[0] for job in jobs) == [1, 2]


def test_wrong_words_are_told(peer_url: str, cli: Cli) -> None:
    assert "Choose one" in cli("import", "rq", peer_url, "--copy", "--confirm", code=2).stderr
    assert "write OLD=NEW" in cli("import", "rq", peer_url, "--rename", "x", code=2).stderr
    assert (
        "unknown queue of rq there: 'nope'"
        in cli("import", "rq", peer_url, "--queues", "nope", code=1).stderr
    )
    assert "did not answer" in cli("import", "rq", "redis://127.0.0.1:1", code=1).stderr
    assert "a URL like redis://" in cli("import", "rq", "mysql://x", code=1).stderr


def test_people_see_a_table(celery: Celery, peer_url: str, cli: Cli) -> None:
    celery.send_task("add", args=[1], queue="sums")
    text = cli("import", "celery", peer_url).stdout
    assert "1 jobs can be moved; nothing was changed. --confirm moves them." in text
    assert "Copied 1 jobs (0 were here already)." in cli("import", "celery", peer_url, "--copy").stdout
    assert "Moved 0 jobs (1 were here already)." in cli("import", "celery", peer_url, "--confirm").stdout
