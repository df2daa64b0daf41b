"""Declares exchanges, queues and streams; job queues when they are needed.

A refused declaration closes its channel, so declarations use separate channels.

RabbitMQ 3.10 writes the name of a new quorum queue to its disk up to a second later. If it is killed before
that, it comes back with an empty queue without a leader. A publish to such a queue is refused after 65 s, and
blocks its channel until then. But the broker writes the names of all earlier queues when it makes another
quorum queue. So after declaring new queues we declare a spare one and delete it at once. Only then are the
new queues used.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable
from typing import Any, Protocol

from pika.exceptions import ChannelClosedByBroker

from windlass.backends.amqp.io_future import IoFuture, resolved, spawn
from windlass.backends.amqp.names import QUORUM, Names
from windlass.backends.amqp.pika_log import ignore_refusals
from windlass.errors import ConfigError

log = logging.getLogger("windlass.amqp")

_PRECONDITION_FAILED = 406
#: On how many channels new queues are declared. RabbitMQ takes 20 to 90 ms for a queue with priorities, most
#: of it waiting, and handles one declaration at a time on a channel. Eight channels are about six times as
#: fast.
_CHANNELS = 8
_NOT_FOUND = 404
_NO_QUEUE = re.compile(r"NOT_FOUND - no queue '(.*)' in vhost")
#: Queues whose existence is being checked, in all namespaces: if one is missing, pika need not warn.
_checked_queues: set[str] = set()


def _is_expected_missing(code: int, text: str) -> bool:
    """Whether a refusal says that a queue is missing whose existence we check."""
    found = _NO_QUEUE.match(text) if code == _NOT_FOUND else None
    return found is not None and found[1] in _checked_queues


ignore_refusals(_is_expected_missing)


class OpensChannels(Protocol):
    """The session whose connection is used."""

    names: Names
    connection: Any

    async def open_channel(self, on_close: Callable[[Any], None]) -> Any:
        """Open a channel. When the broker closes it, ``on_close`` gets the reason."""

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a channel method that takes a ``callback``, and return what the callback gets."""

    def expect(self, promise: IoFuture[Any]) -> IoFuture[Any]:
        """Have ``promise`` fail if the connection is lost before it is set; returns it."""


