"""Adds that need no answer of the coordinator: new jobs go to their queues, with an entry in the log.

Adds that several callers make in one turn of the connection's thread share an entry. The broker and the
coordinator then handle one message for all of them, besides those of the jobs. A large add has several
entries, because a broker refuses large messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs, wire
from windlass.backends.amqp.client import AmqpClient
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.backends.amqp.messages import to_message
from windlass.backends.amqp.session import PublishRefusedError, UnroutableError
from windlass.core import transitions
from windlass.core.paths import took
from windlass.speedups.amqp import Outgoing

#: The most jobs in a shared entry, and the most bytes of the messages of an entry with several jobs.
_MOST_JOBS, _MOST_BYTES = 1_000, 1_000_000


class _WaitingAdd(NamedTuple):
    """An add that is not published yet, with the messages of its jobs."""

    request: rq.Add
    messages: list[Outgoing]
    confirmed: IoFuture[None]


class PlainAdds:
    """The adds of one connection."""

    def __init__(self, client: AmqpClient) -> None:
        self._client = client
        self._waiting: list[_WaitingAdd] = []
        #: Jobs of the waiting adds, and bytes of their messages.
        self._jobs = self._bytes = 0

    def publish(self, request: rq.Add, now_ms: int) -> IoFuture[None]:
        """Publish new jobs and their entry in the log at the end of this turn. The future is set when the
        broker has confirmed all of them."""
        add = _WaitingAdd(request, self._messages(request, now_ms), IoFuture())
        size = sum(len(message.body) for message in add.messages)
        if self._waiting and not self._fits(request, size):
            self._send()
        self._client.expect(add.confirmed)
        self._waiting.append(add)
        self._jobs += len(request.jobs)
        self._bytes += size
        if len(self._waiting) == 1:
            self._client.connection.at_end(self._client.guarded(self._send))
        return add.confirmed

    def _messages(self, request: rq.Add, now_ms: int) -> list[Outgoing]:
        client, recorder = self._client, transitions.ChangeRecorder(now_ms, lambda: 0)
        out: list[Outgoing] = []
        for new in request.jobs:
            reply = client.inbox if client.reply_listeners.wants(new.queue) else ""
            body, properties = to_message(transitions.create(new, recorder), 0, reply)
            wire.check_size(body)
            out.append(Outgoing(client.names.direct, new.queue, body, properties))
        return out

    def _fits(self, request: rq.Add, size: int) -> bool:
        """Whether an add may share the entry of those that wait."""
        return (
            request.now_ms == self._waiting[0].request.now_ms
            and self._jobs + len(request.jobs) <= _MOST_JOBS
            and self._bytes + size <= _MOST_BYTES
        )

    def _send(self) -> None:
        adds, self._waiting = self._waiting, []
        self._jobs = self._bytes = 0
        if len(adds) > 1:
            took("amqp.adds_together")
            jobs = [new for add in adds for new in add.request.jobs]
            if self._publish(rq.Add(jobs=jobs, now_ms=adds[0].request.now_ms), adds) is None:
                return
        for add in adds:  # also if the shared entry could not be written: one of them may be the reason
            error = self._publish(add.request, [add])
            if error is not None:
                add.confirmed.fail(error)

    def _publish(self, request: rq.Add, adds: list[_WaitingAdd]) -> Exception | None:
        """Publish adds together. Returns the error if that fails, and has then published nothing."""
        client, messages = self._client, [message for add in adds for message in add.messages]
        entries: set[int] = set()
        out: list[Outgoing] = []
        try:
            for part in _parts(messages):
                some = msgspec.structs.replace(request, jobs=request.jobs[part])
                entry = client.entry(verbs.Born(add=some, now_ms=request.now_ms))
                entries.add(id(entry))
                out += [entry, *messages[part]]
            published = client.publish(out)
        except Exception as exc:
            return exc
        published.then(lambda: self._answer(adds, entries, published))
        return None

    def _answer(self, adds: list[_WaitingAdd], entries: set[int], published: IoFuture[None]) -> None:
        """Answer adds. An add whose messages were refused is answered when they were published again."""
        refused: set[int] = set()
        try:
            published.result()
        except PublishRefusedError as exc:
            refused = {id(message) for message in exc.messages}
        except UnroutableError as exc:
            _fail(adds, entries, exc)
            return
        except Exception as exc:
            for add in adds:
                add.confirmed.fail(exc)
            return
        if not entries.isdisjoint(refused):
            self._repeat(adds, published)
            return
        for add in adds:
            own = [message for message in add.messages if id(message) in refused]
            if own:
                failed: IoFuture[None] = IoFuture()
                failed.fail(PublishRefusedError(own))
                self._repeat([add], failed)
            else:
                add.confirmed.set(None)

    def _repeat(self, adds: list[_WaitingAdd], failed: IoFuture[None]) -> None:
        """Publish the refused messages of ``failed`` again, and then answer."""
        done = spawn(self._client.until_confirmed(failed))

        def answer() -> None:
            for add in adds:
                try:
                    add.confirmed.set(done.result())
                except Exception as exc:
                    add.confirmed.fail(exc)

        done.then(answer)


def _fail(adds: list[_WaitingAdd], entries: set[int], error: UnroutableError) -> None:
    """Fail the adds whose messages no queue takes; answer the others."""
    gone = {id(message) for message in error.messages}
    for add in adds:
        if entries.isdisjoint(gone) and gone.isdisjoint(map(id, add.messages)):
            add.confirmed.set(None)
        else:
            add.confirmed.fail(error)


def _parts(messages: list[Outgoing]) -> Iterator[slice]:
    """Divide the messages of jobs into parts of at most ``_MOST_BYTES``, or of a single message."""
    start = size = 0
    for at, message in enumerate(messages):
        size += len(message.body)
        if size > _MOST_BYTES and at > start:
            yield slice(start, at)
            start, size = at, len(message.body)
    yield slice(start, len(messages))
