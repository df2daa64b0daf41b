"""Jobs that real BullMQ enqueued arrive here, run, and are gone there; counts are equal."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from tests.backends.valkey.servers import redis_server
from tests.cli.support import Cli
from tests.importing.support import MANY
from tools.peers import node
from windlass import JobState, Windlass, Worker

pytestmark = [pytest.mark.service("redis"), pytest.mark.service("node")]

PRODUCER = Path(__file__).with_name("bullmq_producer.mjs")


@pytest.mark.feature("Z1", "Z4")
@pytest.mark.timeout(300)  # the first run installs the package
def test_bullmqs_jobs_arrive_run_and_are_gone_there(peer: redis.Redis, peer_url: str, cli: Cli) -> None:
    node.run(PRODUCER, str(redis_server().port), "5", str(MANY))

    looked = cli.json("import", "bullmq", peer_url)
    assert [looked[name] for name in ("waiting", "scheduled", "added")] == [MANY + 2, 1, 0]
    moved = cli.json("import", "bullmq", peer_url, "--confirm")
    assert [moved[name] for name in ("added", "known", "gone", "refused")] == [MANY + 3, 0, 0, 2]
    assert {one["task"]: one["reason"].partition(":")[0] for one in moved["refusals"]} == {
        "child": "it is part of a flow",
        "tick": "a scheduler made it",
    }
    assert moved["left"]["that wait for children"] == 1
    assert peer.llen("bull:mail:wait") == 0
    assert peer.keys("bull:mail:[0-9]*") == []
    assert peer.exists("bull:other:tick") == 0

    later, urgent, single = (cli.job("other", f"bullmq-other-{job_id}") for job_id in ("1", "own-id", "3"))
    assert (later.state, later.max_attempts, later.data) == (JobState.SCHEDULED, 4, {"to": "bob"})
    assert later.options.backoff.delay_ms == 1_500
    assert (urgent.priority, urgent.data) == (-7, [1, 2])
    assert (single.data, single.max_attempts, single.options.backoff.delay_ms) == ("text", 2, 500)

    async def work(app: Windlass) -> list[int]:
        seen: list[int] = []

        @app.task(name="send")
        async def send(n: int) -> None:
            seen.append(n)

        await Worker("mail", url_or_app=app, concurrency=1).drain()
        return seen

    assert cli.app(work) == list(range(MANY)), "in their old order, each once"
