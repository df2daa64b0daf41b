"""A Redis server for the other systems, and a store for ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.backends.valkey.servers import redis_server
from tests.cli.support import Cli


@pytest.fixture
def peer(services: str) -> Iterator[redis.Redis]:
    """The server of the other system, empty."""
    client = redis.Redis(port=redis_server().port, db=5)
    client.flushdb()
    yield client
    client.flushdb()
    client.close()


@pytest.fixture
def peer_url(peer: redis.Redis) -> str:
    return f"redis://127.0.0.1:{redis_server().port}/5"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Commands against a database in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WINDLASS_URL", raising=False)
    return Cli(f"sqlite:///{tmp_path / 'jobs.db'}")
