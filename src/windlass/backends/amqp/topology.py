"""What a connection declares on the broker: exchanges, streams, and the queues of jobs when they are needed.

A declaration that the broker refuses closes its channel. So declarations have channels of their own.

RabbitMQ 3.10 writes the name of a new quorum queue to its disk up to a second later. Killed before that, it
comes back with a queue that is empty and has no leader: a publish to it is refused after 65 s, and blocks its
channel until then. But the broker writes the names of all others when it makes a quorum queue. So after new
queues we have it make a spare one, which is deleted at once; then the new ones are used.
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
#: Channels on which new queues are declared. RabbitMQ takes 20 to 90 ms for a queue with priorities, most of
#: it waiting, one after the other on a channel; on eight channels it declares about six times as many.
_SIDE_BY_SIDE = 8
_NOT_FOUND = 404
_NO_QUEUE = re.compile(r"NOT_FOUND - no queue '(.*)' in vhost")
#: Queues that are looked for, in all namespaces: it is no news that one is not there.
_looked_for: set[str] = set()


def _is_looked_for(code: int, text: str) -> bool:
    """Whether a queue is not there which we are about to declare."""
    found = _NO_QUEUE.match(text) if code == _NOT_FOUND else None
    return found is not None and found[1] in _looked_for


ignore_refusals(_is_looked_for)


class OpensChannels(Protocol):
    """The session that declares."""

    names: Names
    connection: Any

    async def open_channel(self, on_close: Callable[[Any], None]) -> Any:
        """A new channel; when the broker closes it, ``on_close`` gets the reason."""

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A method of a channel that takes a ``callback``, awaited."""

    def expect(self, promise: IoFuture[Any]) -> IoFuture[Any]:
        """Fail ``promise`` if the connection goes before it is kept."""


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
        """Everything at once; one by one when a part of it is declared in another way already."""
        new = await self._lacks(list(self._names.own_queues()))
        await self._declare_parts()
        if new:
            await self._have_names_written()

    async def _declare_parts(self) -> None:
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
        """Declare a durable queue; one of its type that is there with other arguments is taken as it is."""
        before, turn = self._setup_turn, IoFuture[None]()
        self._setup_turn = turn
        await before
        try:
            answer = await self._ask_setup(name, durable=True, arguments=arguments)
            if isinstance(answer, ChannelClosedByBroker) and answer.reply_code == _PRECONDITION_FAILED:
                await self._check_type(name, arguments, answer)
                log.warning("queue %s is declared otherwise than we would, and used as it is", name)
                await self._open_setup()
                answer = await self._ask_setup(name, passive=True)
            if isinstance(answer, Exception):
                if self._session.connection.is_open:
                    await self._open_setup()
                raise answer
        finally:
            turn.set(None)

    async def _check_type(self, name: str, arguments: dict[str, Any], refusal: ChannelClosedByBroker) -> None:
        """Raise when the queue was refused because it has the other type. The refusal closed the channel."""
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
            want = (
                f"the type of the queues that exist, and {name} has another. Leave the option as it was, "
                "use a namespace of its own for each type, or delete the queue once it is empty"
            )
            raise ConfigError("queue_type", want, names.queue_type)

    async def _ask_setup(self, name: str, **arguments: Any) -> Any:
        """The answer to a declaration, or the error with which the broker closed the channel."""
        answer = self._setup_answer = IoFuture[Any]()
        self._setup.queue_declare(name, callback=answer.set, **arguments)
        return await self._session.expect(answer)

    async def need_queues(self, names: list[str]) -> None:
        """Declare queues of jobs and their bindings, those that are new at once.

        All who wait for one continue in the order in which they came: what they publish keeps that order.
        """
        new = [name for name in names if (known := self._declared.get(name)) is None or known.failed]
        if new:
            self._names.used.update(new)
            self._declared.update(dict.fromkeys(new, spawn(self._declare_queues(new))))
        for name in names:
            await self._declared[name]

    async def _declare_queues(self, names: list[str]) -> None:
        """Declare a part on the channel for that, the others on channels beside it; bind them."""
        new = await self._lacks([self._names.queue(name) for name in names])
        await self._declare_parts_of(names)
        if new:
            await self._have_names_written()

    async def _declare_parts_of(self, names: list[str]) -> None:
        before, turn = self._setup_turn, IoFuture[None]()
        self._setup_turn = turn
        await before
        try:
            first, *others = [names[at::_SIDE_BY_SIDE] for at in range(min(_SIDE_BY_SIDE, len(names)))]
            beside = [spawn(self._declare_beside(part)) for part in others]
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

    async def _declare_beside(self, names: list[str]) -> list[str]:
        """Declare queues of jobs on a channel that is closed after it; returns those that are left to do."""
        answer: IoFuture[Any] = IoFuture()
        channel = await self._session.open_channel(answer.set)
        refused = await self._declare_on(channel, names, answer)
        if channel.is_open:
            channel.close()
        return refused

    async def _declare_on(self, channel: Any, names: list[str], answer: IoFuture[Any]) -> list[str]:
        """Declare queues of jobs and bind them. One refusal ends the channel: then all are left to do."""
        for name in names:
            queue = self._names.queue(name)
            channel.queue_declare(queue, durable=True, arguments=self._names.queue_arguments())
            last = answer.set if name is names[-1] else None
            channel.queue_bind(queue, self._names.direct, name, callback=last)
        return names if isinstance(await self._session.expect(answer), Exception) else []

    async def _lacks(self, queues: list[str]) -> bool:
        """Whether one of ``queues`` is not there yet and will be a quorum queue."""
        if self._names.queue_type != QUORUM:
            return False
        _looked_for.update(queues)
        answer: IoFuture[Any] = IoFuture()
        channel = await self._session.open_channel(answer.set)
        for name in queues:
            last = answer.set if name is queues[-1] else None
            channel.queue_declare(name, passive=True, callback=last)
        missing = isinstance(await self._session.expect(answer), Exception)
        _looked_for.difference_update(queues)
        if channel.is_open:
            channel.close()
        return missing

    async def _have_names_written(self) -> None:
        """Have the broker write the names of new quorum queues to its disk."""
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
        """A queue was deleted: declare it again when it is needed."""
        self._declared.pop(name, None)
