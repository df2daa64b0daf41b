"""Every route and method of the application, asked by everyone who may not, in every way to write it.

The table of routes comes from the application itself: a new route is in it by itself. What is expected
follows from who asks, what the route declares and how the request is written (``expected``).
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
from windlass.dashboard.settings import DashboardSettings
from windlass.errors import ConfigError
from windlass.flows.producer import FlowProducer

backend_name = "memory"

OTHER_OPERATOR = "operator-of-another-queue"
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
    *(
        "/",
        "/schedules",
        "/search",
        "/limits",
        "/audit",
        "/reference",
        "/errors",
        "/flows",
        "/favicon.svg",
        "/assets/{name}",
    ),
    *("/jobs/{queue}/{jid}", "/flows/{queue}/{jid}"),
}
#: Pages for a browser, data for a program.
DATA_PAGES = {
    *("/job-queues", "/job-queues/{queue}", "/scheduled-jobs", "/retries", "/dead-jobs", "/job-metrics"),
    "/worker-processes",
}
HOST = ("Host", "127.0.0.1")


@dataclass
class Answer:
    status: int = 0
    body: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


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
            answer.headers = list(message["headers"])
        answer.body += message.get("body", b"")

    await app(scope, receive, send_it)
    return answer


def holds(answer: Answer, text: str) -> bool:
    """Whether a text is in the body or in a header."""
    parts = [answer.body, *(part for header in answer.headers for part in header)]
    return any(text.encode() in part for part in parts)


@dataclass(frozen=True)
class Entry:
    """One method of one route; ``subject`` is what its handler declares, None where no handler answers."""

    template: str
    method: str
    subject: str | None


def table(guard: Guard) -> list[Entry]:
    """Every path template and method of the application, and the methods that a stranger may try besides."""
    found: dict[tuple[str, str], str | None] = {}
    for route in guard.inner.routes:  # type: ignore[union-attr]
        assert isinstance(route, HTTPRoute)
        template = route.path_format or "/"
        for handler in route.route_handlers:
            for method in handler.http_methods:
                declared = "options" if method == "OPTIONS" else handler.opt["access"].subject
                found[template, method] = declared
        found.setdefault((template, "HEAD"), found.get((template, "GET")))
    return [Entry(template, method, found[template, method]) for template, method in sorted(found)]


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


#: Who asks, by the credentials that they send; all but ``KNOWN`` are strangers.
CALLERS: dict[str, list[tuple[str, str]]] = {
    "no token": [],
    "wrong token": [("Authorization", "Bearer a-token-that-is-wrong")],
    "wrong scheme": [("Authorization", f"Digest {OPERATOR}")],
    "forged cookie": [("Cookie", "windlass_session=forged")],
    "reader": [("Authorization", f"Bearer {READER}")],
    "operator of another queue": [("Authorization", f"Bearer {OTHER_OPERATOR}")],
}
KNOWN = ("reader", "operator of another queue")


@dataclass(frozen=True)
class Way:
    """One way to write a request. ``status`` is what everyone gets for it, if it is no way at all."""

    path: str
    headers: tuple[tuple[str, str], ...] = (HOST,)
    status: int | None = None
    #: Whether the path names another route than the one it is made of, or none.
    elsewhere: bool = False
    #: Whether a browser seems to ask.
    page: bool = False


def ways(path: str, who: str) -> list[Way]:
    """Every way to write a request for a path."""
    upper = [Way(path.upper(), elsewhere=True)] if path.upper() != path else []
    return [Way(path), *upper, *odd_paths(path), *doubled(path, who), *overrides(path), *accepts(path)]


def odd_paths(path: str) -> list[Way]:
    """Slashes, dots and encodings that name no route."""
    head, _, tail = path.rpartition("/")
    written = [
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
    return [Way(odd, status=404) for odd in written]


def doubled(path: str, who: str) -> list[Way]:
    """Headers that stand twice, once as the caller's own and once as what would let in."""
    own = ("Authorization", dict(CALLERS[who]).get("Authorization", "Bearer no"))
    good = ("Authorization", f"Bearer {OPERATOR}")
    pairs = [
        (HOST,),
        (own, good),
        (good, own),
        (("Origin", "http://127.0.0.1"), ("Origin", "http://evil.example")),
        (("Content-Length", "0"), ("Content-Length", "2")),
        tuple(CSRF.items()),
    ]
    return [Way(path, (HOST, *pair), status=400) for pair in pairs]


def overrides(path: str) -> list[Way]:
    """Headers by which some servers take another method or another path."""
    names = ("X-HTTP-Method-Override", "X-HTTP-Method", "X-Method-Override")
    found = [
        Way(path, (HOST, *((name, method) for name in names)))
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")
    ]
    rewritten = ("X-Original-URL", "X-Rewrite-URL", "X-Forwarded-Prefix")
    return [*found, Way(path, (HOST, *((name, "/live") for name in rewritten)))]


