"""Requests that are nearly right, and answers that are small."""

from __future__ import annotations

import gzip

from tests.http.support import OPERATOR, api, get
from windlass import Windlass, __version__
from windlass_conformance.harness import QUEUE

backend_name = "memory"


async def test_a_parameter_that_the_route_does_not_take_is_refused_with_the_nearest() -> None:
    async with Windlass("memory://manners") as app, api(app) as client:
        refused = await get(client, "/api/v1/jobs", 422, stat="failed")
        assert refused["code"] == "unknown_parameter" and "'state'" in refused["advice"]
        refused = await get(client, "/api/v1/health", 422, anything="1")
        assert "none" in refused["advice"]
        await get(client, "/api/jobs", 200, state="failed")


async def test_head_answers_like_get_without_a_body() -> None:
    async with Windlass("memory://manners") as app, api(app) as client:
        answer = await client.head("/api/v1/jobs")
        assert (answer.status_code, answer.content) == (200, b"")
        assert answer.headers["content-type"].startswith("application/json")
        assert (await client.head("/api/v1/nothing")).status_code == 404
        stream = await client.head("/api/live")
        assert (stream.status_code, stream.content) == (200, b"")
        assert "HEAD" in (await client.options("/api/v1/jobs")).headers["allow"]


async def test_long_answers_are_compressed_and_streams_are_not() -> None:
    async with Windlass("memory://manners") as app, api(app) as client:
        await app.queue(QUEUE).add("send", {"text": "long " * 2_000}, job_id="one")
        path = f"/api/v1/jobs/{QUEUE}/one"
        answer = await client.get(path)
        assert answer.headers["content-encoding"] == "gzip"
        async with client.stream("GET", path) as raw:
            sent = b"".join([part async for part in raw.aiter_raw()])
        assert len(sent) < 2_000 and b"long long" in gzip.decompress(sent)
        plain = await client.get(path, headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert "content-encoding" not in (await client.get("/api/live?seconds=0")).headers


async def test_an_address_without_a_page_is_a_page_for_a_browser() -> None:
    async with Windlass("memory://manners") as app, api(app) as client:
        answer = await client.get("/no-such-page", headers={"Accept": "text/html"})
        assert answer.headers["content-type"].startswith("text/html") and answer.status_code == 404
        data = await client.get("/no-such-page")
        assert data.headers["content-type"] == "application/problem+json" and data.status_code == 404
        below = await client.get("/api/nothing", headers={"Accept": "text/html"})
        assert below.headers["content-type"] == "application/problem+json"
    async with Windlass("memory://manners") as app, api(app, operator_tokens=OPERATOR) as client:
        assert (await client.get("/no-such-page", headers={"Accept": "text/html"})).status_code == 401


async def test_the_page_of_a_job_is_one_answer_that_is_sent_again_when_it_changed() -> None:
    async with Windlass("memory://manners") as app, api(app) as client:
        job = await app.queue(QUEUE).add("send", {"to": "ada"}, job_id="page")
        path = f"/api/v1/jobs/{QUEUE}/page/page"
        first = await client.get(path)
        found = first.json()
        assert found["job"]["kwargs"] == {"to": "ada"} and found["why"]["causes"][0]["kind"] == "no_worker"
        again = await client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        await job.log("a line")
        changed = await client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert changed.status_code == 200 and changed.json()["logs"]["lines"][0]["text"] == "a line"
        lean = (await get(client, path, values="false"))["job"]
        assert (lean["kwargs"], lean["data"]) == ({}, None)


async def test_the_api_tells_its_version() -> None:
    async with Windlass("memory://manners") as app, api(app) as client:
        assert await get(client, "/api/v1/version") == {"version": __version__, "api": "v1"}
