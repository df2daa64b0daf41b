"""Every route and method of the application, asked by everyone who may not, in every way to write it.

The table of routes comes from the application itself: a new route is in it by itself.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import unquote

import pytest
from litestar import get as litestar_get
from litestar.routes import HTTPRoute
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.http.support import CSRF, FREE, OPERATOR, READER, api, get, send
from windlass import Windlass, Worker
from windlass.core.ids import new_id
from windlass.dashboard import Identity, Roles, Rule, create_app
from windlass.dashboard.access import Grant
from windlass.dashboard.guard import Guard
from windlass.dashboard.routes import server
from windlass.dashboard.settings import Settings
from windlass.errors import ConfigError
from windlass.flows import FlowProducer

backend_name = "memory"

STRANGER_OF_QUEUE = "operator-of-another-queue"
#: Stands in every job of the queue and in the name of a further queue; in no path and no answer here.
SECRET = "kestrel"
QUEUE = "mail"
JOB = "one"
PARAMETERS = {"queue": QUEUE, "action": "stop"} | dict.fromkeys(("jid", "identity", "name", "group"), JOB)
#: What needs no sign-in, by its declaration; said twice on purpose.
OPEN = {
    *("/live", "/ready", "/health", "/api/session"),
    *("/api/session/openid", "/api/session/openid/callback"),  # without a provider they are not there
}
PAGES = {
    *("/", "/schedules", "/search", "/limits", "/audit", "/favicon.svg", "/assets/{name}"),
    *("/jobs/{queue}/{jid}", "/flows/{queue}/{jid}"),
}
#: Pages for a browser, data for a program.
DATA_PAGES = {
    *("/job-queues", "/job-queues/{queue}", "/scheduled-jobs", "/retries", "/dead-jobs", "/job-metrics"),
    "/worker-processes",
}


@dataclass
class Answer:
    status: int = 0
    body: bytes = b""
    headers: dict[bytes, bytes] = field(default_factory=dict)


async def ask(app: Any, method: str, path: str, headers: list[tuple[str, str]]) -> Answer:
    """One request as a server hands it on: the path decoded, and raw. The client leaves at once."""
    answer = Answer()
    bare, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": unquote(bare),
        "raw_path": bare.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "scheme": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "state": {},
    }
    bodies = iter([{"type": "http.request", "body": b"{}", "more_body": False}])

    async def receive() -> Any:
        return next(bodies, {"type": "http.disconnect"})

    async def send_it(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = dict(message["headers"])
        answer.body += message.get("body", b"")

    await app(scope, receive, send_it)
    return answer


def table(guard: Guard) -> list[tuple[str, str]]:
    """Every path template and method of the application."""
    found = []
    for route in guard.inner.routes:  # type: ignore[union-attr]
        assert isinstance(route, HTTPRoute)
        found += [(route.path_format or "/", method) for method in sorted({*route.methods, "HEAD"})]
    return sorted(set(found))


TABLE = table(create_app("memory://table"))


def written(template: str) -> str:
    return template.format(**PARAMETERS)


def in_starlette(guard: Guard) -> tuple[Any, str]:
    return Starlette(routes=[Mount("/admin", guard)]), "/admin"


HOSTS: dict[str, Callable[[Windlass, dict[str, Any]], tuple[Any, str]]] = {
    "alone": lambda app, options: (create_app(app, **options), ""),
    "prefixed": lambda app, options: (create_app(app, prefix="/jobs-admin", **options), "/jobs-admin"),
    "mounted": lambda app, options: in_starlette(create_app(app, **options)),
}


def odd_paths(path: str) -> list[str]:
    """Ways to write a path that name no route."""
    head, _, tail = path.rpartition("/")
    return [
        f"/{path}",
        path.replace("/", "//"),
        f"{path}/",
        f"{path}//",
        f"/.{path}",
        f"/x/..{path}",
        f"/%2e{path}",
        f"/x/%2e%2e{path}",
        f"/%2F{path[1:]}",
        f"{head}%2f{tail}",
        f"{head}%5c{tail}",
        f"{head}\\{tail}",
        f"{path}%00",
        f"{path}%0d%0a",
    ]


def callers() -> dict[str, list[tuple[str, str]]]:
    host = ("Host", "127.0.0.1")
    return {
        "no token": [host],
        "wrong token": [host, ("Authorization", "Bearer a-token-that-is-wrong")],
        "wrong scheme": [host, ("Authorization", f"Digest {OPERATOR}")],
        "forged cookie": [host, ("Cookie", "windlass_session=forged")],
        "override": [
            host,
            ("X-HTTP-Method-Override", "GET"),
            ("X-HTTP-Method", "GET"),
            ("X-Method-Override", "GET"),
        ],
        "rewritten": [
            host,
            ("X-Original-URL", "/live"),
            ("X-Rewrite-URL", "/live"),
            ("X-Forwarded-Prefix", "/live"),
        ],
    }


def doubled() -> list[list[tuple[str, str]]]:
    """Headers that stand twice, once as a stranger's and once as what would let in."""
    host, good = ("Host", "127.0.0.1"), f"Bearer {OPERATOR}"
    return [
        [host, host],
        [host, ("Authorization", "Bearer no"), ("Authorization", good)],
        [host, ("Authorization", good), ("Authorization", "Bearer no")],
        [host, ("Origin", "http://127.0.0.1"), ("Origin", "http://evil.example")],
        [host, ("Content-Length", "0"), ("Content-Length", "2")],
    ]


