"""Sign-in as people deploy it: a provider, a proxy, the user of the application around the dashboard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import RSAKey

from tests.http.provider import CLIENT, CLIENT_SECRET, FakeProvider, provider
from tests.http.support import FREE, OPERATOR, api, get, send
from windlass import Windlass
from windlass.core.ids import new_id
from windlass.dashboard import OpenID, Roles, Rule, TrustedProxy, create_app
from windlass.errors import ConfigError

backend_name = "memory"
HERE = "http://127.0.0.1:8080"
ROLES = Roles(operator_groups=["ops"], reader_users=["ada"])


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass(f"memory://signin?namespace={new_id()}") as app:
        await app.queue("mail").add("send", job_id="one")
        await app.queue("shop").add("send", job_id="two")
        yield app


@pytest.fixture
async def fake() -> AsyncIterator[FakeProvider]:
    async with provider() as fake:
        yield fake


def openid(fake: FakeProvider, **more: Any) -> OpenID:
    given = {"client_id": CLIENT, "client_secret": CLIENT_SECRET, "public_url": HERE, "roles": ROLES}
    return OpenID(issuer=fake.issuer, **{**given, **more})


async def visit(client: httpx.AsyncClient) -> str:
    """To the provider and back: the path that the browser comes back with."""
    begun = await client.get("/api/session/openid")
    assert begun.status_code == 302, begun.text
    cookie = begun.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Lax"} <= set(cookie.split("; "))
    async with httpx.AsyncClient() as browser:
        back = (await browser.get(begun.headers["location"])).headers["location"]
    assert back.startswith(f"{HERE}/api/session/openid/callback?")
    return back


# --- OpenID Connect ----------------------------------------------------------------------------


async def test_a_user_signs_in_at_a_provider(app: Windlass, fake: FakeProvider) -> None:
    async with api(app, openid=openid(fake)) as client:
        assert (await get(client, "/api/session"))["auth"] == ["openid"]
        assert (await client.get("/api/jobs")).status_code == 401
        answer = await client.get(await visit(client))
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        session = await get(client, "/api/session")
        assert (session["user"], session["role"]) == ("ada", "reader")
        await get(client, "/api/jobs")
        await send(client, "POST", "/api/job-queues/mail/pause", 403)
        fake.claims = {"sub": "eve", "groups": ["staff", "ops"]}
        await client.get(await visit(client))
        newest = (await get(client, "/api/audit"))["items"][0]
        assert (newest["who"], newest["facts"]) == ("eve", {"session": "begun"})
        await send(client, "POST", "/api/job-queues/mail/pause", 204)
        await send(client, "DELETE", "/api/session", 204)
        await get(client, "/api/jobs", 401)


async def test_a_sign_in_at_a_provider_is_in_the_audit_log(app: Windlass, fake: FakeProvider) -> None:
    async with api(app, openid=openid(fake)) as client:
        await client.get(await visit(client))
        await client.get("/api/session/openid/callback?state=forged&code=forged")
        page = await get(client, "/api/audit")
        assert [(item["who"], item["action"], item["facts"]) for item in page["items"]] == [
            ("ada", "GET /api/session/openid/callback", {"session": "begun"})
        ]
        assert page["refused"] == {"401": 1}


async def test_groups_of_the_provider_meet_the_rules(app: Windlass, fake: FakeProvider) -> None:
    rules = [Rule(group="ops", queues=["mail"], actions={"read", "pause"})]
    fake.claims = {"groups": ["ops"]}
    async with api(app, openid=openid(fake), rules=rules) as client:
        await client.get(await visit(client))
        await send(client, "POST", "/api/job-queues/mail/pause", 204)
        await send(client, "POST", "/api/job-queues/shop/pause", 404)
        await send(client, "DELETE", "/api/jobs/mail/one", 403)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"},
        {"aud": "another client"},
        {"aud": "another client", "azp": CLIENT},
        {"aud": ["another client", CLIENT], "azp": "another client"},
        {"exp": 1},
        {"nonce": "of another sign-in"},
        {"nonce": None},
        {"iat": 99_999_999_999},
    ],
)
async def test_a_proof_that_is_not_for_this_sign_in_is_refused(
    app: Windlass, fake: FakeProvider, claims: dict[str, Any]
) -> None:
    fake.claims = claims
    async with api(app, openid=openid(fake)) as client:
        assert (await client.get(await visit(client))).status_code == 401
        await get(client, "/api/jobs", 401)


async def test_a_proof_with_another_signature_is_refused(app: Windlass, fake: FakeProvider) -> None:
    fake.signing_key = RSAKey.generate_key(2048, {"kid": "one"})
    async with api(app, openid=openid(fake)) as client:
        assert (await client.get(await visit(client))).status_code == 401
        fake.key = fake.signing_key
        assert (await client.get(await visit(client))).status_code == 303, "keys that changed are read again"


async def test_a_way_back_that_was_not_begun_here_is_refused(app: Windlass, fake: FakeProvider) -> None:
    async with api(app, openid=openid(fake)) as client:
        back = await visit(client)
        code = parse_qs(urlsplit(back).query)["code"][0]
        for path in (
            f"/api/session/openid/callback?code={code}&state=forged",
            f"/api/session/openid/callback?code={code}",
            "/api/session/openid/callback",
            "/api/session/openid/callback?error=access_denied",
            back.replace(code, "another-code"),
        ):
            assert (await client.get(path)).status_code == 401, path
        cookie = client.cookies["windlass_signin"]
        client.cookies.clear()
        assert (await client.get(back)).status_code == 401, "another browser"
        forged = {"Cookie": f"windlass_signin={cookie[:-1]}{'0' if cookie[-1] != '0' else '1'}"}
        assert (await client.get(back, headers=forged)).status_code == 401
        assert (await client.get(back, headers={"Cookie": f"windlass_signin={cookie}"})).status_code == 303
        client.cookies.clear()
        again = await client.get(back, headers={"Cookie": f"windlass_signin={cookie}"})
        assert again.status_code == 401, "a code is good for once"


async def test_a_user_without_a_role_is_refused(app: Windlass, fake: FakeProvider) -> None:
    async with api(app, openid=openid(fake)) as client:
        for claims in (
            {"sub": "mallory"},
            {"sub": "ops"},
            {"sub": "x", "groups": [7, {"ops": 1}]},
            {"sub": "x", "groups": {"ops": False}},
            {"sub": "x", "groups": 7},
        ):
            fake.claims = claims
            assert (await client.get(await visit(client))).status_code == 403, claims
            await get(client, "/api/jobs", 401)
    by_mail = openid(fake, user_claim="email", roles=Roles(reader_users=["ada@example.com"]))
    async with api(app, openid=by_mail) as client:
        said: Any
        for said in (False, "false", "no", None, 0, [], {"by": "hand"}):
            fake.claims = {"email": "ada@example.com", "email_verified": said}
            assert (await client.get(await visit(client))).status_code == 403, "it was not verified"
        for said in (True, "true"):
            fake.claims = {"email": "ada@example.com", "email_verified": said}
            assert (await client.get(await visit(client))).status_code == 303


async def test_a_provider_that_is_another_one_signs_in_no_one(app: Windlass, fake: FakeProvider) -> None:
    settings = openid(fake)
    fake.issuer = "https://evil.example"
    async with api(app, openid=settings) as client:
        assert (await client.get("/api/session/openid")).status_code == 503
    async with api(app, operator_tokens=OPERATOR) as client:
        assert (await client.get("/api/session/openid")).status_code == 404, "none was named"


@pytest.mark.parametrize("name", ["issuer", "public_url"])
def test_a_provider_is_reached_over_tls(name: str) -> None:
    given: dict[str, Any] = {
        "issuer": "https://a.example",
        "public_url": "https://b.example",
        "client_id": "x",
    }
    with pytest.raises(ConfigError):
        OpenID(**{**given, name: "http://a.example"})


# --- a proxy in front --------------------------------------------------------------------------


async def ask(guard: Any, peer: str, headers: dict[str, str], path: str = "/api/session") -> httpx.Response:
    transport = httpx.ASGITransport(guard, client=(peer, 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://jobs.example") as client:
        return await client.get(path, headers=headers)


async def test_only_the_named_proxy_says_who_asks(app: Windlass) -> None:
    proxy = TrustedProxy(addresses=["10.0.0.0/8"], roles=ROLES, secret="shared with the proxy")
    guard = create_app(app, proxy=proxy, limits=FREE)
    user = {"X-Forwarded-User": "ada", "X-Windlass-Proxy-Secret": "shared with the proxy"}
    assert (await ask(guard, "10.1.2.3", user)).json()["user"] == "ada"
    ops = await ask(guard, "10.1.2.3", {**user, "X-Forwarded-Groups": "staff, ops"})
    assert ops.json()["role"] == "operator"
    for peer, headers in [
        ("192.0.2.1", user),
        ("127.0.0.1", user),
        ("not an address", user),
        ("10.1.2.3", {"X-Forwarded-User": "ada"}),
        ("10.1.2.3", {**user, "X-Windlass-Proxy-Secret": "guessed by another one"}),
        ("10.1.2.3", {**user, "X-Forwarded-User": "mallory"}),
        ("10.1.2.3", {**user, "X-Forwarded-User": "ops"}),
        ("10.1.2.3", {**user, "X-Forwarded-User": ""}),
    ]:
        assert (await ask(guard, peer, headers, "/api/jobs")).status_code == 401, (peer, headers)
    twice = [("X-Forwarded-User", "mallory"), *user.items()]
    transport = httpx.ASGITransport(guard, client=("10.1.2.3", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://jobs.example") as client:
        assert (await client.get("/api/jobs", headers=twice)).status_code == 400


async def test_the_address_of_a_client_comes_only_through_a_trusted_proxy(app: Windlass) -> None:
    guard = create_app(
        app,
        operator_tokens=OPERATOR,
        limits=FREE,
        proxy=TrustedProxy(addresses=["10.0.0.1", "10.0.0.2"], user_header=None),
    )
    for peer, forwarded, expected in [
        ("192.0.2.1", "127.0.0.1", "192.0.2.1"),
        ("10.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("10.0.0.1", "127.0.0.1, 203.0.113.9, 10.0.0.2", "203.0.113.9"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "203.0.113.9:50001", "203.0.113.9"),
        ("10.0.0.1", "203.0.113.9, 10.0.0.2:443", "203.0.113.9"),
        ("10.0.0.1", '"[2001:db8::9]:50001"', "2001:db8::9"),
        ("10.0.0.1", "203.0.113.9, unknown", "10.0.0.1"),
    ]:
        transport = httpx.ASGITransport(guard, client=(peer, 1))
        headers = {"Authorization": f"Bearer {OPERATOR}", "X-Forwarded-Proto": "https"}
        headers |= {"X-Forwarded-For": forwarded} if forwarded else {}
        async with httpx.AsyncClient(transport=transport, base_url="http://x", headers=headers) as client:
            assert (await client.post("/api/job-queues/mail/pause")).status_code == 204
            assert (await client.get("/api/audit")).json()["items"][0]["client"] == expected
            signed_in = await client.post("/api/session", json={"token": OPERATOR})
            assert ("Secure" in signed_in.headers["set-cookie"]) == (peer != "192.0.2.1")


async def test_a_proxy_that_names_no_users_is_no_sign_in(app: Windlass) -> None:
    proxy = TrustedProxy(addresses=["127.0.0.1"], user_header=None)
    guard = create_app(app, proxy=proxy, limits=FREE)
    for headers in ({"X-Forwarded-For": "127.0.0.1"}, {"X-Forwarded-User": "ada", "Via": "x"}):
        given = {**headers, "Host": "127.0.0.1"}
        assert (await ask(guard, "127.0.0.1", given, "/api/jobs")).status_code == 403


@pytest.mark.parametrize(
    "options", [{"addresses": []}, {"addresses": "10.0.0.1"}, {"addresses": ["x"]}, {"secret": "short"}]
)
def test_a_proxy_that_cannot_be_told_apart_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        TrustedProxy(**{"addresses": ["10.0.0.1"], **options})