class Topology:
    """The declarations of one session."""

    def __init__(self, session: OpensChannels) -> None:
        self._session = session
        self._names = session.names
        self._setup: Any = None
        self._setup_answer: IoFuture[Any] = IoFuture()
        self._setup_turn: IoFuture[None] = resolved(None)
        self._declared: dict[str, IoFuture[None]] = {}

    async def declare_all(self) -> None:
        """Declare everything that always exists, and protect new quorum queues (see the module)."""
        new = await self._is_any_missing(list(self._names.own_queues()))
        await self._declare_parts()
        if new:
            await self._have_names_written()

    async def _declare_parts(self) -> None:
        """Declare everything in one batch; one by one if a part already exists with other arguments."""
        await self._open_setup()
        names = self._names
        queues = {**names.streams(), **names.own_queues()}
        done = self._setup_answer = IoFuture[Any]()
        channel = self._setup
        for exchange, kind in ((names.direct, "direct"), (names.dead, "fanout"), (names.news, "fanout")):
            channel.exchange_declare(exchange, kind, durable=True)
        for name, arguments in queues.items():
            channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_bind(names.dead_jobs, names.dead, callback=done.set)
        answer = await self._session.expect(done)
        if not isinstance(answer, Exception):
            return
        await self._open_setup()
        for name, arguments in queues.items():
            await self.declare(name, arguments)
        await self._session.call(self._setup.queue_bind, names.dead_jobs, names.dead)

    async def _open_setup(self) -> None:
        self._setup = await self._session.open_channel(lambda reason: self._setup_answer.set(reason))

    async def declare(self, name: str, arguments: dict[str, Any]) -> None:
        """Declare a durable queue. An existing one of the same type is used as it is."""
        before, turn = self._setup_turn, IoFuture[None]()
        self._setup_turn = turn
        await before
        try:
            answer = await self._ask_setup(name, durable=True, arguments=arguments)
            if isinstance(answer, ChannelClosedByBroker) and answer.reply_code == _PRECONDITION_FAILED:
                await self._check_type(name, arguments, answer)
                log.warning("queue %s exists with other arguments, and is used as it is", name)
                await self._open_setup()
                answer = await self._ask_setup(name, passive=True)
            if isinstance(answer, Exception):
                if self._session.connection.is_open:
                    await self._open_setup()
                raise answer
        finally:
            turn.set(None)

    async def _check_type(self, name: str, arguments: dict[str, Any], refusal: ChannelClosedByBroker) -> None:
        """Raise ``ConfigError`` if a queue was refused because it has the other type.

        The refusal has closed the channel.
        """
        names = self._names
        if arguments["x-queue-type"] != names.queue_type:
            return  # a stream
        known = "'x-queue-type'" in refusal.reply_text
        for other in () if known else names.other_arguments(name):
            await self._open_setup()
            known = known or not isinstance(
                await self._ask_setup(name, durable=True, arguments=other), Exception
            )
        if known:
            await self._open_setup()
            message = (
                f"queue_type is {names.queue_type!r}, but {name} exists and has another type. Leave the "
                "option as it was, use a namespace of its own for each type, or delete the queue once it is "
                "empty"
            )
            raise ConfigError("queue_type", message=message, got=names.queue_type)

    async def _ask_setup(self, name: str, **arguments: Any) -> Any:
        """The answer to a declaration, or the error with which the broker closed the channel."""
        answer = self._setup_answer = IoFuture[Any]()
        self._setup.queue_declare(name, callback=answer.set, **arguments)
        return await self._session.expect(answer)

    async def need_queues(self, names: list[str]) -> None:
        """Declare and bind job queues that this connection has not declared yet, all at once.

        Callers that wait for the same queue continue in the order of their calls, so that their messages are
        published in that order.
        """
        new = [name for name in names if (known := self._declared.get(name)) is None or known.failed]
        if new:
            self._names.used.update(new)
            self._declared.update(dict.fromkeys(new, spawn(self._declare_queues(new))))
        for name in names:
            await self._declared[name]

    async def _declare_queues(self, names: list[str]) -> None:
        """Declare and bind job queues, and protect new quorum queues."""
        new = await self._is_any_missing([self._names.queue(name) for name in names])
        await self._declare_parts_of(names)
        if new:
            await self._have_names_written()

    async def _declare_parts_of(self, names: list[str]) -> None:
        before, turn = self._setup_turn, IoFuture[None]()
        self._setup_turn = turn
        await before
        try:
            first, *others = [names[at::_CHANNELS] for at in range(min(_CHANNELS, len(names)))]
            beside = [spawn(self._declare_on_new_channel(part)) for part in others]
            self._setup_answer = IoFuture()
            refused = await self._declare_on(self._setup, first, self._setup_answer)
            if refused:
                await self._open_setup()
            for part in beside:
                refused = refused + await part
        finally:
            turn.set(None)
        for name in refused:
            await self.declare(self._names.queue(name), self._names.queue_arguments())
            await self._session.call(
                self._setup.queue_bind, self._names.queue(name), self._names.direct, name
            )

    async def _declare_on_new_channel(self, names: list[str]) -> list[str]:
        """Declare job queues on a temporary channel. Returns the queues that are left to declare."""
        answer: IoFuture[Any] = IoFuture()
        channel = await self._session.open_channel(answer.set)
        refused = await self._declare_on(channel, names, answer)
        if channel.is_open:
            channel.close()
        return refused

    async def _declare_on(self, channel: Any, names: list[str], answer: IoFuture[Any]) -> list[str]:
        """Declare and bind job queues. One refusal closes the channel; then all of ``names`` are returned."""
        for name in names:
            queue = self._names.queue(name)
            channel.queue_declare(queue, durable=True, arguments=self._names.queue_arguments())
            last = answer.set if name is names[-1] else None
            channel.queue_bind(queue, self._names.direct, name, callback=last)
        return names if isinstance(await self._session.expect(answer), Exception) else []

    async def _is_any_missing(self, queues: list[str]) -> bool:
        """Whether queues are quorum queues and one of ``queues`` does not exist yet."""
        if self._names.queue_type != QUORUM:
            return False
        _checked_queues.update(queues)
        answer: IoFuture[Any] = IoFuture()
        channel = await self._session.open_channel(answer.set)
        for name in queues:
            last = answer.set if name is queues[-1] else None
            channel.queue_declare(name, passive=True, callback=last)
        missing = isinstance(await self._session.expect(answer), Exception)
        _checked_queues.difference_update(queues)
        if channel.is_open:
            channel.close()
        return missing

    async def _have_names_written(self) -> None:
        """Have the broker write the names of new quorum queues to its disk (see the module)."""
        answer: IoFuture[Any] = IoFuture()
        channel = await self._session.open_channel(answer.set)
        spare = f"{self._names.spare}.{secrets.token_hex(6)}"
        channel.queue_declare(spare, durable=True, arguments=self._names.spare_arguments())
        channel.queue_delete(spare, callback=answer.set)
        refused = await self._session.expect(answer)
        if isinstance(refused, Exception):
            log.warning("new queues may be lost if the broker is killed within a second: %s", refused)
        if channel.is_open:
            channel.close()

    def forget_queue(self, name: str) -> None:
        """Forget a job queue that was deleted, so that it is declared again when it is needed."""
        self._declared.pop(name, None)