def accepts() -> list[list[tuple[str, str]]]:
    host = ("Host", "127.0.0.1")
    return [
        [host, ("Accept", "application/json"), ("Accept", "text/html")],
        [host, ("Accept", "text/html"), ("Accept", "application/json")],
    ]


def expected(template: str, method: str, as_page: bool) -> set[int]:
    """What a stranger gets."""
    if template in OPEN and method not in ("OPTIONS", "HEAD"):
        return {200, 404, 503} if method == "GET" else {204, 401, 403}
    if method == "GET" and (template in PAGES or as_page):
        return {200, 404, 503}
    return {401}


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass(f"memory://access?namespace={new_id()}") as app:
        await app.queue(QUEUE).add(SECRET, {SECRET: SECRET}, job_id=JOB, tags=[SECRET])
        await app.queue(f"{SECRET}-queue").add(SECRET)
        await app.queue("other").add("plain", job_id="plain")
        await app.queue(QUEUE).upsert_job_scheduler(JOB, {"every": 3_600}, {"name": SECRET})
        await app.mark("deployed")
        yield app


TOKENS: dict[str, Any] = {
    "operator_tokens": {"chief": OPERATOR, "other-ops": STRANGER_OF_QUEUE},
    "reader_tokens": {"grafana": READER},
    "rules": [
        Rule(user="chief", actions={"*"}),
        Rule(user="grafana"),
        Rule(user="other-ops", queues=["other"], actions={"*"}),
    ],
    "limits": replace(FREE, refusal_burst=1_000_000),
}


async def untouched(app: Windlass) -> None:
    queue = app.queue(QUEUE)
    job = await queue.get_job(JOB)
    assert job is not None
    assert job.state == "waiting"
    assert await queue.get_job_scheduler(JOB) is not None
    assert not await queue.is_paused()
    assert await queue.count() == 1


@pytest.mark.feature("P16")
@pytest.mark.parametrize("where", list(HOSTS))
async def test_no_route_answers_a_stranger(app: Windlass, where: str) -> None:
    host, prefix = HOSTS[where](app, TOKENS)
    for template, method in TABLE:
        path = prefix + written(template)
        for name, headers in callers().items():
            answer = await ask(host, method, path, headers)
            assert answer.status in expected(template, method, False), (name, method, path, answer.status)
            assert SECRET.encode() not in answer.body, (name, method, path)
        for headers in accepts():
            answer = await ask(host, method, path, headers)
            assert answer.status in expected(template, method, template in DATA_PAGES), (method, path)
            assert SECRET.encode() not in answer.body, (headers, method, path)
        for headers in doubled():
            answer = await ask(host, method, path, headers)
            assert answer.status == 400, (headers, method, path, answer.status)
    await untouched(app)


@pytest.mark.feature("P16")
@pytest.mark.parametrize("where", list(HOSTS))
async def test_a_path_that_is_not_canonical_names_no_route_for_anyone(app: Windlass, where: str) -> None:
    host, prefix = HOSTS[where](app, TOKENS)
    for template, method in TABLE:
        if template == "/":
            continue
        for odd in odd_paths(written(template)):
            for token in ("", OPERATOR, READER):
                headers = [("Host", "127.0.0.1"), *CSRF.items()]
                headers += [("Authorization", f"Bearer {token}")] if token else []
                answer = await ask(host, method, prefix + odd, headers)
                assert answer.status == 404, (method, prefix + odd, token, answer.status)
                assert SECRET.encode() not in answer.body
    await untouched(app)


@pytest.mark.feature("P16")
async def test_upper_case_and_unknown_paths_tell_a_stranger_nothing(app: Windlass) -> None:
    guard = create_app(app, **TOKENS)
    for template, method in TABLE:
        path = written(template).upper()
        if path in ("/",) or path == written(template):
            continue
        assert (await ask(guard, method, path, [("Host", "127.0.0.1")])).status == 401, (method, path)
    assert (await ask(guard, "GET", "/api/nowhere", [("Host", "127.0.0.1")])).status == 401


