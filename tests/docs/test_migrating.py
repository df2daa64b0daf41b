"""The guides for people who come from other systems run beside the real ones."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.backends.valkey.servers import redis_server
from tests.docs.test_docs import DOCS, run_page
from tools.peers import node

pytestmark = pytest.mark.service("redis")

GUIDES = ("celery", "rq", "dramatiq", "arq", "procrastinate", "bullmq", "sidekiq")


@pytest.fixture
def peer_url(services: str) -> Iterator[str]:
    """The server of the other system, empty."""
    url = f"redis://127.0.0.1:{redis_server().port}/6"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


@pytest.mark.feature("Z1")
@pytest.mark.timeout(120)  # the first run installs the package
def test_the_guide_for_bullmq_moves_what_bullmq_itself_enqueued(peer_url: str, tmp_path: Path) -> None:
    (code,) = re.findall(r"```js\n(.*?)```", (DOCS / "migrate" / "bullmq.md").read_text(), re.DOTALL)
    program = tmp_path / "guide_bullmq.mjs"
    program.write_text(code)
    port, _, db = peer_url.rpartition(":")[2].partition("/")
    node.run(program, "127.0.0.1", port, db)
    (tmp_path / "page").mkdir()
    run_page("migrate/bullmq", tmp_path / "page", REDIS_URL=peer_url)
    with redis.Redis.from_url(peer_url) as client:
        assert client.llen("bull:mail:wait") == client.zcard("bull:mail:delayed") == 0


def test_the_guide_for_rq_runs_beside_rq(peer_url: str, tmp_path: Path) -> None:
    run_page("migrate/rq", tmp_path, REDIS_URL=peer_url)


@pytest.mark.feature("Z2")
@pytest.mark.parametrize("system", GUIDES)
def test_every_guide_has_names_both_programs_and_the_way_over(system: str) -> None:
    text = (DOCS / "migrate" / f"{system}.md").read_text()
    wanted = ["\n## Names\n", "\n## Before\n", "\n## After\n"]
    assert [part for part in wanted if part not in text] == []
    names = text.partition("\n## Names\n")[2].partition("\n## ")[0]
    assert names.count("\n| ") >= 12
