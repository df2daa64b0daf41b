"""Counts the jobs of a queue: those that the coordinator knows, and those that only the broker has.

Other programs publish jobs that the coordinator does not know of. So if a queue has more messages than known
waiting jobs, the surplus counts as waiting jobs too. But some of these messages may be *leftovers*: a worker
that is killed between the settlement and the acknowledgement leaves the message behind, and a coordinator
that takes over may publish a second message of a job. Workers drop the leftovers that they get. In a queue
that no worker serves, a count finds and drops them in the same way, so that it agrees with the list of jobs.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from windlass.backend import requests as rq
from windlass.backends.amqp import verbs
from windlass.backends.amqp.messages import Incoming, MessageError, read_message
from windlass.core.job import JobRef
from windlass.core.probe import reach
from windlass.core.states import JobState
from windlass.errors import StorageError
from windlass.speedups.amqp_frames import Delivery

if TYPE_CHECKING:
    from windlass.backends.amqp.client import AmqpClient

#: How many messages a count searches for leftovers. They are at the front, where they were delivered from.
_MOST_MESSAGES = 500
_MOST_BYTES = 8_000_000
_STEP = 50
#: How long the coordinator may take to verify them. Until then no worker can get these messages.
_ANSWER_S = 2.0


class _Waiting(msgspec.Struct):
    """A queue: jobs by state, the number of messages of unknown jobs, and whether a worker serves it."""

    counts: dict[JobState, int]
    unknown: int
    served: bool
    #: Void messages of the queue.
    void: set[tuple[str, str, int]]


async def count_jobs(client: AmqpClient, request: rq.CountJobs) -> dict[JobState, int]:
    """Count the jobs of a queue by state."""
    found, looked = await _compare(client, request), client.unknown.get(request.queue, 0)
    if found.unknown > looked and not found.served:
        # Do not ask the broker again: its count may not include the returned messages yet.
        dropped = await drop_leftovers(client, request.queue)
        found.unknown = max(found.unknown - sum(key not in found.void for key in dropped), 0)
        looked = found.unknown
    client.unknown[request.queue] = min(looked, found.unknown)
    found.counts[JobState.WAITING] += found.unknown
    return found.counts


async def _compare(client: AmqpClient, request: rq.CountJobs) -> _Waiting:
    """Compare the jobs that the coordinator knows with the messages of the broker."""
    counts: dict[JobState, int] = await client.ask(request)
    messages, consumers = await ready_messages(client, request.queue)
    before = messages - counts[JobState.WAITING]
    unknown, void = 0, set[tuple[str, str, int]]()
    if before > 0:
        # Ask again, for jobs that changed between the answers. A job that was added is known by now. A job
        # that started cannot raise the result, which is at most ``before``.
        rules: verbs.Rules = await client.ask(verbs.GetRules())
        counts = await client.ask(request)
        void.update(key for key in rules.void if key[0] == request.queue)
        unknown = max(min(before, messages - counts[JobState.WAITING]) - len(void), 0)
    return _Waiting(counts, unknown, consumers > 0 or counts[JobState.ACTIVE] > 0, void)


async def ready_messages(client: AmqpClient, queue: str) -> tuple[int, int]:
    """The number of ready messages of a job queue, and of its consumers."""
    await client.need_queue(queue)
    name = client.names.queue(queue)
    answer = (await client.call(client.channel.queue_declare, name, passive=True)).method
    return answer.message_count, answer.consumer_count


async def drop_leftovers(client: AmqpClient, queue: str) -> list[tuple[str, str, int]]:
    """Take the first messages of a queue, drop leftovers and return the others; returns the dropped keys."""
    held: dict[int, None] = {}
    try:
        found = await _take(client, queue, held)
        left = await _leftovers(client, queue, found)
        client.ack(left)
        for tag in left:
            del held[tag]
    except StorageError:  # no answer, or not in time: the next count tries again
        left = {}
    finally:
        if client.usable:
            client.requeue(held)
    reach("amqp.looked_for_leftovers", queue=queue, dropped=len(left))
    return list(left.values())


async def _take(client: AmqpClient, queue: str, held: dict[int, None]) -> list[Delivery]:
    found: list[Delivery] = []
    size, step = 0, 1
    while len(found) < _MOST_MESSAGES and size < _MOST_BYTES:
        some = await client.pull(client.names.queue(queue), step)
        held.update(dict.fromkeys(delivery.tag for delivery in some))
        found += some
        size += sum(len(delivery.body) for delivery in some)
        if len(some) < step:
            break
        each = size // len(found) + 1
        step = max(1, min(_STEP, _MOST_MESSAGES - len(found), (_MOST_BYTES - size) // each))
    return found


async def _leftovers(
    client: AmqpClient, queue: str, found: list[Delivery]
) -> dict[int, tuple[str, str, int]]:
    """The tags and keys of messages that a worker would drop."""
    now_ms = client.clock.now_ms()
    readable: list[tuple[Delivery, Incoming]] = []
    for delivery in found:
        try:
            incoming = read_message(queue, delivery.body, delivery.header, delivery.priority, now_ms)
        except MessageError:
            continue  # a worker reports it
        readable.append((delivery, incoming))
    met = Counter(incoming.key for _, incoming in readable)
    suspects = [(d, i) for d, i in readable if d.redelivered or i.again or met[i.key] > 1]
    if not suspects:
        return {}
    records = await client.ask(rq.GetJobs(refs=[JobRef(queue, i.job.id) for _, i in suspects]), _ANSWER_S)
    tags: dict[int, tuple[str, str, int]] = {}
    starts: list[verbs.Start] = []
    for (delivery, incoming), known in zip(suspects, records, strict=True):
        # A running job may still need its message. A job of another program is known once it starts.
        if not incoming.foreign if known is None else known.state is not JobState.ACTIVE:
            tags[delivery.tag] = incoming.key
            starts.append(_start(delivery, incoming, now_ms, known=known is not None))
    answers = await client.ask(verbs.Doubt(starts=starts), _ANSWER_S) if starts else []
    return {tag: key for (tag, key), job in zip(tags.items(), answers, strict=True) if job is None}


def _start(delivery: Delivery, incoming: Incoming, now_ms: int, *, known: bool) -> verbs.Start:
    """The start with which a worker would verify a message.

    It has the message itself if the coordinator does not know the job. With ``again``, the coordinator does
    not take a running job from its worker.
    """
    return verbs.Start(
        queue=incoming.job.queue,
        id=incoming.job.id,
        token="",
        worker="",
        lease_ms=0,
        at_ms=now_ms,
        task=incoming.job.task,
        gen=incoming.gen,
        body=None if known else delivery.body,
        header=None if known else delivery.header,
        priority=delivery.priority,
        again=True,
        copy=incoming.copy,
    )
