"""The OpenAPI document, and the API held against it by generated requests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tests.http.support import FREE, OPERATOR, api, send
from windlass import Windlass
from windlass.dashboard import create_app
from windlass.dashboard.openapi import document

backend_name = "memory"
EXAMPLES = 4
CHECKS = [
    allow_header_conformance,
    content_type_conformance,
    negative_data_rejection,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]

store = Windlass("memory://openapi-tests")
schema = schemathesis.openapi.from_asgi(
    "/api/openapi.json",
    create_app(store, operator_tokens=OPERATOR, limits=FREE),
    headers={"Authorization": f"Bearer {OPERATOR}"},
)


@pytest.fixture(scope="module", autouse=True)
def filled() -> None:
    """Something to find: jobs, a schedule, a group."""

    async def fill() -> None:
        queue = store.queue("mail")
        for number in range(3):
            await queue.add("send", {"to": number}, job_id=f"job-{number}", group="g", tags=["t"])
        await queue.add("later", [1], job_id="later", delay=1_000)
        await queue.upsert_job_scheduler("nightly", {"cron": "0 3 * * *"}, {"data": {"a": 1}})

    asyncio.run(fill())


@schemathesis.hook
def before_call(context: Any, case: schemathesis.Case[Any], kwargs: Any) -> None:
    """Streams end at once, and nobody waits for jobs that nobody works on."""
    query, body = dict(case.query or {}), case.body
    if case.operation.path.endswith(("/live", "/events")) and _is_number(query.get("seconds", 0)):
        case.query = {**query, "seconds": 0}
    if (
        case.operation.path.endswith("/wait")
        and isinstance(body, dict)
        and _is_number(body.get("timeout", 1))
    ):
        case.body = {**body, "timeout": 0.01}


def _is_number(value: Any) -> bool:
    try:
        return float(value) >= 0
    except (TypeError, ValueError):
        return False


@pytest.mark.feature("O19")
@pytest.mark.slow
@pytest.mark.timeout(300)
@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_generated_requests_find_no_violation(case: schemathesis.Case[Any]) -> None:
    case.call_and_validate(checks=CHECKS, headers={"Authorization": f"Bearer {OPERATOR}"})


@pytest.mark.feature("O19")
def test_the_document_is_openapi_3_1_and_says_what_it_must() -> None:
    found = document()
    assert found["openapi"].startswith("3.1")
    operations = [
        (path, method, operation)
        for path, methods in found["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(operations) > 70
    for path, method, operation in operations:
        assert operation["summary"], (method, path)
        assert operation["tags"], (method, path)
        assert "application/problem+json" in operation["responses"]["404"]["content"], (method, path)
    ids = [operation["operationId"] for _, _, operation in operations]
    assert len(set(ids)) == len(ids)


async def test_an_added_job_names_what_it_did_not_take_or_leaves_that_out() -> None:
    """As the document says: programs in typed languages have to expect that it is not there."""
    added = document()["components"]["schemas"]["Added"]
    assert "not_taken" not in added["required"]
    assert "default" not in added["properties"]["not_taken"]
    options: dict[str, Any] = {"unique": {"key": "k", "mode": "keep_last"}}
    async with Windlass("memory://not-taken") as app, api(app) as client:
        queue = app.queue("mail")
        await queue.set_group_limits("full", max_size=1)
        await queue.add("other", group="full")
        for more, wanted in (({}, None), ({"group": "full"}, ["group"])):
            body = {"task": "send", "options": options | more}
            answer = await send(client, "POST", "/api/v1/queues/mail/jobs", 201, body)
            assert answer.get("not_taken") == wanted
            assert {*added["required"]} == answer.keys() - {"not_taken"}
        assert answer["outcome"] == "replaced"
