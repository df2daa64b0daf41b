"""The service and its job, on a store in memory: ``pytest`` in this folder."""

from __future__ import annotations

from fastapi.testclient import TestClient
from jobs import jobs, outbox, send_welcome
from shop import app


def test_signup_answers_at_once_and_the_mail_goes_out_later(windlass):
    with TestClient(app) as client:
        answer = client.post("/signup", params={"to": "ada@example.com"})
        assert answer.status_code == 202
        job = answer.json()["job"]
        assert client.get("/waiting").json() == 1
        assert client.get(f"/jobs/{job}").json()["state"] == "waiting"
        windlass.sync.assert_enqueued(send_welcome, args=["ada@example.com"])
        assert windlass.sync.drain() == 1
        assert outbox == ["ada@example.com"]
        assert client.get(f"/jobs/{job}").json()["result"] == "welcome, ada@example.com"


def test_signing_up_twice_sends_one_mail(windlass):
    with TestClient(app) as client:
        for outcome in ("queued", "duplicate"):
            answer = client.post("/signup", params={"to": "bob@example.com"})
            assert answer.json()["outcome"] == outcome
        assert client.get("/waiting").json() == 1
    assert client.app.state.windlass is jobs


def test_an_unknown_job_is_a_404(windlass):
    with TestClient(app) as client:
        assert client.get("/jobs/none").status_code == 404