def accepts(path: str) -> list[Way]:
    """Both kinds of answer at once, in both orders and in both ways to write it."""
    data, page = ("Accept", "application/json"), ("Accept", "text/html")
    both = ("Accept", "application/json, text/html")
    return [Way(path, (HOST, *given), page=True) for given in ((data, page), (page, data), (page,), (both,))]


#: Routes that answer only with a parameter.
ASKS = {"/api/schedules/preview", "/api/v1/schedules/preview"}
#: What only operators may read.
OPERATORS_READ = {"/api/v1/workers/{identity}/stacks"}


def expected(who: str, entry: Entry, way: Way) -> set[int]:
    """What a caller gets, from who they are, what the route declares and how the request is written."""
    if way.status is not None:
        return {way.status}
    if entry.method == "HEAD" and entry.subject is not None:
        entry = replace(entry, method="GET")  # the same answer without its body
    if way.elsewhere or entry.subject is None:
        return ({404} if way.elsewhere else {405}) if who in KNOWN else {401}
    if entry.template in OPEN and entry.method != "OPTIONS":
        return {"GET": {200, 404}, "POST": {401}, "DELETE": {204}}[entry.method]
    if entry.method == "GET" and (entry.template in PAGES or (way.page and entry.template in DATA_PAGES)):
        return {200, 404, 503}  # no such file, or a checkout without built pages
    if who not in KNOWN:
        return {401}
    return of_reader(entry) if who == "reader" else of_other_operator(entry)


def of_reader(entry: Entry) -> set[int]:
    """What a reader of all queues gets."""
    if entry.method == "GET" and entry.template in OPERATORS_READ:
        return {403}
    return {"GET": read(entry), "OPTIONS": {204}}.get(entry.method, {403})


def read(entry: Entry) -> set[int]:
    """What reading gets: 422 where a route needs a parameter that these requests do not give."""
    return {422} if entry.template in ASKS else {200, 404}


def of_other_operator(entry: Entry) -> set[int]:
    """What an operator of another queue gets."""
    if "{queue}" in entry.template:
        return {404}
    if entry.subject == "store":
        return {403}
    return {"GET": read(entry), "OPTIONS": {204}}.get(entry.method, {400, 404})


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
    "operator_tokens": {"chief": OPERATOR, "other-ops": OTHER_OPERATOR},
    "reader_tokens": {"grafana": READER},
    "rules": [
        Rule(user="chief", actions={"*"}),
        Rule(user="grafana", actions={"*"}),  # the role allows less
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


def test_what_is_open_is_what_we_think() -> None:
    def templates(subject: str) -> set[str]:
        return {entry.template for entry in TABLE if (entry.subject or "").startswith(subject)}

    assert templates("nothing") == OPEN
    assert templates("page") == PAGES | DATA_PAGES
    assert templates("page or") == DATA_PAGES


@pytest.mark.feature("P16")
@pytest.mark.parametrize("who", list(CALLERS))
@pytest.mark.parametrize("where", list(HOSTS))
async def test_every_route_answers_as_it_should_however_it_is_written(
    app: Windlass, where: str, who: str
) -> None:
    host, prefix = HOSTS[where](app, TOKENS)
    for entry in TABLE:
        query = "?seconds=0" if entry.template.endswith("/events") or entry.template == "/api/live" else ""
        for way in ways(written(entry.template), who):
            headers = [*way.headers, *CALLERS[who], *CSRF.items()]
            answer = await ask(host, entry.method, prefix + way.path + query, headers)
            told = (entry, way, answer)
            assert answer.status in expected(who, entry, way), told
            if who != "reader" or answer.status != 200:
                assert not holds(answer, SECRET), told
    await untouched(app)


@pytest.mark.feature("P16")
async def test_an_operator_of_another_queue_cannot_name_this_one_in_a_body(app: Windlass) -> None:
    headers = {"Authorization": f"Bearer {OTHER_OPERATOR}"}
    bulk = {"action": "delete", "refs": [{"queue": QUEUE, "id": JOB}]}
    async with api(app, headers=headers, **TOKENS) as client:
        await send(client, "POST", "/api/jobs/bulk", 404, bulk)
        await send(
            client, "POST", "/api/jobs/bulk", 200, {"action": "delete", "filter": {"state": ["waiting"]}}
        )
        await get(client, "/api/jobs", 404, queue=QUEUE)
        await get(client, "/api/nowhere", 404)
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
    grant = partial(Grant, DashboardSettings(rules=(rule,)))
    assert not grant(Identity("ada1", "reader", ("ops[eu]",))).may_somewhere("read")
    assert not grant(Identity("ada[1]", "reader", ("opse",))).may_somewhere("read")
    mine = grant(Identity("ada[1]", "reader", ("ops[eu]",)))
    assert mine.may_somewhere("read")
    assert not mine.may("shope", "read")
    assert not DashboardSettings(queues=("shop[eu]",)).shows("shopu")
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
