"""The entries of ``windlass.log``: requests to the coordinator, and facts that workers and producers report.

The log puts all entries into one total order. A *fact* reports something that its writer has already done: it
published, started or completed a job. A *request* is carried out and answered when the coordinator reads it.

The names of these classes and of their fields are part of the wire format. Do not rename them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.backend import metric_requests as mq
from windlass.backend import requests as rq
from windlass.backend import schedule_requests as sq
from windlass.core.job import JobRecord
from windlass.core.outcome import Settled, Settlement


class Start(msgspec.Struct, array_like=True, omit_defaults=True):
    """One started attempt. ``body`` and ``header`` are those of its message, for jobs that the coordinator
    may not know."""

    queue: str
    id: str
    token: str
    worker: str
    lease_ms: int
    at_ms: int
    task: str = ""
    gen: int = 0
    body: bytes | None = None
    header: bytes | None = None
    priority: int = 0
    #: Whether the worker sends the result to the client that added the job (see ``direct_replies``).
    told: bool = False
    #: Whether a coordinator that took over may have published the message twice, and this one was not
    #: delivered before (see ``messages.Carried``).
    again: bool = False
    #: Which message of its generation it has; None in entries of earlier releases.
    copy: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """The key of its message (see ``messages.Incoming``)."""
        return self.queue, self.id, self.gen


class Started(rq.Request[None], kw_only=True):
    """Fact: these attempts began."""

    starts: list[Start]


class Ended(rq.Request[None], kw_only=True):
    """Fact: these attempts completed. Each comes with its start, in case that was not logged before.

    ``began`` are attempts that started in the meantime: a ``Started`` that needs no entry of its own. A
    coordinator of an earlier release ignores it, and learns of these starts from the ends of the attempts.
    """

    items: list[Settlement]
    starts: list[Start]
    began: list[Start] = []  # noqa: RUF012 - a struct's default is copied


class Born(rq.Request[None], kw_only=True):
    """Fact: a client created these jobs and published their messages itself, without asking."""

    add: rq.Add


class Closing(msgspec.Struct):
    """The outcome of each settlement, and which messages the worker returns to the queue instead of
    acknowledging them."""

    items: list[Settled]
    requeue: list[bool]
    relay: bool = False


class Close(rq.Request[Closing], kw_only=True):
    """Settle attempts in any way. The answer comes after the broker has confirmed the consequences (a retry,
    a dead record)."""

    items: list[Settlement]
    starts: list[Start]


class Lend(rq.Request["list[bool]"], kw_only=True):
    """Hand over running attempts from their messages to their leases.

    The coordinator keeps the record of each job in ``windlass.kept``, so that the worker can acknowledge the
    message. The answer is True for each attempt that is kept; from then on only its lease counts. ``left``
    says that the connection that held the messages is gone: the broker redelivers them to other workers,
    which must drop them.
    """

    starts: list[Start]
    left: bool = False


class Doubt(rq.Request["list[JobRecord | None]"], kw_only=True):
    """Verify messages that may be repeats or void, before their jobs start. The answer has the present record
    of each job, or None for a message that the worker must drop."""

    starts: list[Start]


class Expire(rq.Request[None], kw_only=True):
    """Expire jobs that a worker received after their deadline."""

    starts: list[Start]


class Rules(msgspec.Struct):
    """What a worker must know before it claims: paused queues, and void messages, which must be verified."""

    paused: list[str]
    void: list[tuple[str, str, int]]
    #: When the first job of a queue is due.
    due: dict[str, int | None] = {}


class GetRules(rq.Request[Rules], kw_only=True):
    """Read the ``Rules``. Later changes come as ``News``."""


class PromoteFor(rq.Request["int | None"], kw_only=True):
    """Promote the due jobs of some queues. The answer is the time in ms until the next one is due."""

    queues: list[str]


class Poison(rq.Request[None], kw_only=True):
    """Put a message that is not a job into the dead set, with its bytes."""

    queue: str
    body: bytes
    problem: str


class TakeOver(rq.Request[None], kw_only=True):
    """Fact: from here on another client is the coordinator. ``holder`` is its inbox."""

    holder: str


class Foreign(rq.Request[None], kw_only=True):
    """Take in an entry that another program put into a public stream. ``kind`` is its type, ``offset`` its
    position in the stream."""

    kind: str
    offset: int
    body: bytes


class ForeignMetric(rq.Request[None], kw_only=True):
    """Take in attempts that workers in other languages reported in ``job_metrics``."""

    offset: int
    body: bytes


class News(msgspec.Struct, omit_defaults=True):
    """A notification from the coordinator to all clients."""

    topics: list[str] = []
    #: Queues that got messages. A client whose consumer is open there notices them anyway.
    arrived: list[str] = []
    paused: list[str] = []
    resumed: list[str] = []
    #: Messages that a worker must verify before it starts them.
    void: list[tuple[str, str, int]] = []
    #: Those of ``void`` whose job has, or had, a second message: a running job may hold a valid one.
    doubled: list[tuple[str, str, int]] = []
    #: Tokens of attempts that their workers have lost.
    lost: list[str] = []
    #: When the first job of a queue is due, for queues where that changed; None: no job is due later.
    due: dict[str, int | None] = {}
    #: The jobs behind the topic ``done:`` of a queue, if direct replies were sent for all of them.
    told: dict[str, list[str]] = {}


_OWN: list[type[rq.Request[Any]]] = [
    Started, Ended, Born, Close, Lend, Doubt, Expire, GetRules, PromoteFor, Poison, TakeOver,
    Foreign, ForeignMetric,
]  # fmt: skip
_MODULES = (rq, sq, mq)


def _find_all() -> dict[str, type[rq.Request[Any]]]:
    found: dict[str, type[rq.Request[Any]]] = {kind.__name__: kind for kind in _OWN}
    for module in _MODULES:
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, rq.Request) and value is not rq.Request:
                found[value.__name__] = value
    return found


KINDS = _find_all()
#: Types of answers that are written as strings.
_NAMED: dict[str, Any] = {
    "list[JobRecord | None]": list[JobRecord | None],
    "int | None": int | None,
    "list[bool]": list[bool],
}


def _answer_type(kind: type[rq.Request[Any]]) -> Any:
    """The type of answer that a class names in ``Request[...]``."""
    (named,) = next(base for base in kind.__orig_bases__ if hasattr(base, "__args__")).__args__  # type: ignore[attr-defined]
    text = getattr(named, "__forward_arg__", named)
    if kind is rq.GetJobs:
        return list[JobRecord | None]
    return _NAMED.get(text, named) if isinstance(text, str) else named


_request_decoders = {name: msgspec.msgpack.Decoder(kind) for name, kind in KINDS.items()}
_answer_decoders = {name: msgspec.msgpack.Decoder(_answer_type(kind)) for name, kind in KINDS.items()}
encode = msgspec.msgpack.Encoder().encode


def decode_request(name: str, data: bytes) -> rq.Request[Any]:
    """The request called ``name``. Raises ``msgspec.DecodeError``, or ``KeyError`` for an unknown name."""
    request: rq.Request[Any] = _request_decoders[name].decode(data)
    return request


def decode_answer(name: str, data: bytes) -> Any:
    """The answer to a request called ``name``."""
    return _answer_decoders[name].decode(data)
