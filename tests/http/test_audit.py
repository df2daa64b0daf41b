"""What the audit log keeps: who did what to which jobs; and what strangers cannot do to it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.http.support import CSRF, OPERATOR, READER, api, get, send
from windlass import Windlass
from windlass.dashboard import Rule, ServerLimits, audit, create_app
from windlass.dashboard.audit import AuditLog
from windlass.dashboard.audit_trail import AuditTrail
from windlass.dashboard.openapi import document
from windlass.dashboard.shapes.server import AuditEntry

backend_name = "memory"
TOKENS: dict[str, Any] = {"operator_tokens": OPERATOR, "reader_tokens": READER}
MINE = {"Authorization": f"Bearer {OPERATOR}"}


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass(f"memory://{Path(__file__).stem}-{uuid4().hex}") as app:
        yield app


@pytest.fixture
async def client(app: Windlass) -> AsyncIterator[httpx.AsyncClient]:
    async with api(app, headers=MINE, **TOKENS) as client:
        yield client


def entry(target: str, *, who: str = "ada", status: int = 204) -> AuditEntry:
    return AuditEntry(
        id=0,
        at_ms=1,
        who=who,
        role="operator" if who else "none",
        client="::1",
        method="POST",
        action="POST /x",
        target=target,
        status=status,
        outcome="ok",
        facts={},
    )


async def facts(client: httpx.AsyncClient) -> dict[str, Any]:
    """The facts of the newest entry."""
    found: dict[str, Any] = (await get(client, "/api/audit", limit=1))["items"][0]["facts"]
    return found


# --- strangers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("with_file", [False, True], ids=["memory", "file"])
async def test_strangers_push_out_nothing_that_an_operator_did(
    client: httpx.AsyncClient, app: Windlass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_file: bool
) -> None:
    monkeypatch.setattr(audit, "FILE_BYTES", 100_000)
    monkeypatch.setattr(audit, "REFUSED_FILE_BYTES", 4_000)
    file = tmp_path / "audit.jsonl" if with_file else None
    async with api(app, headers=MINE, audit_file=file, **TOKENS) as client:
        await send(
            client, "POST", "/api/job-queues/mail/jobs", 201, {"task": "send", "options": {"job_id": "one"}}
        )
        stranger = {"Authorization": "Bearer a-token-that-no-one-was-given", **CSRF}
        for number in range(audit.KEPT + 100):
            path = f"/api/scheduled-jobs/{'x' * 2_000}{number}"
            assert (await client.delete(path, headers=stranger)).status_code == 401
        page = await get(client, "/api/audit")
        assert [item["facts"]["id"] for item in page["items"]] == ["one"]
        assert page["refused"] == {"401": audit.KEPT + 100}
        refused = (await get(client, "/api/audit", refused=True, limit=500))["items"]
        assert 0 < len(refused) <= audit.REFUSED_KEPT
        assert all(len(item["target"]) <= 300 for item in refused)
    if file is not None:
        check_files(tmp_path)


async def test_a_reader_pushes_out_nothing_that_an_operator_did(app: Windlass) -> None:
    """Paths and queues that are not there are no changes, whoever asks for them."""
    rules = [Rule(user="operator", actions={"*"}), Rule(user="reader", queues=["shop"])]
    async with api(app, headers=MINE, rules=rules, **TOKENS) as client:
        body = {"task": "send", "options": {"job_id": "one"}}
        await send(client, "POST", "/api/job-queues/mail/jobs", 201, body)
        reader = {"Authorization": f"Bearer {READER}"}
        for _ in range(audit.KEPT // 2 + 1):
            assert (await client.post("/api/nothing", headers=reader)).status_code == 404
            assert (await client.put("/api/jobs", headers=reader)).status_code == 405
            assert (await client.post("/api/job-queues/mail/pause", headers=reader)).status_code == 404
        page = await get(client, "/api/audit")
        assert [item["facts"]["id"] for item in page["items"]] == ["one"]


async def test_paths_that_are_not_there_count_as_requests(app: Windlass) -> None:
    limits = ServerLimits(burst=3, per_second=0.001)
    async with api(app, headers=MINE, limits=limits, **TOKENS) as client:
        found = [(await client.post("/api/nothing")).status_code for _ in range(5)]
        assert found == [404, 404, 404, 429, 429]
        strange = [(await client.get("/api/nothing", headers={"Authorization": ""})) for _ in range(5)]
        assert [answer.status_code for answer in strange] == [401, 401, 401, 429, 429]


async def test_a_change_is_written_down_when_the_server_gives_the_request_up(app: Windlass) -> None:
    guard = create_app(app, operator_tokens=OPERATOR)
    headers = [(name.lower().encode(), value.encode()) for name, value in MINE.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/api/job-queues/mail/jobs",
        "query_string": b"",
        "headers": [*headers, (b"host", b"x"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'{"task": "send", "options": {"job_id": "one"}}'}

    async def send_nothing(message: Any) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await guard(scope, receive, send_nothing)
    assert await app.queue("mail").get_job("one") is not None
    assert [item.facts["id"] for item in guard.store_view.audit.page(0, 10).items] == ["one"]


def check_files(folder: Path) -> None:
    found = {path.name: path.stat() for path in folder.iterdir()}
    assert set(found) >= {"audit.jsonl", "audit.jsonl.refused"}
    assert sum(stat.st_size for name, stat in found.items() if "refused" in name) <= 2 * 4_000
    assert all(stat.st_mode & 0o077 == 0 for stat in found.values())


def test_refused_requests_are_counted_and_a_sample_is_written() -> None:
    now = 0.0
    log = AuditLog(None, lambda: now)
    for number in range(100):
        log.add(entry(str(number), who="", status=401), admitted=False)
    log.add(entry("reader", who="bob", status=403), admitted=False)
    page = log.page(0, 1_000, refused=True)
    assert page.refused == {"401": 100, "403": 1}
    assert [item.target for item in page.items] == [str(number) for number in reversed(range(20))]
    now = 1_000.0
    log.add(entry("later", who="", status=401), admitted=False)
    newest = log.page(0, 1, refused=True).items[0]
    assert (newest.target, newest.facts["unwritten_before"]) == ("later", 81)
    assert log.page(0, 10).items == []


async def test_guesses_are_counted_also_when_they_only_look(client: httpx.AsyncClient) -> None:
    for _ in range(3):
        assert (await client.get("/api/jobs", headers={"Authorization": "Bearer wrong"})).status_code == 401
    page = await get(client, "/api/audit", refused=True)
    assert page["refused"] == {"401": 3}
    assert [item["action"].split()[0] for item in page["items"]] == ["GET"] * 3


async def test_a_path_cannot_write_lines_of_the_log(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "windlass.audit")
    await client.delete("/api/scheduled-jobs/x%0aada%20(operator)%20POST%20%1b%5b2J%e2%80%ae", headers=CSRF)
    written = [record.getMessage() for record in caplog.records if record.name == "windlass.audit"]
    assert len(written) == 1
    assert not re.search("[\x00-\x1f\u202e]", written[0])


# --- files ---------------------------------------------------------------------------------------


def test_a_trail_turns_its_files_over_and_keeps_a_bounded_number(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    line = len(json.dumps({name: getattr(entry("000"), name) for name in entry("0").__struct_fields__}))
    one, two = (AuditTrail(file, kept=1_000, file_bytes=line * 10, files=3) for _ in range(2))
    for number in range(100):
        (one if number % 2 else two).add(entry(f"{number:03}"))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "audit.jsonl",
        "audit.jsonl.1",
        "audit.jsonl.2",
    ]
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 3 * line * 10
    found = [item.target for item in one.newest(0, 1_000)]
    assert found == [f"{number:03}" for number in reversed(range(100 - len(found), 100))]
    assert len(found) > 20
    assert [item.target for item in two.newest(5, 3)] == found[5:8]


def test_a_trail_does_not_wait_for_a_process_that_turns_its_file_over(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    trail = AuditTrail(file, kept=10, file_bytes=300, files=2)
    trail.add(entry("a"))
    with file.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        trail.add(entry("b"))
    trail.add(entry("c"))
    assert [item.target for item in trail.newest(0, 10)] == ["c", "b", "a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audit.jsonl", "audit.jsonl.1"]


def test_a_trail_reads_past_lines_that_are_no_entries(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    trail = AuditTrail(file, kept=10, file_bytes=1_000_000, files=2)
    trail.add(entry("a"))
    file.write_bytes(file.read_bytes() + b"not json\n" + b"x" * 600_000 + b"\n")
    trail.add(entry("b"))
    assert [item.target for item in trail.newest(0, 10)] == ["b", "a"]


def test_a_trail_that_cannot_be_written_is_told_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = AuditTrail(tmp_path / "nowhere" / "audit.jsonl", kept=10, file_bytes=1_000, files=2)
    broken.add(entry("c"))
    assert "cannot be written" in caplog.text
    assert broken.newest(0, 10) == []


# --- who did what to which jobs --------------------------------------------------------------------


def changes() -> list[tuple[str, str]]:
    """Every route that changes something, from the application itself; a sign-in has a test of its own."""
    return [
        (method.upper(), path)
        for path, operations in document()["paths"].items()
        for method in operations
        if method in ("post", "put", "patch", "delete") and (method, path) != ("post", "/api/session")
    ]


@pytest.mark.parametrize(("method", "path"), changes())
async def test_every_change_names_what_it_was_about(
    client: httpx.AsyncClient, method: str, path: str
) -> None:
    names = dict.fromkeys(re.findall(r"{(\w+)}", path))
    for name in names:
        names[name] = {"queue": "mail", "action": "stop"}.get(name, f"some-{name}")
    answer = await client.request(method, path.format(**names), json={})
    entries = (await get(client, "/api/audit"))["items"]
    assert [(item["who"], item["status"]) for item in entries] == [("operator", answer.status_code)]
    assert entries[0]["action"] == f"{method} {path}"
    assert names.items() <= entries[0]["facts"].items()


async def test_a_bulk_action_tells_its_filter_its_jobs_and_how_many(
    app: Windlass, client: httpx.AsyncClient
) -> None:
    for number in range(3):
        await app.queue("mail").add("send", {"to": number}, job_id=f"job-{number}", delay=100)
    body: dict[str, Any] = {"action": "trigger", "refs": [{"queue": "mail", "id": "job-0"}]}
    await send(client, "POST", "/api/jobs/bulk", 200, body)
    told = await facts(client)
    assert (told["action"], told["jobs"], told["done"], told["failed"]) == ("trigger", "mail: job-0", 1, 0)
    chosen = {"state": ["scheduled"], "queue": ["mail"], "task": "send"}
    body = {"action": "delete", "filter": chosen, "reason": "spring cleaning"}
    await send(client, "POST", "/api/jobs/bulk", 200, body)
    told = await facts(client)
    assert json.loads(told["filter"]) == chosen
    assert (told["action"], told["done"], told["failed"], told["more"]) == ("delete", 2, 0, False)
    assert (told["jobs"], told["reason"]) == ("mail: job-1 job-2", "spring cleaning")


async def test_many_jobs_do_not_make_a_large_entry(app: Windlass, client: httpx.AsyncClient) -> None:
    refs = [{"queue": "mail", "id": f"{number:0100}"} for number in range(1_000)]
    await send(client, "POST", "/api/jobs/bulk", 200, {"action": "delete", "refs": refs})
    told = await facts(client)
    assert len(told["jobs"]) <= 2_000
    assert (told["done"], told["failed"]) == (0, 1_000)


async def test_a_job_that_was_found_by_its_id_is_told_with_its_queue(
    app: Windlass, client: httpx.AsyncClient
) -> None:
    await app.queue("mail").add("send", job_id="one", delay=100)
    await send(client, "POST", "/api/scheduled-jobs/one/trigger", 204)
    told = await facts(client)
    assert (told["jid"], told["queue"], told["task"]) == ("one", "mail", "send")


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        (
            "POST",
            "/api/job-queues/mail/jobs/bulk",
            [{"task": "a", "options": {"job_id": "x"}}],
            {"jobs": "mail: x"},
        ),
        (
            "POST",
            "/api/job-queues/mail/clean",
            {"grace": 5, "states": ["failed"]},
            {"grace": 5, "states": "failed"},
        ),
        ("POST", "/api/job-queues/mail/drain", {"delayed": True}, {"delayed": True, "removed": 1}),
        ("POST", "/api/jobs/mail/one/cancel", {"reason": "enough"}, {"jid": "one", "reason": "enough"}),
        ("PATCH", "/api/jobs/mail/one", {"priority": 3}, {"jid": "one", "priority": 3}),
        ("PUT", "/api/job-queues/mail/limits", {"concurrency": 4}, {"concurrency": 4}),
        ("PUT", "/api/job-queues/mail/groups/g/limits", {"concurrency": 4}, {"group": "g", "concurrency": 4}),
        ("PUT", "/api/schedules/mail/nightly", {"every": 60, "task": "t"}, {"name": "nightly", "task": "t"}),
        ("POST", "/api/marks", {"label": "deploy"}, {"label": "deploy"}),
    ],
)
async def test_an_entry_has_the_facts_of_its_change(
    app: Windlass, client: httpx.AsyncClient, method: str, path: str, body: Any, expected: dict[str, Any]
) -> None:
    await app.queue("mail").add("send", job_id="one", delay=100)
    answer = await client.request(method, path, json=body)
    assert answer.status_code < 300, answer.text
    assert expected.items() <= (await facts(client)).items()


async def test_a_sign_in_is_told_under_the_name_of_who_signed_in(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/session", json={"token": READER}, headers={"Authorization": "", **CSRF})
    assert answer.status_code == 200
    newest = (await get(client, "/api/audit"))["items"][0]
    assert (newest["who"], newest["action"]) == ("reader", "POST /api/session")
