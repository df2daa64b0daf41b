"""A signed-in user works while one address attacks: slow connections by the thousand, and guesses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

backend_name = "sqlite"
TOKEN = "a-token-of-the-operator-0123456789"
ATTACKER = "127.0.0.2"
ELSEWHERE = "127.0.0.3"
CONNECTIONS = 2_000
GUESSES_PER_SECOND = 100
CALLS = 100
PACE_S = 0.04
FLOOR_S = 0.05
CSRF = {"X-Windlass-CSRF": "1"}


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(
        [sys.executable, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    try:
        yield started
    finally:
        started.terminate()
        started.communicate(timeout=30)


@contextmanager
def user(url: str, address: str) -> Iterator[httpx.Client]:
    """A browser with a session, at an address."""
    transport = httpx.HTTPTransport(local_address=address)
    with httpx.Client(base_url=url, transport=transport, headers=CSRF, timeout=20) as client:
        assert client.post("/api/session", json={"token": TOKEN}).status_code == 200
        yield client


def p95(client: httpx.Client) -> float:
    """What the calls of a user take, at the pace of one; a third of them on connections of their own."""
    taken: list[float] = []
    for number in range(CALLS):
        path = ("/api/job-queues", "/api/jobs", "/api/session")[number % 3]
        headers = {"Connection": "close"} if number % 3 == 0 else {}
        begun = time.perf_counter()
        answer = client.get(path, headers=headers)
        taken.append(time.perf_counter() - begun)
        assert answer.status_code == 200, answer.text
        time.sleep(max(PACE_S - taken[-1], 0))  # a person; faster ones meet their own rate
    return sorted(taken)[int(CALLS * 0.95)]


@pytest.mark.serial
@pytest.mark.slow
@pytest.mark.timeout(180)
def test_slow_connections_and_guesses_do_not_slow_a_signed_in_user(tmp_path: Path) -> None:
    command = ["-m", "windlass", "dashboard", "--port", "0", "--json", "--user", "ada:correct horse"]
    store = f"sqlite:///{tmp_path / 'jobs.db'}"
    with process(*command, "--url", store, WINDLASS_OPERATOR_TOKEN=TOKEN) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        with user(url, ELSEWHERE) as far, user(url, ATTACKER) as near:
            p95(far)  # what is made at the first call is made
            quiet = max(p95(far), p95(near))
            script = str(Path(__file__).with_name("attacker.py"))
            port = str(httpx.URL(url).port)
            with process(script, port, ATTACKER, str(CONNECTIONS), str(GUESSES_PER_SECOND)) as attack:
                assert attack.stdin is not None and attack.stdout is not None
                assert attack.stdout.readline() == "ready\n"
                busy = {"elsewhere": p95(far), "the same address": p95(near)}
                with user(url, ATTACKER) as late:
                    busy["a new session there"] = p95(late)
                attack.stdin.write("enough\n")
                attack.stdin.flush()
                answers: dict[str, Any] = json.loads(attack.stdout.readline())
            assert max(busy.values()) < max(2 * quiet, FLOOR_S), (quiet, busy, answers)
            assert {answer.split()[1] for answer in answers} <= {"401", "429"}, answers
            assert answers["password 401"] < 40 < answers["password 429"], "most guesses are not judged"
