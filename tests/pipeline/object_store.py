"""An S3 server of this machine: moto's, in a process of its own."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.pipeline.processes import Process
from tools.services.valkey import free_port
from windlass.core.ids import new_id


@contextmanager
def serve() -> Iterator[str]:
    """Start it; yields its address."""
    port = free_port()
    with tempfile.TemporaryDirectory() as room:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = Process(command, Path(room) / "moto.log")
        try:
            server.until(lambda output: "Running on" in output)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.reap()


def settings(endpoint: str) -> dict[str, str]:
    """What the environment of everything holds that reads or writes there."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }


@contextmanager
def make_bucket(endpoint: str) -> Iterator[str]:
    """A new bucket; yields its URL."""
    import httpx

    name = f"b{new_id()}"
    httpx.put(f"{endpoint}/{name}").raise_for_status()
    with pytest.MonkeyPatch.context() as patch:
        for key, value in settings(endpoint).items():
            patch.setenv(key, value)
        yield f"s3://{name}"
