"""The application and its job: ``pytest`` in this folder."""

from __future__ import annotations

import json

import pytest
from jobs import jobs
from shop import create_app


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'shop.db'}"


@pytest.fixture
def app(url):
    yield create_app(url)
    jobs.sync.close()


def test_a_view_adds_a_job_that_runs_with_the_context_of_the_application(app, monkeypatch):
    monkeypatch.chdir(app.root_path)
    client = app.test_client()
    answer = client.post("/signup", data={"to": "ada@example.com"})
    assert answer.status_code == 202
    job = answer.json["job"]
    assert client.get(f"/jobs/{job}").json["state"] == "waiting"

    done = app.test_cli_runner().invoke(args=["windlass", "worker", "shop:create_app", "--burst"])
    assert done.exit_code == 2, "a worker needs a Windlass app, and says so"
    assert "not a Windlass app" in done.output

    done = app.test_cli_runner().invoke(args=["windlass", "worker", "jobs:jobs", "--burst"])
    assert done.exit_code == 0, done.output
    found = client.get(f"/jobs/{job}").json
    assert (found["state"], found["result"]) == ("completed", "shop@example.com welcomes ada@example.com")


def test_the_commands_of_windlass_know_the_store_of_the_configuration(app):
    app.test_client().post("/signup", data={"to": "bob@example.com"})
    done = app.test_cli_runner().invoke(args=["windlass", "queues", "--json"])
    assert done.exit_code == 0, done.output
    (queue,) = json.loads(done.output)
    assert (queue["name"], queue["counts"]["waiting"]) == ("mail", 1)


def test_an_unknown_job_is_a_404(app):
    assert app.test_client().get("/jobs/none").status_code == 404
