"""What no job waits for goes out together: news, metrics, acknowledgements of streams."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import msgspec
import pika
import pytest
from pika.adapters.utils.io_services_utils import _AsyncPlaintextTransport

from windlass import Windlass
from windlass.backend import requests as rq
from windlass.backends.amqp import acks, coordinator, report, verbs, wire
from windlass.backends.amqp.acks import StreamAcks
from windlass.backends.amqp.names import CLASSIC, Names
from windlass.backends.amqp.news import NewsWindow
from windlass.backends.amqp.report import Metrics
from windlass.core.outcome import Outcome, Settlement
from windlass.speedups.amqp import Outgoing, QuickConnection

_BORN = verbs.Born(add=rq.Add(jobs=[]))
_ENDED = verbs.Ended(items=[], starts=[])


class _Timers:
    """Time passes when the test says so."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.due.append(call)

    def pass_time(self) -> None:
        due, self.due = self.due, []
        for call in due:
            call()


class _Window:
    """A window, with what left it."""

    def __init__(self) -> None:
        self.timers = _Timers()
        self.sent: list[verbs.News] = []
        self.window = NewsWindow(self.timers.call_later)
        self.window.send = self.sent.append

    def news(self, request: rq.Request[Any], **parts: Any) -> None:
        now = self.window.pass_on(request, verbs.News(**parts))
        if now is not None:
            self.sent.append(now)


def test_the_first_news_after_a_pause_go_out_at_once() -> None:
    it = _Window()
    it.news(_BORN, arrived=["a"])
    assert it.sent == [verbs.News(arrived=["a"])]
    it.timers.pass_time()
    it.news(_BORN, arrived=["b"])
    assert it.sent[1:] == [verbs.News(arrived=["b"])]


def test_news_that_follow_share_a_message_when_the_window_ends() -> None:
    it = _Window()
    it.news(_BORN, arrived=["a"])
    it.news(_ENDED, topics=["done:a"], told={"a": ["1"]})
    it.news(_ENDED, topics=["done:a"], told={"a": ["2"]})
    it.news(_BORN, arrived=["b"])
    assert len(it.sent) == 1
    it.timers.pass_time()
    assert it.sent[1:] == [verbs.News(topics=["done:a"], arrived=["b"], told={"a": ["1", "2"]})]
    it.news(_BORN, arrived=["c"])
    assert len(it.sent) == 2, "the next window began when these went out"
    it.timers.pass_time()
    assert it.sent[2:] == [verbs.News(arrived=["c"])]


def test_an_end_without_a_direct_reply_is_news_whatever_it_is_sent_with() -> None:
    """A client that received all ends which a piece of news names ignores it."""
    it = _Window()
    it.news(_BORN, arrived=["a"])
    it.news(_ENDED, topics=["done:a"], told={"a": ["1"]})
    it.news(_ENDED, topics=["done:a"])
    it.timers.pass_time()
    assert it.sent[1:] == [verbs.News(topics=["done:a"])]


def test_the_hints_of_a_batch_share_a_message_that_goes_out_at_its_end() -> None:
    it = _Window()
    it.window.begin_batch()
    it.news(_BORN, arrived=["a"])
    it.news(_ENDED, topics=["done:a"], told={"a": ["1"]})
    assert it.sent == []
    it.window.end_batch()
    assert it.sent == [verbs.News(topics=["done:a"], arrived=["a"], told={"a": ["1"]})]
    it.window.begin_batch()
    it.news(_BORN, arrived=["b"])
    it.window.end_batch()
    assert len(it.sent) == 1, "the window is closed"
    it.timers.pass_time()
    assert it.sent[1:] == [verbs.News(arrived=["b"])]


def test_urgent_news_do_not_wait_for_the_end_of_their_batch() -> None:
    it = _Window()
    it.window.begin_batch()
    it.news(_BORN, arrived=["a"])
    it.news(_BORN, paused=["b"])
    assert it.sent == [verbs.News(arrived=["a"], paused=["b"])]
    it.window.end_batch()
    assert len(it.sent) == 1


