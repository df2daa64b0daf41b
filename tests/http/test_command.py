"""``windlass dashboard``: where it listens, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from windlass.cli.dashboard import is_loopback, make
from windlass.cli.dashboard_options import DashboardOptions
from windlass.errors import ConfigError

backend_name = "sqlite"
TOKEN = "a-token-for-the-command"


@pytest.mark.feature("P16")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org"])
def test_other_addresses_need_a_sign_in(host: str) -> None:
    with pytest.raises(ConfigError, match="sign-in"):
        make(DashboardOptions(url="memory://command", host=host))
    assert make(
        DashboardOptions(url="memory://command", host=host, operator_token=TOKEN)
    ).settings.methods == ["token"]
    assert make(DashboardOptions(url="memory://command", host="127.0.0.1")).settings.methods == []


def test_loopback_is_recognised() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "127.8.9.1")] == [True] * 4
    assert not is_loopback("0.0.0.0")


def test_passwords_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="WINDLASS_PASSWORD_ADA"):
        make(DashboardOptions(url="memory://command", users=("ada",)))
    monkeypatch.setenv("WINDLASS_PASSWORD_ADA", "correct horse")
    settings = make(
        DashboardOptions(url="memory://command", users=("ada",), readers=("bob:battery staple",))
    ).settings
    assert (settings.users, settings.reader_users) == ({"ada": "correct horse"}, {"bob": "battery staple"})


@pytest.mark.feature("O14")
def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "windlass", "dashboard", "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, "--url", f"sqlite:///{tmp_path / 'jobs.db'}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        with httpx.Client(base_url=url, headers={"X-Windlass-CSRF": "1"}, timeout=20) as client:
            added = client.post("/api/job-queues/mail/jobs", json={"task": "send"})
            assert added.status_code == 201
            assert client.get("/api/job-queues").json()[0]["size"] == 1
            assert client.get("/ready").json()["backend"] == "sqlite"
            assert "server" not in client.get("/live").headers
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode in (0, -15), errors


@pytest.mark.feature("P9")
def test_it_serves_several_stores_under_their_names(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "windlass", "dashboard", "--port", "0", "--json", "--prefix", "/jobs"]
    named = [f"--store={name}=sqlite:///{tmp_path / name}.db" for name in ("shop", "mail")]
    process = subprocess.Popen(
        [*command, *named],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        urls = [json.loads(process.stdout.readline())["url"] for _ in named]
        assert [url.partition("/jobs")[2] for url in urls] == ["/shop/", "/mail/"]
        with httpx.Client(headers={"X-Windlass-CSRF": "1"}, timeout=20) as client:
            assert client.post(f"{urls[0]}api/job-queues/cards/jobs", json={"task": "pay"}).status_code == 201
            held = [[queue["name"] for queue in client.get(f"{url}api/job-queues").json()] for url in urls]
            assert held == [["cards"], []]
            session = client.get(f"{urls[1]}api/session").json()
            assert (session["stores"], session["store"]) == (["shop", "mail"], "mail")
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=30)
    assert process.returncode in (0, -15), errors


@pytest.mark.parametrize(
    "given", [("shop",), ("valkey://:secret@cache?db=1",), ("a=memory://", "a=memory://"), ("a=",)]
)
def test_stores_that_have_no_name_of_their_own_are_refused(given: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="NAME=URL") as refused:
        make(DashboardOptions(stores=given))
    assert "secret" not in str(refused.value)


def test_a_lake_belongs_to_one_store() -> None:
    with pytest.raises(ConfigError, match="lake"):
        make(DashboardOptions(stores=("a=memory://",), lake="lake"))
