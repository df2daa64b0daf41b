"""The JSON of jobs and stream entries, as other programs read and write it; and what a URL says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from windlass.backend import requests as rq
from windlass.backend.urls import parse_url
from windlass.backends.amqp import backend, limits, messages, report, wire
from windlass.backends.amqp.direct_replies import ReplyListeners
from windlass.backends.amqp.inbox import ForeignStreams
from windlass.backends.amqp.io_future import IoFuture, resolved, spawn
from windlass.backends.amqp.names import Names
from windlass.backends.amqp.plain_adds import PlainAdds
from windlass.core.clock import SteadyClock
from windlass.core.ids import new_id
from windlass.core.job import WORKER_GONE_MS, ErrorInfo, JobRecord, NewJob, WorkerInfo
from windlass.core.options import StoredOptions
from windlass.core.states import JobState
from windlass.speedups.amqp import Outgoing

backend_name = "amqp"
NOW_MS = 1_760_000_000_250


def job(**fields: Any) -> JobRecord:
    """A record with what every one has."""
    return JobRecord(queue="mail", id="j1", task="n", payload=b"{}", enqueued_ms=NOW_MS, **fields)


def entry(record: JobRecord) -> Any:
    """The stream entry of a job, as others read it."""
    found = messages.entry_message(record, NOW_MS)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.feature("N5")
@pytest.mark.parametrize(("said", "lines"), [(15, 15), (0, 0), (True, 1_000), (False, 0), (None, 50)])
def test_the_lines_of_a_backtrace_are_read_from_the_wire(said: Any, lines: int) -> None:
    fields = {"jid": "j1", "class": "n", "args": [], "backtrace": said}
    if said is None:
        del fields["backtrace"]
    read = messages.read_message("mail", json.dumps(fields).encode(), None, 0, NOW_MS)
    assert read.job.options.backtrace == lines
    body, _ = messages.to_message(read.job, 1)
    assert json.loads(body)["backtrace"] == lines
    assert "extra" not in json.loads(read.job.payload)


@pytest.mark.parametrize("said", [-1, "all", 1.5])
def test_a_backtrace_that_is_no_number_of_lines_is_refused(said: Any) -> None:
    with pytest.raises(messages.MessageError, match="backtrace"):
        messages.read_job("mail", {"jid": "j1", "class": "n", "backtrace": said}, NOW_MS)


@pytest.mark.feature("N5")
def test_our_own_jobs_carry_the_lines_of_their_backtrace() -> None:
    body, _ = messages.to_message(job(options=StoredOptions(backtrace=15)), 0)
    assert json.loads(body)["backtrace"] == 15


@pytest.mark.feature("N5")
def test_a_dead_job_counts_its_retries_not_its_runs() -> None:
    errors = [ErrorInfo(NOW_MS, n, "ValueError", "no") for n in range(1, 27)]
    dead = job(state=JobState.FAILED, attempts=26, errors=errors, options=StoredOptions(max_attempts=26))
    told = entry(dead)
    assert (told["retry_count"], told["job"]["retry"], told["job"]["retry_count"]) == (25, 25, 25)
    again = messages.read_entry(json.dumps(told).encode(), "dead_job", NOW_MS)
    assert (again.job.attempts, again.error and again.error.attempt) == (26, 26)


def test_a_job_that_died_in_its_first_retry_by_silence_was_retried_once() -> None:
    errors = [ErrorInfo(NOW_MS, 1, "ValueError", "no"), ErrorInfo(NOW_MS, 2, "StalledError", "silent")]
    assert entry(job(state=JobState.FAILED, attempts=1, errors=errors))["retry_count"] == 1


def test_a_retry_counts_the_failure_that_it_follows() -> None:
    waiting = job(
        state=JobState.RETRYING, attempts=1, due_ms=NOW_MS, errors=[ErrorInfo(NOW_MS, 1, "E", "no")]
    )
    assert entry(waiting)["retry_count"] == 1


@pytest.mark.feature("N4")
@pytest.mark.parametrize("state", [JobState.SCHEDULED, JobState.RETRYING, JobState.FAILED])
def test_every_stream_entry_is_an_envelope_with_its_fields_at_the_top_too(state: JobState) -> None:
    told = entry(job(state=state, due_ms=NOW_MS, finished_ms=NOW_MS))
    assert (told["timestamp"], told["data"]["jid"], told["jid"]) == (NOW_MS / 1000, "j1", "j1")
    assert {"type", "timestamp", "data", *told["data"]} == set(told)
    bare = {"type": told["type"], "timestamp": told["timestamp"], "data": told["data"]}
    read = messages.read_entry(json.dumps(bare).encode(), told["type"], NOW_MS)
    assert (read.job.id, read.job.queue, read.state, read.at_ms) == ("j1", "mail", state, NOW_MS)


@pytest.mark.feature("N4")
def test_a_heartbeat_is_an_envelope_too() -> None:
    worker = WorkerInfo(
        id="h:1:a",
        hostname="h",
        pid=1,
        tag="",
        queues=("mail",),
        concurrency=2,
        busy=1,
        rss_kb=3,
        version="1",
    )
    told = json.loads(report.heartbeat_message(Names("default"), worker, NOW_MS).body)
    assert (told["type"], told["timestamp"], told["identity"]) == ("heartbeat", NOW_MS / 1000, "h:1:a")
    assert told["data"] == {name: told[name] for name in told if name not in ("type", "timestamp", "data")}


def test_what_cannot_be_promised_is_the_same_in_docs_capabilities_and_code() -> None:
    declared = {name for name, value in asdict(limits.CAPABILITIES).items() if value is False}
    assert declared == set(limits.MISSING)
    page = (Path(__file__).parents[3] / "docs" / "amqp.md").read_text(encoding="utf-8")
    assert limits.as_table() in page
    more = {name for name, value in asdict(limits.QUORUM_CAPABILITIES).items() if value is False} - declared
    assert more == set(limits.MISSING_ON_QUORUM)
    assert limits.as_table(limits.MISSING_ON_QUORUM) in page


@pytest.mark.parametrize(
    ("path", "host"),
    [("", "/"), ("/", "/"), ("//", "/"), ("/%2F", "/"), ("/%2f", "/"), ("/shop", "shop"), ("/a%2Fb", "a/b")],
)
def test_the_path_of_a_url_names_the_virtual_host(path: str, host: str) -> None:
    assert backend._parameters(parse_url(f"amqp://server{path}")).virtual_host == host


class _Client:
    """Notes what is published; the broker confirms all at once."""

    def __init__(self) -> None:
        self.names, self.clock, self.reply_listeners, self.inbox = (
            Names("default"),
            SteadyClock(),
            ReplyListeners(),
            "",
        )
        self.connection = SimpleNamespace(at_end=lambda call: call())
        self.plain_adds = PlainAdds(cast("Any", self))
        self.published: list[list[Outgoing]] = []

    def guarded(self, call: Callable[[], None]) -> Callable[[], None]:
        return call

    def expect(self, promise: IoFuture[Any]) -> IoFuture[Any]:
        return promise  # the connection is not lost

    async def need_queues(self, names: list[str]) -> None:
        """They are there."""

    def entry(self, fact: Any) -> Outgoing:
        return wire.log_entry(self.names.log, fact, NOW_MS)

    def publish(self, out: list[Outgoing]) -> IoFuture[None]:
        self.published.append(out)
        return resolved(None)


@pytest.mark.parametrize("count", [1, 1_000])
def test_an_add_publishes_its_jobs_and_one_entry_of_the_log_together(count: int) -> None:
    """So that it waits for all confirms at once, and a chunk costs one entry."""
    client = _Client()
    jobs = [NewJob(queue="mail", id=new_id(), task="n", payload=b"{}") for _ in range(count)]
    added = spawn(backend._add(client, rq.Add(jobs=jobs)))  # type: ignore[arg-type]
    assert len(added.result()) == count
    (out,) = client.published
    assert Counter(message.key for message in out) == {"windlass.log": 1, "mail": count}


@pytest.mark.parametrize(("age_ms", "listed"), [(WORKER_GONE_MS, True), (WORKER_GONE_MS + 1, False)])
def test_a_heartbeat_in_the_stream_counts_until_its_worker_is_gone(age_ms: int, listed: bool) -> None:
    beats: list[rq.Beat] = []
    coordinator = SimpleNamespace(now_ms=lambda: NOW_MS, beat=beats.append)
    session = SimpleNamespace(call_later=lambda seconds, call: None)
    streams = ForeignStreams(cast("Any", session), cast("Any", coordinator))
    channel = SimpleNamespace()  # acknowledged later
    body = json.dumps({"identity": "host:1:ab", "beat": (NOW_MS - age_ms) / 1000}).encode()
    streams._on_beat(channel, SimpleNamespace(delivery_tag=1), SimpleNamespace(headers=None), body)
    assert [beat.worker.id for beat in beats] == (["host:1:ab"] if listed else [])
