"""What stands in ``windlass.log``: requests to the coordinator, and facts that workers and producers report.

The log is the one order of all that happened. The writer of a *fact* has done it already (published a job,
started one, completed one); a *request* is carried out when the coordinator reads it, and answered then.
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
    """One started attempt. ``body`` and ``header`` are its message's, where the job may be unknown."""

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
    #: Whether its end is sent to the client that added the job (see ``direct_replies``).
    told: bool = False
    #: Its message may be the second of the same generation, and was not delivered before (see ``messages``).
    again: bool = False
    #: Which message of its generation it has; None in entries of releases that did not say.
    copy: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """That of its message (see ``messages.Incoming``)."""
        return self.queue, self.id, self.gen


class Started(rq.Request[None], kw_only=True):
    """Fact: these attempts began."""

    starts: list[Start]


class Ended(rq.Request[None], kw_only=True):
    """Fact: these attempts completed; each with its start, in case that was not logged before.

    ``began`` are attempts that began in their slots: a ``Started`` that needs no entry of its own. Readers of
    an earlier release do not know it; to them the end of such an attempt implies its start.
    """

    items: list[Settlement]
    starts: list[Start]
    began: list[Start] = []  # noqa: RUF012 - a struct's default is copied


class Born(rq.Request[None], kw_only=True):
    """Fact: these jobs were published as they are."""

    add: rq.Add


class Closing(msgspec.Struct):
    """Answers, and which messages go back to their queues instead of being acknowledged."""

    items: list[Settled]
    requeue: list[bool]
    relay: bool = False


class Close(rq.Request[Closing], kw_only=True):
    """End attempts in any way. What must follow (a retry, a dead record) is safe before the answer."""

    items: list[Settlement]
    starts: list[Start]


class Lend(rq.Request["list[bool]"], kw_only=True):
    """Attempts that continue for long: keep their jobs, so that the broker need not hold their messages.

    From the answer on the lease alone counts; True for those that are kept. ``left`` says that the
    connection which held the messages is gone: the broker gives them to other workers, which must drop them.
    """

    starts: list[Start]
    left: bool = False


class Doubt(rq.Request["list[JobRecord | None]"], kw_only=True):
    """Messages that were delivered before: the jobs as they are now, None for those to drop."""

    starts: list[Start]


class Expire(rq.Request[None], kw_only=True):
    """Jobs that were met after their time: they end as expired."""

    starts: list[Start]


class Rules(msgspec.Struct):
    """What a worker must know before it takes jobs: paused queues, and messages that count no more."""

    paused: list[str]
    void: list[tuple[str, str, int]]
    #: When the first job of a queue is due.
    due: dict[str, int | None] = {}


class GetRules(rq.Request[Rules], kw_only=True):
    """See ``Rules``; news of changes follow."""


class PromoteFor(rq.Request["int | None"], kw_only=True):
    """Promote what is due in some queues; the answer is when the next is due."""

    queues: list[str]


class Poison(rq.Request[None], kw_only=True):
    """A message that is no job: it goes to the dead set with its bytes."""

    queue: str
    body: bytes
    problem: str


class TakeOver(rq.Request[None], kw_only=True):
    """Fact: from here on another client coordinates, known by its inbox."""

    holder: str


class Foreign(rq.Request[None], kw_only=True):
    """Another program's entry of a stream: ``kind`` is its type, ``offset`` its place."""

    kind: str
    offset: int
    body: bytes


class ForeignMetric(rq.Request[None], kw_only=True):
    """Attempts that workers in other languages reported in ``job_metrics``."""

    offset: int
    body: bytes


class News(msgspec.Struct, omit_defaults=True):
    """What the coordinator sends to all clients."""

    topics: list[str] = []
    #: Queues that got messages: a client with a bell there notices anyway.
    arrived: list[str] = []
    paused: list[str] = []
    resumed: list[str] = []
    #: Messages to ask about before they are started.
    void: list[tuple[str, str, int]] = []
    #: Those of them whose job may run by such a message: it has, or had, another one besides.
    doubled: list[tuple[str, str, int]] = []
    #: Tokens of attempts that were taken from their workers.
    lost: list[str] = []
    #: When the first job of a queue is due, where that changed; None: there is none.
    due: dict[str, int | None] = {}
    #: Of which ends the topic ``done:`` of a queue is about, where direct replies were sent for all of them.
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
#: Answers whose type is written as a text.
_NAMED: dict[str, Any] = {
    "list[JobRecord | None]": list[JobRecord | None],
    "int | None": int | None,
    "list[bool]": list[bool],
}


def _answer_type(kind: type[rq.Request[Any]]) -> Any:
    """The type that ``Request[...]`` of a class names."""
    (told,) = next(base for base in kind.__orig_bases__ if hasattr(base, "__args__")).__args__  # type: ignore[attr-defined]
    text = getattr(told, "__forward_arg__", told)
    if kind is rq.GetJobs:
        return list[JobRecord | None]
    return _NAMED.get(text, told) if isinstance(text, str) else told


_request_decoders = {name: msgspec.msgpack.Decoder(kind) for name, kind in KINDS.items()}
_answer_decoders = {name: msgspec.msgpack.Decoder(_answer_type(kind)) for name, kind in KINDS.items()}
encode = msgspec.msgpack.Encoder().encode


def decode_request(name: str, data: bytes) -> rq.Request[Any]:
    """The request called ``name``; ``msgspec.DecodeError`` or ``KeyError`` when it is not one of ours."""
    request: rq.Request[Any] = _request_decoders[name].decode(data)
    return request


def decode_answer(name: str, data: bytes) -> Any:
    """The answer to a request called ``name``."""
    return _answer_decoders[name].decode(data)