@pytest.mark.feature("P16")
@pytest.mark.parametrize("where", list(HOSTS))
async def test_a_reader_changes_nothing_by_any_route(app: Windlass, where: str) -> None:
    host, prefix = HOSTS[where](app, TOKENS)
    headers = [("Host", "127.0.0.1"), ("Authorization", f"Bearer {READER}"), *CSRF.items()]
    for template, method in TABLE:
        if method in ("GET", "HEAD", "OPTIONS") or template in OPEN:
            continue
        answer = await ask(host, method, prefix + written(template), headers)
        assert answer.status == 403, (method, template, answer.status, answer.body)
        override = [*headers, ("X-HTTP-Method-Override", method)]
        answer = await ask(host, "GET", prefix + written(template), override)
        assert answer.status in (200, 404, 405), (method, template, answer.status)
    await untouched(app)


@pytest.mark.feature("P16")
@pytest.mark.parametrize("where", list(HOSTS))
async def test_an_operator_of_another_queue_sees_and_changes_nothing_of_this_one(
    app: Windlass, where: str
) -> None:
    host, prefix = HOSTS[where](app, TOKENS)
    headers = [("Host", "127.0.0.1"), ("Authorization", f"Bearer {STRANGER_OF_QUEUE}"), *CSRF.items()]
    for template, method in TABLE:
        if template in PAGES or template in OPEN or method in ("HEAD", "OPTIONS"):
            continue
        path = prefix + written(template)
        query = "?seconds=0" if template.endswith(("/live", "/events")) else ""
        answer = await ask(host, method, path + query, headers)
        if "{queue}" in template:
            assert answer.status == 404, (method, template, answer.status)
        elif method == "GET":
            assert answer.status in (200, 403, 404), (method, template, answer.status)
        else:
            assert answer.status in (400, 403, 404), (method, template, answer.status)
        assert SECRET.encode() not in answer.body, (method, template, answer.body)
    bulk = {"action": "delete", "refs": [{"queue": QUEUE, "id": JOB}]}
    async with api(app, headers=dict(headers[1:]), **TOKENS) as client:
        await send(client, "POST", "/api/jobs/bulk", 404, bulk)
        await send(
            client, "POST", "/api/jobs/bulk", 200, {"action": "delete", "filter": {"state": ["waiting"]}}
        )
        await get(client, "/api/jobs", 404, queue=QUEUE)
        await send(client, "POST", "/api/flows", 404, {"task": "x", "queue": QUEUE})
        assert (await get(client, "/api/job-queues"))[0]["name"] == "other"
    assert await app.queue("other").count() == 0, "what is theirs they may delete"
    await untouched(app)


@pytest.mark.feature("P16")
async def test_rules_allow_actions_and_deny_the_rest(app: Windlass) -> None:
    rules = [
        Rule(user="ops-*", queues=["mail*"], actions={"read", "retry", "cancel"}),
        Rule(group="oncall", queues=["mail"], actions={"read", "pause"}),
    ]

    def who(scope: Any) -> Identity | None:
        name, _, group = dict(scope["headers"]).get(b"x-user", b"").decode().partition("/")
        return Identity(name, "operator", (group,) if group else ()) if name else None

    await app.queue("mail").add("send", job_id="one")
    await app.queue("shop").add("send", job_id="two")
    async with api(app, auth=who, rules=rules) as client:
        for user, method, path, status in [
            ("ops-ada", "POST", "/api/jobs/mail/one/cancel", 200),
            ("ops-ada", "DELETE", "/api/jobs/mail/one", 403),
            ("ops-ada", "POST", "/api/job-queues/mail/pause", 403),
            ("ops-ada", "POST", "/api/jobs/shop/two/cancel", 404),
            ("ops-ada", "GET", "/api/jobs/shop/two", 404),
            ("ops-ada", "GET", "/api/audit", 403),
            ("ops-ada", "DELETE", "/api/dead-jobs/one", 403),
            ("ops-ada", "POST", "/api/processes/x/stop", 403),
            ("bob/oncall", "POST", "/api/job-queues/mail/pause", 204),
            ("bob/oncall", "POST", "/api/jobs/mail/one/retry", 403),
            ("bob", "GET", "/api/jobs", 403),
            ("bob", "GET", "/api/jobs/mail/one", 403),
            ("", "GET", "/api/jobs", 401),
        ]:
            answer = await client.request(method, path, headers={"X-User": user})
            assert answer.status_code == status, (user, method, path, answer.text)
        seen = await client.get("/api/job-queues", headers={"X-User": "ops-ada"})
        assert [queue["name"] for queue in seen.json()] == ["mail"]
        assert "shop" not in (await client.get("/metrics", headers={"X-User": "ops-ada"})).text
        live = await client.get("/api/live?seconds=0", headers={"X-User": "ops-ada"})
        assert "shop" not in live.text
        assert "mail" in live.text
    async with api(
        app, headers={"Authorization": f"Bearer {OPERATOR}"}, operator_tokens=OPERATOR, rules=[]
    ) as client:
        await get(client, "/api/jobs", 403)


