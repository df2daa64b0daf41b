"""The sandbox's parts without a process: frames, errors, targets."""

from __future__ import annotations

import ast
import builtins
import functools
import os
import pickle
import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sandbox import handlers
from windlass import errors
from windlass.errors import (
    ConfigError,
    JobSignal,
    RemoteError,
    StorageError,
    UnrecoverableError,
    WorkerCrashError,
)
from windlass.handlers.signature import ArgumentError
from windlass.sandbox import protocol, target_of
from windlass.sandbox.limits import MB, check_memory_mode, rss_bytes, show_limit
from windlass.sandbox.remote import rebuild, report, signal_message

# --- frames --------------------------------------------------------------------------------------------


def test_messages_survive_their_frame() -> None:
    message = protocol.VerbRequest(3, 7, "log", b'"line"')
    data = protocol.pack(message)
    length = protocol.frame_length(data[:4])
    assert length == len(data) - 4
    assert protocol.read_from_child(data[4:]) == message


@given(st.binary(max_size=200))
def test_nonsense_is_refused_with_one_error(data: bytes) -> None:
    for read in (protocol.read_from_child, protocol.read_from_parent):
        try:
            read(data)
        except WorkerCrashError as exc:
            assert "malformed" in str(exc)


def test_messages_of_the_other_side_are_refused() -> None:
    with pytest.raises(WorkerCrashError):
        protocol.read_from_child(msgspec.msgpack.encode(protocol.Shutdown()))
    with pytest.raises(WorkerCrashError):
        protocol.read_from_parent(msgspec.msgpack.encode(protocol.Ready(1)))


def test_frames_over_the_cap_are_neither_sent_nor_read() -> None:
    with pytest.raises(protocol.FrameTooLargeError):
        protocol.pack(protocol.JobDone(1, b"x" * 100), 50)
    with pytest.raises(WorkerCrashError):
        protocol.frame_length(b"\x00\x00\x00\x33", 50)


# --- errors --------------------------------------------------------------------------------------------


class _OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no message")


class _MixedError(UnrecoverableError, KeyError):
    pass


def _came_back(exc: BaseException) -> RemoteError:
    return rebuild(msgspec.msgpack.decode(msgspec.msgpack.encode(report(exc)), type=protocol.ErrorReport))


@pytest.mark.parametrize(
    ("exc", "bases"),
    [
        (ValueError("x"), [ValueError]),
        (FileNotFoundError(2, "gone", "f"), [OSError]),
        (StorageError("away"), [StorageError, ConnectionError]),
        (_MixedError("x"), [UnrecoverableError, KeyError]),
        (ArgumentError("x", "p"), [UnrecoverableError, ValueError]),
        (errors.LeaseLostError("q", "j"), [errors.LeaseLostError]),
        (errors.ConfigError("a", "b"), [ConfigError]),
        (_OddError(), [Exception]),
    ],
)
def test_rebuilt_errors_are_what_both_sides_know(exc: Exception, bases: list[type[Exception]]) -> None:
    back = _came_back(exc)
    assert all(isinstance(back, base) for base in bases)
    assert (type(back).__name__, type(back).__module__) == (type(exc).__name__, type(exc).__module__)
    if not isinstance(exc, _OddError):
        assert str(back) == str(exc)


def test_every_builtin_exception_can_be_rebuilt() -> None:
    for name, kind in vars(builtins).items():
        if isinstance(kind, type) and issubclass(kind, BaseException):
            module = kind.__module__
            made = rebuild(
                protocol.ErrorReport(error_class=name, module=module, message="m", builtin_base=name)
            )
            assert isinstance(made, RemoteError)
            assert str(made) == "m"
            assert isinstance(made, Exception)


def test_a_remote_error_can_be_pickled() -> None:
    back = pickle.loads(pickle.dumps(_came_back(ValueError("x"))))
    assert (back.error_class, str(back)) == ("ValueError", "x")


def test_a_signal_nobody_knows_is_an_error() -> None:
    class Odd(JobSignal):
        pass

    assert signal_message(1, Odd()) is None
    assert not isinstance(_came_back(Odd()), JobSignal)


# --- targets -------------------------------------------------------------------------------------------


def test_functions_are_named_by_module_and_qualname() -> None:
    assert target_of(handlers.add) == "tests.sandbox.handlers:add"
    assert target_of("package.module:function") == "package.module:function"


def _local() -> Any:
    def inner() -> None: ...

    return inner


@functools.wraps(handlers.add)
def _disguised(a: int) -> int:
    return a


@pytest.mark.parametrize(
    "handler", [lambda: 1, _local(), functools.partial(handlers.add, 1), _disguised, object(), "missing.py"]
)
def test_handlers_that_a_child_could_not_find_are_refused(handler: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"cannot run in a child process: |handler must be a Python file that exists"
    ):
        target_of(handler)


# --- limits --------------------------------------------------------------------------------------------


def test_memory_is_shown_and_measured() -> None:
    assert show_limit(256 * MB) == "256 MB"
    assert show_limit(256 * MB + 1) == "268435457 bytes"
    assert (rss_bytes(os.getpid()) or 0) > MB
    assert rss_bytes(2**22 + 1) is None
    with pytest.raises(ConfigError):
        check_memory_mode("cgroup")


# --- the interpreter -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [[], ["-OO", "-B", "-q"], ["-I"], ["-bb", "-Werror::UserWarning"], ["-X", "dev", "-X", "utf8=1", "-E"]],
    ids=" ".join,
)
def test_a_child_gets_the_options_of_its_parent(options: list[str]) -> None:
    tell = "import sys; print([*sys.flags], sorted({*sys.warnoptions}), sys._xoptions)"
    code = f"from windlass.sandbox.interpreter import interpreter_options as own; print(own()); {tell}"
    first, parent = _output(*options, "-c", code).splitlines()
    assert _output(*ast.literal_eval(first), "-c", tell).splitlines() == [parent]


def _output(*arguments: str) -> str:
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True).stdout