@pytest.mark.parametrize(
    "urgent",
    [
        {"paused": ["a"]},
        {"resumed": ["a"]},
        {"void": [("a", "1", 0)]},
        {"lost": ["token"]},
        {"due": {"a": 5}},
    ],
    ids=lambda parts: next(iter(parts)),
)
def test_urgent_news_never_wait_and_take_along_those_that_do(urgent: dict[str, Any]) -> None:
    it = _Window()
    it.news(_BORN, arrived=["a"])
    it.news(_BORN, arrived=["b"])
    it.news(_BORN, **urgent)
    assert it.sent[1:] == [verbs.News(arrived=["b"], **urgent)]
    it.timers.pass_time()
    assert len(it.sent) == 2


def test_news_of_a_request_never_wait() -> None:
    """Its caller may look for what follows as soon as it has the answer."""
    it = _Window()
    it.news(_BORN, arrived=["a"])
    it.news(rq.Promote(limit=1), topics=["ready:a"])
    assert it.sent[1:] == [verbs.News(topics=["ready:a"])]


def test_a_coordinator_that_leaves_sends_what_waits() -> None:
    it = _Window()
    it.news(_BORN, arrived=["a"])
    it.news(_BORN, arrived=["b"])
    it.window.flush()
    assert it.sent[1:] == [verbs.News(arrived=["b"])]


class _Reader:
    """The session of a coordinator, with the times after which it calls back."""

    def __init__(self) -> None:
        self.names, self.inbox = Names("", CLASSIC), "inbox"
        self.usable, self.closed = True, False
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.sent: list[verbs.News] = []

    def call_later(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.append((seconds, call))

    def send(self, messages: Iterable[Outgoing]) -> None:
        self.sent += [msgspec.msgpack.decode(message.body, type=verbs.News) for message in messages]


def test_facts_that_follow_each_other_are_applied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """At first after a moment, then at most every 10 ms, with one notification for all."""
    now, channel, reader = [100_000.0], _Channel(), _Reader()
    monkeypatch.setattr(coordinator, "SYSTEM_CLOCK", SimpleNamespace(monotonic_ms=lambda: now[0]))
    it = coordinator.Coordinator(reader)  # type: ignore[arg-type]
    it.live.set(None)
    jobs = [Windlass("memory://").queue("q").prepare("t") for _ in range(4)]

    def deliver(offset: int) -> None:
        fact = verbs.Born(add=rq.Add(jobs=[jobs[offset]]))
        headers = pika.BasicProperties(headers={"x-stream-offset": offset})
        method: Any = SimpleNamespace(delivery_tag=offset + 1)
        it._on_log(channel, method, headers, wire.log_entry("log", fact, 1).body)

    def due(seconds: float) -> Callable[[], None]:
        (found,) = [call for after, call in reader.timers if after == pytest.approx(seconds)]
        reader.timers = []
        return found

    deliver(0)
    deliver(1)
    due(0.002)()
    assert (len(it.ledger.queues["q"].jobs), reader.sent) == (
        2,
        [verbs.News(topics=["event:q"], arrived=["q"])],
    )
    reader.timers = []
    now[0] += 4
    deliver(2)
    due(0.006)
    now[0] += 1_000
    it._read_all()
    now[0] += 9
    deliver(3)
    due(0.002)


class _Session(_Timers):
    def __init__(self) -> None:
        super().__init__()
        self.names = Names("", CLASSIC)
        self.usable = True
        self.bodies: list[dict[str, Any]] = []

    def publish(self, messages: Iterable[Outgoing]) -> None:
        self.bodies += [msgspec.json.decode(message.body) for message in messages]


def _end(job_id: str) -> tuple[list[Settlement], list[verbs.Start]]:
    end = Settlement(queue="q", id=job_id, token=job_id, outcome=Outcome.COMPLETE, duration_ms=3)
    return [end], [verbs.Start("q", job_id, job_id, "w", 1, 1, task="t")]


def test_metrics_of_a_moment_share_a_message() -> None:
    session = _Session()
    metrics = Metrics(session)
    metrics.add(*_end("1"), 1_000)
    metrics.add(*_end("2"), 2_000)
    assert session.bodies == []
    session.pass_time()
    (body,) = session.bodies
    assert (body["type"], body["timestamp"]) == ("job_metrics", 2.0)
    assert [(one["jid"], one["timestamp"], one["status"]) for one in body["data"]] == [
        ("1", 1.0, "success"),
        ("2", 2.0, "success"),
    ]


def test_a_metric_alone_stands_at_the_top_as_well() -> None:
    session = _Session()
    metrics = Metrics(session)
    metrics.add(*_end("1"), 1_000)
    metrics.flush()
    (body,) = session.bodies
    assert (body["type"], body["jid"], body["data"][0]["jid"]) == ("job_metric", "1", "1")
    session.pass_time()
    assert len(session.bodies) == 1


def test_many_metrics_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_MOST_METRICS", 2)
    session = _Session()
    metrics = Metrics(session)
    metrics.add(*_end("1"), 1_000)
    metrics.add(*_end("2"), 2_000)
    assert len(session.bodies) == 1


class _Channel:
    is_open = True

    def __init__(self) -> None:
        self.acked: list[tuple[int, bool]] = []

    def basic_ack(self, tag: int, multiple: bool = False) -> None:
        self.acked.append((tag, multiple))


def test_what_is_read_from_a_stream_is_acknowledged_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acks, "_MOST", 3)
    timers, channel = _Timers(), _Channel()
    stream = StreamAcks(timers.call_later)
    for tag in (1, 2, 3, 4):
        stream.add(channel, tag)
    assert channel.acked == [(3, True)]
    timers.pass_time()
    assert channel.acked == [(3, True), (4, True)], "the broker closes a channel that leaves one for long"
    timers.pass_time()
    assert len(channel.acked) == 2