def test_brackets_in_a_rule_stand_for_themselves() -> None:
    rule = Rule(user="ada[1]", group="ops[eu]", queues=["shop[eu]"])
    grant = partial(Grant, Settings(rules=(rule,)))
    assert not grant(Identity("ada1", "reader", ("ops[eu]",))).somewhere("read")
    assert not grant(Identity("ada[1]", "reader", ("opse",))).somewhere("read")
    mine = grant(Identity("ada[1]", "reader", ("ops[eu]",)))
    assert mine.somewhere("read")
    assert not mine.may("shope", "read")
    assert not Settings(queues=("shop[eu]",)).shows("shopu")
    assert Roles(operator_users=["ada[1]"]).identity("ada1") is None


async def test_a_job_whose_child_failed_does_not_tell_of_a_hidden_queue(app: Windlass) -> None:
    async def fail(job: Any) -> None:
        raise ValueError("no")

    child = {"name": "pay", "queue": SECRET, "options": {"job_id": "low", "max_attempts": 1}}
    tree = {"name": "top", "queue": "shop", "options": {"job_id": "top"}, "children": [child]}
    top = await FlowProducer(app).add(tree)
    async with Worker(SECRET, fail, url_or_app=app):
        await top.job.wait_until_finished(30)
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    paths = [f"/api/jobs/shop/top{end}" for end in ("", "/timeline", "/events?seconds=0")]
    paths += ["/api/jobs?queue=shop", "/api/dead-jobs", "/api/job-queues/shop/events?after=0&seconds=0"]
    for rules, told in (([Rule(queues=["shop"])], False), (None, True)):
        async with api(app, headers=headers, operator_tokens=OPERATOR, rules=rules) as client:
            for path in paths:
                text = (await client.get(path)).text
                assert "did not complete" in text, path
                assert (SECRET in text) is told, path
            found = await get(client, "/api/jobs", queue="shop", q=SECRET)
            assert bool(found["items"]) is told


@pytest.mark.parametrize("verb", [("POST", "/cancel", "cancel"), ("DELETE", "", "delete")])
async def test_ending_a_flow_reaches_no_other_queue_however_deep_it_is(
    app: Windlass, verb: tuple[str, str, str]
) -> None:
    method, end, action = verb
    tree: dict[str, Any] = {"name": "low", "queue": "vault", "options": {"job_id": "low", "delay": 100}}
    for number in range(120):
        tree = {"name": "n", "queue": "mail", "options": {"job_id": f"n{number}"}, "children": [tree]}
    await FlowProducer(app).add(tree)
    rules = [Rule(queues=["mail"], actions={"read", action})]
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    async with api(app, headers=headers, operator_tokens=OPERATOR, rules=rules) as client:
        await send(client, method, f"/api/flows/mail/n119{end}", 404)
    for queue, job_id in (("vault", "low"), ("mail", "n119")):
        job = await app.queue(queue).get_job(job_id)
        assert job is not None
        assert job.state in ("scheduled", "blocked")
    async with api(app) as client:
        assert (await send(client, method, f"/api/flows/mail/n119{end}", 200))["count"] == 121


@pytest.mark.parametrize(
    "options", [{"actions": {"fly"}}, {"queues": []}, {"queues": "mail"}, {"actions": "read"}]
)
def test_a_rule_that_cannot_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Rule(**options)


def test_a_handler_that_declares_nothing_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    @litestar_get("/api/new")
    async def new() -> None:
        """Forgot to say."""

    monkeypatch.setattr(server, "HANDLERS", [*server.HANDLERS, new])
    with pytest.raises(ConfigError, match="access"):
        create_app("memory://undeclared")


async def test_a_web_socket_is_closed(app: Windlass) -> None:
    sent: list[Any] = []

    async def send_it(message: Any) -> None:
        sent.append(message)

    scope: Any = {"type": "websocket", "path": "/api/live", "headers": [], "client": ("127.0.0.1", 1)}
    await create_app(app, **TOKENS)(scope, None, send_it)  # type: ignore[arg-type]
    assert [message["type"] for message in sent] == ["websocket.close"]
