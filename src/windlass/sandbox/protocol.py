"""The messages between a worker and its child processes, and their framing.

The two processes are connected by a socket pair. A frame is a length of four bytes (big endian) and that many
bytes of MessagePack: one message of the two unions below. Frames over the limit are refused by the sender,
and by the receiver before it reads their bytes. The very first frame is JSON instead: the parent's
``sys.path``, which ``_bootstrap`` reads before windlass can be imported.

The sequence is ``Boot`` -> ``Ready``; then, for each job, ``RunJob`` -> any number of ``VerbRequest``, each
answered by one ``VerbAnswer`` -> one of ``JobDone``, ``Failed``, ``Signalled``. ``StopJob`` gives the reason
of a SIGTERM that follows. ``Shutdown`` ends the child between jobs. All messages about a job have its run
number, so that late messages from a thread of an earlier job are not attributed to the current one.
"""

from __future__ import annotations

import struct
from typing import Any, Literal, NamedTuple

import msgspec

from windlass.core.job import JobRecord
from windlass.errors import WorkerCrashError

#: The default limit of one frame. Payloads and results have their own, smaller limits.
MAX_FRAME_BYTES = 64 * 1024 * 1024
HEADER = struct.Struct(">I")

Verb = Literal[
    "log",
    "update_progress",
    "update_data",
    "discard",
    "stream",
    "add_child",
    "get_children_values",
    "get_failed_children",
]
SignalName = Literal["snooze", "retry", "rate_limit", "cancel", "wait_for_children", "suspend"]


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exception, as it crosses the process boundary."""

    error_class: str
    module: str
    message: str
    traceback: str = ""
    #: The nearest classes that both sides know: names in ``windlass.errors`` and in ``builtins``.
    windlass_base: str = ""
    builtin_base: str = ""


# --- from the parent -----------------------------------------------------------------------------------


class Boot(msgspec.Struct, tag="boot", frozen=True, kw_only=True):
    """The first message: how the parent was started, and the settings of the child."""

    argv: list[str] = []
    main_module: str | None = None
    main_path: str | None = None
    memory_limit: int | None = None
    max_bytes: int = MAX_FRAME_BYTES


class RunJob(msgspec.Struct, tag="run", frozen=True):
    """Run one job. The result comes back in the record's codec."""

    run: int
    target: str
    record: JobRecord
    takes_job: bool = False


class VerbAnswer(msgspec.Struct, tag="answer", frozen=True):
    """The answer to a request: its value, or its error. ``value`` is in the record's codec (empty: None)."""

    id: int
    error: ErrorReport | None = None
    value: bytes = b""


class StopJob(msgspec.Struct, tag="stop", frozen=True):
    """The running handler is about to be ended; ``reason`` is a ``StopReason``."""

    reason: str


class Shutdown(msgspec.Struct, tag="shutdown", frozen=True):
    """No more jobs: exit."""


# --- from the child ------------------------------------------------------------------------------------


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """The child has started and waits for jobs."""

    pid: int


class VerbRequest(msgspec.Struct, tag="request", frozen=True):
    """The handler calls a method of its job. ``value`` is in the record's codec."""

    run: int
    id: int
    verb: Verb
    value: bytes = b""


class JobDone(msgspec.Struct, tag="done", frozen=True):
    """The handler returned; ``result`` is in the record's codec."""

    run: int
    result: bytes


class Failed(msgspec.Struct, tag="failed", frozen=True):
    """The handler raised (``error``), ran out of memory, or its result cannot be stored."""

    run: int
    error: ErrorReport
    kind: Literal["error", "memory", "result"] = "error"


class Signalled(msgspec.Struct, tag="signalled", frozen=True):
    """The handler raised a ``JobSignal``."""

    run: int
    signal: SignalName
    delay_ms: int = 0
    reason: str = ""


FromParent = Boot | RunJob | VerbAnswer | StopJob | Shutdown
Ending = JobDone | Failed | Signalled
FromChild = Ready | VerbRequest | Ending


class JobRequest(NamedTuple):
    """A decoded request: the method's name and its argument (None for ``discard``)."""

    verb: Verb
    value: Any = None


class FrameTooLargeError(ValueError):
    """A message is larger than the limit. Nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"a message of {size} bytes is over the limit of {limit} between worker and child")


_encoder = msgspec.msgpack.Encoder()
_from_parent = msgspec.msgpack.Decoder(FromParent)
_from_child = msgspec.msgpack.Decoder(FromChild)


def frame(data: bytes, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return ``data`` with its length before it."""
    if len(data) > max_bytes:
        raise FrameTooLargeError(len(data), max_bytes)
    return HEADER.pack(len(data)) + data


def pack(message: FromParent | FromChild, max_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """Return the frame of a message. Raises ``FrameTooLargeError`` over the limit."""
    return frame(_encoder.encode(message), max_bytes)


def frame_length(header: bytes, max_bytes: int = MAX_FRAME_BYTES) -> int:
    """Return the length in a header. Raises ``WorkerCrashError`` if it is invalid."""
    length: int = HEADER.unpack(header)[0]
    if length > max_bytes:
        raise WorkerCrashError(f"malformed message from the other process: {length} bytes announced")
    return length


def read_from_parent(data: bytes) -> FromParent:
    """Decode a message of the parent. Raises ``WorkerCrashError`` if it is invalid."""
    message: FromParent = _read(_from_parent, data)
    return message


def read_from_child(data: bytes) -> FromChild:
    """Decode a message of the child. Raises ``WorkerCrashError`` if it is invalid."""
    message: FromChild = _read(_from_child, data)
    return message


def _read(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, msgspec.ValidationError, ValueError, RecursionError) as exc:
        raise WorkerCrashError(f"malformed message from the other process: {exc}") from exc
