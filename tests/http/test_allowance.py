"""How much clients may ask: passwords are counted before they are compared, sessions and tokens never."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.http.support import CSRF, OPERATOR
from windlass import Windlass
from windlass.dashboard import ServerLimits, create_app
from windlass.dashboard.allowance import Passwords
from windlass.dashboard.guard import Guard
from windlass.dashboard.settings import DashboardSettings

backend_name = "memory"
RIGHT = "correct horse"
LIMITS = ServerLimits(
    burst=5,
    per_second=0.001,
    change_burst=5,
    changes_per_second=0.001,
    refusal_burst=3,
    refusals_per_second=0.001,
    account_burst=6,
    accounts_per_second=0.001,
)


@pytest.fixture
async def guard() -> AsyncIterator[Guard]:
    async with Windlass(f"memory://{Path(__file__).stem}-{uuid4().hex}") as app:
        yield create_app(app, operator_tokens=OPERATOR, users={"ada": RIGHT, "bob": RIGHT}, limits=LIMITS)


def at(guard: Guard, address: str, **headers: str) -> httpx.AsyncClient:
    """A client at an address."""
    transport = httpx.ASGITransport(guard, client=(address, 1))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers={**CSRF, **headers})


def basic(name: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


async def sign_in(client: httpx.AsyncClient, **given: str) -> int:
    return (await client.post("/api/session", json=given)).status_code


@pytest.mark.parametrize("form", [True, False], ids=["sign-in", "basic"])
async def test_passwords_beyond_the_limit_are_never_compared(
    guard: Guard, monkeypatch: pytest.MonkeyPatch, form: bool
) -> None:
    compared: list[str] = []
    by_password = DashboardSettings.by_password

    def counting(self: DashboardSettings, name: str, password: str) -> Any:
        compared.append(password)
        return by_password(self, name, password)

    monkeypatch.setattr(DashboardSettings, "by_password", counting)
    statuses = []
    for number in range(10):
        password = RIGHT if number == 9 else f"guess {number}"
        async with at(guard, "10.0.0.7") as stranger:
            if form:
                statuses.append(await sign_in(stranger, username="ada", password=password))
            else:
                headers = {"Authorization": basic("ada", password)}
                statuses.append((await stranger.get("/api/session", headers=headers)).status_code)
    assert 429 == statuses[-1] == statuses[3]
    assert compared == ["guess 0", "guess 1", "guess 2"]


async def test_a_token_and_a_session_work_at_the_address_of_an_attacker(guard: Guard) -> None:
    async with at(guard, "10.0.0.7") as user, at(guard, "10.0.0.7") as stranger:
        assert await sign_in(user, token=OPERATOR) == 200
        statuses = [await sign_in(stranger, username="ada", password=f"guess {n}") for n in range(30)]
        statuses += [await sign_in(stranger, token=f"guess {n}") for n in range(30)]
        for number in range(30):
            headers = {"Authorization": f"Bearer guess-{number}"}
            statuses.append((await stranger.get("/api/jobs", headers=headers)).status_code)
        assert set(statuses) == {401, 429}
        assert (await user.get("/api/jobs")).status_code == 200, "a session"
        async with at(guard, "10.0.0.7") as other:
            assert await sign_in(other, token=OPERATOR) == 200, "a sign-in with a token"
        async with at(guard, "10.0.0.7", Authorization=f"Bearer {OPERATOR}") as program:
            assert (await program.get("/api/jobs")).status_code == 200, "a token"
            added = await program.post("/api/job-queues/mail/jobs", json={"task": "send"})
            assert added.status_code == 201, "a change"


async def test_right_passwords_do_not_count(guard: Guard) -> None:
    for number in range(20):
        async with at(guard, f"10.0.{number}.1") as user:
            assert await sign_in(user, username="ada", password=RIGHT) == 200


def test_an_account_is_guessed_at_from_many_addresses_a_bounded_number_of_times() -> None:
    passwords = Passwords(LIMITS)
    judged = [number for number in range(100) if not passwords.take("ada", f"10.0.0.{number}", 0)]
    assert judged == list(range(LIMITS.account_burst))
    assert passwords.take("bob", "10.0.0.1", 0) == 0, "another account"


def test_guesses_from_elsewhere_do_not_lock_an_account_out() -> None:
    passwords = Passwords(LIMITS)
    assert passwords.take("ada", "home", 0) == 0
    passwords.right("ada", "home", 0)
    for number in range(100):
        passwords.take("ada", f"10.0.0.{number}", 0)
    for number in range(20):
        passwords.take(f"name {number}", "home", 0)
    assert passwords.take("bob", "home", 0) > 0
    assert passwords.take("ada", "home", 0) == 0


def test_names_that_no_one_has_do_not_make_room_for_more_guesses() -> None:
    passwords = Passwords(LIMITS)
    for number in range(20):
        passwords.take("ada", f"a{number}", 0)
    for number in range(20_000):
        passwords.take(f"name {number}", f"b{number}", 0)
    assert passwords.take("ada", "c", 0) > 0
