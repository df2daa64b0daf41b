"""What the doctor says about the surroundings of jobs: clocks, servers, duties, retention, archivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import Cli
from tools.services.valkey import Server, redis_binary, valkey_binary
from windlass import Windlass, Worker, __version__
from windlass.backend import requests as rq
from windlass.cli.deployment import judge_server
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.job import WorkerInfo

pytestmark = pytest.mark.feature("X3")

DAY_MS = 86_400_000


def texts(cli: Cli, level: str, *args: str, code: int = 0) -> list[str]:
    report = cli.json("doctor", *args, code=code)
    return [found["text"] for found in report["findings"] if found["level"] == level]


def test_clocks_that_agree_are_a_fact_and_others_a_problem(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.add("mail", "send", delay=60)
    assert "the store's clock and this machine's agree" in texts(cli, "fact")

    class Wrong:
        skew_ms = 0

        def now_ms(self) -> int:
            return SYSTEM_CLOCK.now_ms() + self.skew_ms

    wrong = Wrong()
    monkeypatch.setattr("windlass.cli.deployment.SYSTEM_CLOCK", wrong)
    wrong.skew_ms = 5_000
    (warning,) = texts(cli, "warning")
    assert "differ by 5" in warning or "differ by 4" in warning
    wrong.skew_ms = -120_000
    (problem,) = texts(cli, "problem", code=1)
    assert "differ by" in problem


def test_due_times_that_a_clock_ahead_has_written_are_listed(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SYSTEM_CLOCK.now_ms

    async def ahead(app: Windlass) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("windlass.core.clock.SystemClock.now_ms", lambda clock: real() + DAY_MS)
            await app.queue("mail").add("send", delay=60, job_id="wrong")
            await app.queue("mail").upsert_job_scheduler("tick", {"every": 60_000}, {"name": "send"})
            await app.queue("mail").run_job_scheduler("tick")

    async def right(app: Windlass) -> None:
        await app.queue("news").add("send", delay=60, job_id="fine")

    cli.app(right)
    cli.app(ahead)
    found = [text for text in texts(cli, "warning", code=1) if "was ahead" in text]
    assert len(found) == 2
    assert found[0].startswith("mail: 1 scheduled job got a due time from a clock that was ahead: wrong due ")
    assert found[1].startswith("mail: schedule tick fired while a clock was ahead and is next due ")


def test_jobs_that_are_kept_for_ever_are_named(cli: Cli) -> None:
    async def arrange(app: Windlass) -> None:
        for number in range(3):
            await app.queue("mail").add("send", keep_completed=True if number else 10)
        await Worker("mail", lambda job: None, url_or_app=app).drain()

    cli.app(arrange)
    assert texts(cli, "warning") == ["mail: 2 completed jobs of the newest kept forever"]


def test_a_job_that_never_ends_a_missing_leader_and_a_lost_archiver_are_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def arrange(app: Windlass) -> None:
        await app.queue("mail").add("send")
        queues = [rq.ClaimQueue("mail", 1, 1)]
        claim = rq.Claim(worker="w", queues=queues, limit=1, claim_id="c", lease_ms=10 * DAY_MS)
        assert (await app.store.execute(claim)).jobs
        await app.store.execute(rq.Archive(name="lake", cursors={"mail": 0}))
        info = WorkerInfo(id="w", queues=("mail",), version=__version__)
        await app.store.execute(rq.Beat(worker=info))

    cli.app(arrange)
    assert texts(cli, "warning") == [], "a worker that has just started need not lead yet"
    in_two_days = SYSTEM_CLOCK.now_ms() + 2 * DAY_MS
    monkeypatch.setattr("windlass.cli.doctor.now_ms", lambda: in_two_days)
    assert texts(cli, "warning") == [
        "archiver lake was last seen 2d ago and holds the history",
        "no worker is the leader, so nothing is pruned",
        "mail: 1 job run for more than a day, one for 2d",
    ]


@pytest.mark.parametrize(
    ("settings", "level", "text"),
    [
        ({"aof_enabled": "0", "save": ""}, "problem", "keeps no append-only file: a restart loses every job"),
        (
            {"aof_enabled": "0", "save": "3600 1"},
            "warning",
            "a restart loses everything since the last snapshot",
        ),
        (
            {"aof_enabled": "1", "appendfsync": "no"},
            "warning",
            "lets the operating system decide when jobs reach the disk",
        ),
        (
            {"aof_enabled": "1", "appendfsync": "everysec"},
            "fact",
            "a power cut loses at most a second or two",
        ),
        ({"aof_enabled": "1", "appendfsync": "always"}, "fact", "a power cut loses nothing"),
        ({"aof_enabled": "1", "maxmemory_policy": "allkeys-lru"}, "problem", "may evict jobs"),
        (
            {"aof_enabled": "1", "maxmemory": "100", "used_memory": "90"},
            "warning",
            "uses 90 % of its maxmemory",
        ),
        (
            {"aof_enabled": "1", "aof_last_write_status": "err"},
            "problem",
            "could not write its append-only file",
        ),
        ({"aof_enabled": "1", "rdb_last_bgsave_status": "err"}, "problem", "could not write its snapshot"),
    ],
)
def test_what_the_settings_of_a_server_mean(settings: dict[str, str], level: str, text: str) -> None:
    found = [finding for finding in judge_server(settings) if text in finding.text]
    assert [finding.level for finding in found] == [level]
    assert all(finding.advice for finding in found if finding.level != "fact")


@pytest.mark.service("redis")
@pytest.mark.parametrize("binary", ["valkey", "redis"])
def test_the_settings_of_a_real_server(binary: str, services: str, tmp_path: Path) -> None:
    program = valkey_binary() if binary == "valkey" else redis_binary()
    assert program is not None
    server = Server(
        program, tmp_path, "--appendonly", "no", "--save", "", "--maxmemory-policy", "allkeys-lru"
    )
    server.start()
    try:
        cli = Cli(server.url)
        cli.add("mail", "send", delay=60)
        problems = texts(cli, "problem", code=1)
        assert any("a restart loses every job" in text for text in problems)
        assert any("maxmemory-policy allkeys-lru" in text for text in problems)
        assert any(f"is {binary.capitalize()} " in text for text in texts(cli, "fact", code=1))
        ask(server, "CONFIG", "SET", "appendonly", "yes")
        ask(server, "CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert texts(cli, "problem") == []
        assert any("a power cut loses at most a second or two" in text for text in texts(cli, "fact"))
    finally:
        server.kill()  # while it writes its first append-only file, it does not end when asked to


def ask(server: Server, *words: str) -> Any:
    import redis

    with redis.Redis(port=server.port) as client:
        return client.execute_command(*words)
