"""The client that is made from the OpenAPI document, against the API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from litestar.testing import TestClient

from tests.http.support import FREE, OPERATOR
from tools import make_client
from windlass import Windlass
from windlass.client import ApiProblemError, Client, Response
from windlass.core.ids import new_id
from windlass.dashboard import create_app
from windlass.dashboard.openapi import document

backend_name = "memory"


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of a store of its own, without a network."""
    app = Windlass(f"memory://{new_id()}")
    dashboard: Any = create_app(app, operator_tokens=OPERATOR, limits=FREE)
    with TestClient(dashboard) as server:

        def transport(method: str, address: str, headers: Mapping[str, str], body: bytes | None) -> Response:
            answer = server.request(method, address, headers=dict(headers), content=body)
            return Response(answer.status_code, answer.content)

        yield Client("http://testserver.local", token=OPERATOR, transport=transport)


@pytest.mark.feature("O19")
def test_the_client_is_the_one_that_the_document_describes() -> None:
    assert make_client.FILE.read_text() == make_client.made()


@pytest.mark.feature("O19")
def test_every_operation_of_the_version_has_a_method_but_for_streams() -> None:
    operations = {
        operation["operationId"]
        for path, methods in document()["paths"].items()
        if path.startswith(make_client.PREFIX)
        for operation in methods.values()
    }
    assert {name for name in operations if not hasattr(Client, name)} == {"export_jobs"}


@pytest.mark.feature("O19")
def test_jobs_are_added_found_changed_and_deleted(client: Client) -> None:
    added = client.add_job("mail", {"task": "send", "data": {"to": "ada"}, "options": {"tags": ["a b"]}})
    found = client.search_jobs(search='args.to:ada tag:"a b"', state=["waiting"], limit=5)
    assert [item["id"] for item in found["items"]] == [added["id"]]
    client.change_job("mail", added["id"], {"priority": 7})
    assert client.get_job("mail", added["id"])["priority"] == 7
    client.delete_job("mail", added["id"])
    with pytest.raises(ApiProblemError) as refused:
        client.get_job("mail", added["id"])
    assert (refused.value.status, refused.value.problem) == (404, "not_found")


@pytest.mark.feature("O19")
def test_names_may_hold_any_sign(client: Client) -> None:
    made = client.put_schedule("mail", "every/day.at ~3", {"cron": "0 3 * * *"})
    assert made["words"] == "at 03:00"
    assert client.get_schedule("mail", "every/day.at ~3")["name"] == "every/day.at ~3"


@pytest.mark.feature("O19")
def test_limits_and_pauses_are_changed(client: Client) -> None:
    client.add_job("mail", {"task": "send"})
    client.set_limits("mail", {"concurrency": 3})
    assert client.get_limits("mail")["concurrency"] == 3
    client.pause_queue("mail")
    assert [queue["paused"] for queue in client.list_queues()] == [True]
