"""Parts of the dashboard by themselves: masks, rates, sessions, files, the audit file, figures of a lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from windlass import Windlass
from windlass.core.ids import new_id
from windlass.core.order import Sort
from windlass.dashboard import create_app
from windlass.dashboard.masking import HIDDEN, Mask
from windlass.dashboard.paging import Position, decode_cursor, encode_cursor
from windlass.dashboard.params import unescape
from windlass.dashboard.problems import ApiError
from windlass.dashboard.sessions import COOKIE, LIFETIME_MS, Sessions
from windlass.dashboard.settings import DEFAULT_MASK, to_tokens
from windlass.dashboard.shapes.server import AuditEntry
from windlass.dashboard.static import Static
from windlass.dashboard.throttle import Buckets
from windlass.dashboard.users import Identity

backend_name = "memory"


def entry(target: str) -> AuditEntry:
    return AuditEntry(
        id=0,
        at_ms=1,
        who="ada",
        role="operator",
        client="::1",
        method="POST",
        action="POST /x",
        target=target,
        status=204,
        outcome="ok",
        facts={},
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"Password": "x", "user": 1}, {"Password": HIDDEN, "user": 1}),
        ({"a": [{"db_password_2": "x"}]}, {"a": [{"db_password_2": HIDDEN}]}),
        ({"token": None}, {"token": None}),
        ({"secret": {"deep": 1}}, {"secret": HIDDEN}),
        ("password", "password"),
        ([1, "two", None, True], [1, "two", None, True]),
    ],
)
def test_masks_go_by_the_name_of_a_field(value: Any, shown: Any) -> None:
    assert Mask(DEFAULT_MASK).hide(value) == shown


@pytest.mark.parametrize(
    "secret",
    [
        "x_api_key",
        "auth",
        "http_auth",
        "auth_header",
        "credentials",
        "dsn",
        "sentry_dsn",
        "pwd",
        "db_pwd",
        "private_key",
        "credit_card",
        "credit_card_number",
        "cvv",
        "ssn",
        "user_ssn",
        "access_token",
    ],
)
def test_the_default_mask_knows_a_name_in_every_spelling(secret: str) -> None:
    words = secret.split("_")
    camel = words[0] + "".join(word.title() for word in words[1:])
    spellings = {
        secret,
        secret.upper(),
        camel,
        camel[0].upper() + camel[1:],
        "-".join(words),
        "-".join(word.title() for word in words),
        ".".join(words),
        " ".join(words),
        f"_{secret}",
    }
    mask = Mask(DEFAULT_MASK)
    assert {name for name in spellings if not mask.covers(name)} == set()


@pytest.mark.parametrize("together", ["xapikey", "APIKEY", "privatekey", "CreditCard", "creditcard", "dbpwd"])
def test_the_default_mask_knows_words_that_are_run_together(together: str) -> None:
    assert Mask(DEFAULT_MASK).covers(together)


@pytest.mark.parametrize(
    "plain",
    ["author", "authors", "friends_name", "friendsName", "key", "card", "lesson", "user", "monkey", ""],
)
def test_the_default_mask_leaves_other_names_alone(plain: str) -> None:
    assert not Mask(DEFAULT_MASK).covers(plain)


def test_masks_of_the_application_are_looked_for_in_every_spelling_too() -> None:
    mask = Mask(["customerName", "iban*", "[ab]x"])
    assert all(
        mask.covers(name) for name in ("customer_name", "Customer-Name", "customername", "IbanOfBob", "ax")
    )
    assert not any(mask.covers(name) for name in ("customer", "name", "[ab]x", "cx"))
    assert not Mask([]).covers("password")


def test_what_is_nested_too_deep_is_hidden() -> None:
    value: Any = "bottom"
    for _ in range(100):
        value = [value]
    text = str(Mask([]).hide(value))
    assert HIDDEN in text
    assert "bottom" not in text


def test_an_edit_keeps_what_was_hidden_and_nothing_else() -> None:
    mask = Mask(DEFAULT_MASK)
    stored = {"password": "x", "list": [{"token": "t"}, 2], "user": 1}
    shown = mask.hide(stored)
    assert mask.restore(shown, stored) == stored
    assert mask.restore({"user": 2}, stored) == {"user": 2}
    assert mask.restore({"list": [{"token": "new"}]}, stored) == {"list": [{"token": "new"}]}


def test_buckets_fill_again_and_forget_old_clients() -> None:
    buckets = Buckets(burst=2, per_second=1, clients=2)
    assert [buckets.take("a", 0) for _ in range(3)] == [0, 0, 1_000]
    assert buckets.take("a", 1_000) == 0
    assert buckets.take("a", 1_000) > 0
    buckets.take("b", 1_000)
    buckets.take("c", 1_000)
    assert len(buckets) == 2
    assert buckets.level("a", 1_000) == 2, "forgotten, so full"


def test_sessions_end_and_cannot_be_forged() -> None:
    sessions, ada = Sessions(), Identity("ada", "operator")
    key = sessions.begin(ada, 1_000)
    cookie = f"{COOKIE}={key}"
    assert len(key) >= 43, "256 random bits"
    assert sessions.find(f"other=1; {cookie}", 2_000) == ada
    assert sessions.find(cookie, 1_000 + LIFETIME_MS) is None
    assert Sessions().find(cookie, 2_000) is None, "another process"
    assert sessions.find(f"{cookie}; {COOKIE}=x", 2_000) is None, "two keys are none"
    for bad in ("", f"{COOKIE}=", f"{COOKIE}=a.b", f"{COOKIE}=.", "\x00=", "a;b;c", f"{COOKIE}={key[:-1]}"):
        assert sessions.find(bad, 2_000) is None
    sessions.end(cookie)
    assert sessions.find(cookie, 2_000) is None


def test_sessions_are_bounded_and_end_one_by_one_or_all_of_a_user() -> None:
    sessions = Sessions(kept=4, per_user=2)
    ada, bob = Identity("ada", "operator"), Identity("bob", "reader")
    first, second, third = (f"{COOKIE}={sessions.begin(ada, 1_000 + number)}" for number in range(3))
    assert [sessions.find(one, 2_000) is not None for one in (first, second, third)] == [False, True, True]
    bobs = f"{COOKIE}={sessions.begin(bob, 2_000)}"
    for number in range(2):
        sessions.begin(Identity(f"user-{number}", "reader"), 3_000)
    assert len(sessions) == 4
    assert sessions.find(second, 3_000) is None, "the oldest went first"
    assert sessions.end_all("ada") == 1
    assert sessions.find(third, 3_000) is None
    assert sessions.find(bobs, 3_000) == bob
    sessions.begin(ada, 3_000 + LIFETIME_MS)
    assert len(sessions) == 1, "what has ended is forgotten"


def test_cursors_are_ours_or_refused() -> None:
    for sort, place in ((Sort.ADDED, "7"), (Sort.DUE, "1700000000000.9"), (Sort.FINISHED, "1.2")):
        position = Position("mail", {"mail": place}, ("other",))
        assert decode_cursor(encode_cursor(position), sort) == position
    assert decode_cursor(None) == Position()
    places = ("-1", "", "1.2.3", "9" * 30, "x")
    odd = [encode_cursor(Position("q", {"q": place})) for place in places]
    for bad in ("!", "e30", "a" * 100, "é", *odd):
        for sort in Sort:
            with pytest.raises(ApiError):
                decode_cursor(bad, sort)
    for sort, place in ((Sort.ADDED, "1.2"), (Sort.DUE, "7"), (Sort.FINISHED, "7")):
        with pytest.raises(ApiError):
            decode_cursor(encode_cursor(Position("q", {"q": place})), sort)


def test_names_in_paths() -> None:
    assert [unescape(text) for text in ("a~1b", "~2~2", "~01", "plain")] == ["a/b", "..", "~1", "plain"]


def test_tokens_have_names() -> None:
    assert to_tokens("x", "operator") == {"operator": "x"}
    assert to_tokens(["x", "y"], "reader") == {"reader-1": "x", "reader-2": "y"}
    assert to_tokens({"ci": "z"}, "reader") == {"ci": "z"}
    assert to_tokens(None, "reader") == {}


def test_static_files_are_exactly_those_of_the_build(tmp_path: Path) -> None:
    static = Static(tmp_path)
    assert static.page("") is None
    (tmp_path / "index.html").write_text('<base href="/">')
    (tmp_path / "run.sh").write_text("no such type")
    assert static.page("/x") == b'<base href="/x/">'
    for name in ("run.sh", "../index.html", "/etc/passwd", "assets", ""):
        assert static.asset(name) is None


async def test_a_list_goes_on_when_its_first_queue_drains_between_two_pages() -> None:
    async with Windlass(f"memory://parts?namespace={new_id()}") as app:
        await app.queue("a").add("t")
        for number in range(6):
            await app.queue("b").add("t", job_id=f"b{number}")
        transport = httpx.ASGITransport(create_app(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            first = (await client.get("/api/v1/jobs?state=waiting&limit=4")).json()
            await app.queue("a").clear()
            address = f"/api/v1/jobs?state=waiting&limit=4&cursor={first['next_cursor']}"
            second = (await client.get(address)).json()
    assert [job["id"] for page in (first, second) for job in page["items"]] == [
        f"b{number}" for number in reversed(range(6))
    ]
