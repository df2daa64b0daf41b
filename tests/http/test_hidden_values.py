"""Masked values and hidden queues do not get out by a side door: exports, events, options, flows."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.security_support import OPERATOR_HEADERS
from tests.http.support import OPERATOR, api, get, send
from windlass import Windlass, Worker
from windlass.backends.sqlite import inspection
from windlass.core.ids import new_id
from windlass.dashboard import DEFAULT_MASK, Identity, Rule, create_app, views
from windlass.dashboard.headers import Headers
from windlass.errors import ConfigError
from windlass.flows.producer import FlowProducer
from windlass.jobs.exported import read_job
from windlass.testing import ManualClock

backend_name = "memory"

SECRET = "hunter2-hunter2"
HIDDEN_QUEUE = "vault"
EXPORT = "/api/v1/jobs/export"
#: Of a secret that stands in base64 at any offset, a part that is the same text each time.
PARTS = [base64.b64encode(b"x" * shift + SECRET.encode())[4:12].decode() for shift in range(3)]


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass(f"memory://hidden?namespace={new_id()}") as app:
        yield app


def shows_secret(text: str) -> bool:
    return SECRET in text or any(part in text for part in PARTS)


async def run_one(app: Windlass) -> None:
    """A job whose progress, signal, result and event have a masked field."""
    queue = app.queue("mail")

    async def handle(job: Any) -> dict[str, str]:
        await job.update_progress({"password": SECRET})
        await queue.publish_event("step", {"api_token": SECRET}, job_id=job.id)
        return {"to": "ada", "token": SECRET}

    job = await queue.add("send", job_id="one", delay=100)
    await queue.signal("one", "go", {"secret": SECRET})
    await job.promote()
    async with Worker("mail", handle, url_or_app=app):
        await job.wait_until_finished(30)


async def test_an_export_holds_no_masked_field_of_results_progress_and_signals(app: Windlass) -> None:
    await run_one(app)
    await app.queue("mail").add("plain", job_id="two")
    async with api(app) as client:
        text = (await client.get(EXPORT)).text
        assert '"job_id":"one"' in text
        assert not shows_secret(text)
    async with api(app, mask=[]) as client:
        assert shows_secret((await client.get(EXPORT)).text)


async def test_an_export_keeps_a_result_without_masked_fields(app: Windlass) -> None:
    async def handle(job: Any) -> dict[str, str]:
        return {"to": "ada"}

    job = await app.queue("mail").add("send")
    async with Worker("mail", handle, url_or_app=app):
        await job.wait_until_finished(30)
    async with api(app) as client:
        assert base64.b64encode(b'{"to":"ada"}').decode() in (await client.get(EXPORT)).text


class Sealed:
    """A value of the application that shows nothing of what it has."""

    def __init__(self, token: str) -> None:
        self.token = token

    def __str__(self) -> str:
        return "sealed"


class OwnCodec:
    """A codec of the application whose values are no plain data."""

    name = "own"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, default=lambda sealed: {"held": sealed.token}).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data, object_hook=lambda found: Sealed(found["held"]) if "held" in found else found)


async def test_an_export_holds_no_bytes_of_a_codec_whose_fields_are_not_known() -> None:
    async def handle(job: Any) -> Sealed:
        return Sealed(SECRET)

    async with Windlass(f"memory://own?namespace={new_id()}", codec=OwnCodec()) as app:
        job = await app.queue("mail").add("send", {"to": "ada"})
        async with Worker("mail", handle, url_or_app=app):
            await job.wait_until_finished(30)
        async with api(app) as client:
            text = (await client.get(EXPORT)).text
            assert '"to":"ada"' in text
            assert not shows_secret(text)
        async with api(app, mask=[]) as client:
            assert shows_secret((await client.get(EXPORT)).text)


@pytest.mark.parametrize("codec", ["json+tagged", "msgpack"])
async def test_an_export_holds_no_masked_field_beside_keys_that_are_no_texts(codec: str) -> None:
    async with Windlass(f"memory://keys?namespace={new_id()}", codec=codec) as app:
        await app.queue("mail").add("send", {"by": {1: "one", "password": SECRET}})
        async with api(app) as client:
            text = (await client.get(EXPORT)).text
            assert '"one"' in text
            assert not shows_secret(text)


async def test_names_that_are_bytes_are_masked_like_texts() -> None:
    """MessagePack keeps such keys, and JSON would show them in base64."""

    async def handle(job: Any) -> dict[bytes, str]:
        await job.update_progress({b"pin": SECRET})
        return {b"pin": SECRET}

    async with Windlass(f"memory://keys?namespace={new_id()}", codec="msgpack") as app:
        queue = app.queue("mail")
        data = {"by": [{b"pin": SECRET, b"to": "ada"}]}
        job = await queue.add("send", data, job_id="one")
        await queue.upsert_job_scheduler("s", {"every": 60}, {"name": "send", "data": data})
        async with Worker("mail", handle, url_or_app=app):
            await job.wait_until_finished(30)
        paths = ("/api/jobs", "/api/jobs/mail/one", "/api/job-queues/mail/jobs?state=completed")
        async with api(app, mask=["pin"]) as client:
            for path in (*paths, "/api/schedules", EXPORT, f"{EXPORT}?format=csv"):
                text = (await client.get(path)).text
                assert "send" in text and not shows_secret(text), path
            assert '"to":"ada"' in (await client.get("/api/jobs/mail/one")).text
            found = await get(client, "/api/jobs", search=SECRET)
            assert found["items"] == []


async def test_fallbacks_are_masked_like_arguments(app: Windlass) -> None:
    await app.queue("mail").add(
        "send", job_id="one", delay=100, fallbacks=[{"model": "small", "api_key": SECRET}]
    )
    for mask, kept in ((DEFAULT_MASK, "small"), (["*"], "fallbacks"), ([], SECRET)):
        async with api(app, mask=mask) as client:
            for path in ("/api/jobs/mail/one", "/api/v1/jobs/mail/one/page", EXPORT):
                text = (await client.get(path)).text
                assert kept in text, path
                assert shows_secret(text) is (mask == []), path


async def test_an_export_says_which_arguments_it_cannot_write() -> None:
    async with Windlass(f"memory://own?namespace={new_id()}", codec=OwnCodec()) as app:
        await app.queue("mail").add("send", {"it": Sealed(SECRET)})
        async with api(app, mask=[]) as client:
            (line,) = (await client.get(EXPORT)).text.splitlines()
            assert json.loads(line)["unreadable"] is True


async def test_an_export_leaves_out_what_takes_long_to_mask(app: Windlass) -> None:
    large = "x" * (views.PREVIEWED_BYTES + 1)

    async def handle(job: Any) -> str:
        return large

    job = await app.queue("mail").add("send", {"text": large})
    async with Worker("mail", handle, url_or_app=app):
        await job.wait_until_finished(30)
    for mask, kept in ((DEFAULT_MASK, False), ([], True)):
        async with api(app, mask=mask) as client:
            line = json.loads((await client.get(EXPORT)).text)
            assert line["data"] == {"text": large}
            assert ("result" in line["past"]) is kept


@pytest.mark.parametrize(
    "path",
    [
        f"{EXPORT}?format=jsonl",
        f"{EXPORT}?format=csv",
        "/api/jobs?limit=500",
        "/api/job-queues/mail/jobs?state=scheduled&limit=500",
        "/api/scheduled-jobs?limit=500",
    ],
)
async def test_a_list_lets_others_have_their_turn_after_each_job(app: Windlass, path: str) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    await app.queue("mail").add_bulk([{"name": "send", "delay": 100}] * 500)
    async with api(app) as client:
        counting = asyncio.ensure_future(count())
        text = (await client.get(path)).text
        counting.cancel()
    assert text.count("send") >= 500
    assert turns >= 500


async def test_an_export_holds_no_message_when_everything_is_masked(app: Windlass) -> None:
    async def fail(job: Any) -> None:
        raise ValueError(SECRET)

    job = await app.queue("mail").add("send", max_attempts=1)
    async with Worker("mail", fail, url_or_app=app):
        await job.wait_until_finished(30)
    async with api(app, mask=["*"]) as client:
        text = (await client.get(EXPORT)).text
        assert "ValueError" in text
        assert not shows_secret(text)


@pytest.mark.parametrize(
    "path", ["/api/jobs/mail/one/timeline", "/api/job-queues/mail/events?after=0&seconds=0"]
)
async def test_events_hold_no_masked_field_of_progress_and_own_data(app: Windlass, path: str) -> None:
    await run_one(app)
    for mask in (DEFAULT_MASK, ["*"]):
        async with api(app, mask=mask) as client:
            text = (await client.get(path)).text
            assert "progress" in text
            assert "[masked]" in text
            assert SECRET not in text
    async with api(app, mask=[]) as client:
        assert SECRET in (await client.get(path)).text


async def test_a_search_does_not_tell_how_many_jobs_hold_a_masked_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "SORTABLE", 0)  # as in a large store: SQLite compares the texts
    async with Windlass(f"sqlite:///{tmp_path}/jobs.db") as app, api(app) as client:
        jobs = [{"name": "send", "data": {"token": SECRET}} for _ in range(5)]
        await app.queue("mail").add_bulk([*jobs, {"name": "send", "data": {"to": "ada"}}])
        found = [await get(client, "/api/v1/jobs", q=word) for word in (SECRET[:6], "nothing")]
        assert [answer["items"] for answer in found] == [[], []]
        assert found[0]["scanned"] == found[1]["scanned"] == 6
        assert (await get(client, "/api/v1/jobs", q="ada"))["items"]


@pytest.mark.parametrize("sortable", [0, 20_000])
async def test_a_search_of_many_pages_does_not_tell_how_many_jobs_hold_a_masked_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sortable: int
) -> None:
    """More jobs hold it than one read of the store returns."""
    monkeypatch.setattr(inspection, "SORTABLE", sortable)
    async with Windlass(f"sqlite:///{tmp_path}/jobs.db") as app, api(app) as client:
        jobs: list[dict[str, Any]] = [{"name": "send", "data": {"token": SECRET}} for _ in range(1_500)]
        jobs[5::9] = [{"name": "send", "data": {"to": "bob"}} for _ in jobs[5::9]]
        for start in range(0, len(jobs), 500):
            await app.queue("mail").add_bulk(jobs[start : start + 500])
        for word in (SECRET[:6], "nothing"):
            assert await scanned(client, word) == 1_500, word


async def scanned(client: httpx.AsyncClient, word: str) -> int:
    """The jobs that a search without matches went through, over all its pages."""
    total = 0
    cursor: dict[str, Any] = {}
    while True:
        answer = await get(client, "/api/v1/jobs", q=word, **cursor)
        assert answer["items"] == []
        total += int(answer["scanned"])
        if answer["done"]:
            return total
        cursor = {"cursor": answer["next_cursor"]}


async def test_a_stream_ends_when_the_application_refuses_its_user() -> None:
    clock, users = ManualClock(), {"ada"}

    def who(scope: Any) -> Identity | None:
        return Identity("ada", "reader") if "ada" in users else None

    async with Windlass(f"memory://hook?namespace={new_id()}", clock=clock) as app:
        authenticator = create_app(app, auth=who).authenticator
        scope: dict[str, Any] = {}
        scope["windlass.identity"] = await authenticator.identify(scope, Headers([]))
        assert await authenticator.still_knows(scope)
        await clock.advance(61)
        assert await authenticator.still_knows(scope)
        users.clear()
        assert await authenticator.still_knows(scope), "it is asked once a minute"
        await clock.advance(61)
        assert not await authenticator.still_knows(scope)


@pytest.mark.parametrize(
    ("now", "known"),
    [
        (Identity("ada", "reader", ("ops", "mail")), True),
        (Identity("ada", "reader", ("mail",)), False),
        (Identity("ada", "operator", ("mail", "ops")), False),
        (Identity("bob", "reader", ("mail", "ops")), False),
    ],
)
async def test_a_stream_ends_when_its_user_would_see_other_queues(now: Identity, known: bool) -> None:
    clock, users = ManualClock(), [Identity("ada", "reader", ("mail", "ops")), now]
    async with Windlass(f"memory://hook?namespace={new_id()}", clock=clock) as app:
        authenticator = create_app(app, auth=lambda scope: users.pop(0)).authenticator
        scope: dict[str, Any] = {}
        scope["windlass.identity"] = await authenticator.identify(scope, Headers([]))
        await clock.advance(61)
        assert await authenticator.still_knows(scope) is known


# --- hidden queues ---------------------------------------------------------------------------------


def as_operator_of(app: Windlass, *queues: str) -> Any:
    rules = [Rule(queues=list(queues), actions={"*"})]
    return api(app, headers=OPERATOR_HEADERS, operator_tokens=OPERATOR, rules=rules)


async def add_flow(app: Windlass) -> None:
    """``mail/top`` waits for ``vault/low``; ``vault/end`` waits for ``mail/begin``."""
    low = {"name": "low", "queue": HIDDEN_QUEUE, "options": {"job_id": "low", "delay": 100}}
    await FlowProducer(app).add(
        {"name": "top", "queue": "mail", "options": {"job_id": "top"}, "children": [low]}
    )
    begin = {"name": "begin", "queue": "mail", "options": {"job_id": "begin"}}
    end = {"name": "end", "queue": HIDDEN_QUEUE, "options": {"job_id": "end"}, "children": [begin]}
    await FlowProducer(app).add(end)


async def test_exports_and_options_name_no_hidden_queue(app: Windlass) -> None:
    await add_flow(app)
    paths = [EXPORT, "/api/jobs/mail/top", "/api/jobs/mail/begin", "/api/v1/jobs/mail/begin/page"]
    async with as_operator_of(app, "mail") as client:
        for path in paths:
            assert HIDDEN_QUEUE not in (await client.get(path)).text, path
    async with api(app) as client:
        text = (await client.get(EXPORT)).text
        assert '"depends_on":[["vault","low","fail"]]' in text
        assert '"placed":{"parent":"vault/end","root":"vault/end"}' in text
        assert (await get(client, "/api/jobs/mail/begin"))["options"]["parent"] == "vault/end"


async def test_an_export_has_no_line_to_add_a_job_again_that_waits_for_a_hidden_one(app: Windlass) -> None:
    await add_flow(app)
    async with as_operator_of(app, "mail") as client:
        text = (await client.get(EXPORT, params={"search": "task:top"})).text
        line = json.loads(text)
    assert (line["job_id"], line["state"], line["incomplete"]) == ("top", "blocked", True)
    with pytest.raises(ConfigError, match="incomplete"):
        read_job(app.queue("mail"), line)


async def test_an_export_keeps_apart_what_jobs_of_one_id_wait_for(app: Windlass) -> None:
    for name in ("mail", "shop"):
        child = {"name": "low", "queue": name, "options": {"job_id": f"of-{name}", "delay": 100}}
        top = {"name": "top", "queue": name, "options": {"job_id": "same"}, "children": [child]}
        await FlowProducer(app).add(top)
    async with api(app) as client:
        text = (await client.get(EXPORT, params={"search": "task:top"})).text
    assert '"depends_on":[["mail","of-mail","fail"]]' in text
    assert '"depends_on":[["shop","of-shop","fail"]]' in text


async def test_running_a_flow_again_names_no_hidden_queue(app: Windlass) -> None:
    await add_flow(app)
    await app.queue("mail").cancel("begin")
    async with as_operator_of(app, "mail") as client:
        refused = await client.post("/api/v1/flows/mail/begin/retry")
        assert refused.status_code == 404
        assert HIDDEN_QUEUE not in refused.text


HIDDEN_JOB = {"queue": HIDDEN_QUEUE, "id": "low"}


@pytest.mark.parametrize(
    "link", [{"parent": HIDDEN_JOB}, {"depends_on": HIDDEN_JOB}, {"depends_on": ["plain", HIDDEN_JOB]}]
)
async def test_no_job_is_tied_to_one_of_a_hidden_queue(app: Windlass, link: dict[str, Any]) -> None:
    await app.queue(HIDDEN_QUEUE).add("low", job_id="low")
    await app.queue("mail").add("plain", job_id="plain")
    node = {"task": "x", "queue": "mail", "options": link}
    async with as_operator_of(app, "mail") as client:
        for body in (node, {"task": "top", "queue": "mail", "children": [node]}):
            await send(client, "POST", "/api/flows", 404, body)
        tied = {"task": "x", "queue": "mail", "options": {"depends_on": ["plain"]}}
        assert (await send(client, "POST", "/api/flows", 201, tied))["state"] == "blocked"
        schedule = {"task": "x", "every": 60, "options": link}
        await send(client, "PUT", "/api/schedules/mail/tied", 404, schedule)
    job = await app.queue(HIDDEN_QUEUE).get_job("low")
    assert job is not None
    assert job.state == "waiting"