def test_what_is_gathered_is_complete_then_sent_then_answered() -> None:
    """Starts are logged before the claim that they belong to is answered."""
    connection, steps = QuickConnection.__new__(QuickConnection), list[str]()
    connection._gathering, connection._gathered = 0, []
    connection._at_end, connection._when_sent = [], []
    connection.at_end(lambda: steps.append("end, nothing is gathered"))
    connection.gather()
    connection.when_sent(lambda: steps.append("answer"))
    connection.gather()
    connection.at_end(lambda: steps.append("log"))
    connection.send_gathered()
    steps.append("more of the same turn")
    connection.send_gathered()
    assert steps == ["end, nothing is gathered", "more of the same turn", "log", "answer"]


class _FullSocket:
    """Accepts little at a time."""

    def send(self, data: bytes) -> int:
        self.sent = data[:1_000]
        return len(self.sent)


class _Transport(_AsyncPlaintextTransport):  # type: ignore[misc]  # pika has no types
    """Collects what waits for the socket."""

    def __init__(self) -> None:
        self._sock = _FullSocket()
        self.left: list[bytes] = []

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.left))

    def write(self, data: bytes) -> None:
        self.left.append(data)


@pytest.mark.parametrize("gathered", [True, False])
def test_much_data_waits_for_the_socket_in_parts(gathered: bool) -> None:
    """Pika copies what is left of a part for each piece that the socket accepts: 100 MB took minutes."""
    connection = QuickConnection.__new__(QuickConnection)
    connection._gathering, connection._gathered = int(gathered), []
    connection._at_end, connection._when_sent = [], []
    connection.bytes_sent = connection.frames_sent = 0
    connection.connection_state = QuickConnection.CONNECTION_OPEN
    transport = connection._transport = _Transport()
    frames = [bytes([n]) * 100_000 for n in range(50)] + [b"end"]
    connection._output_marshaled_frames(frames)
    if gathered:
        connection.send_gathered()
    sent = transport._sock.sent if gathered else b""
    assert b"".join([sent, *transport.left]) == b"".join(frames)
    assert connection.bytes_sent == 5_000_003
    assert max(map(len, transport.left)) < 400_000
