"""Which code runs a job."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from windlass import ConfigError
from windlass.handlers.registry import Handler, Registry


def _handler(tag: str) -> Handler:
    def call(job: Any) -> str:
        return tag

    return Handler(call, takes_job=True)


def test_a_queues_own_handler_comes_first_then_the_name_then_the_fallback() -> None:
    own, general, fallback = _handler("own"), _handler("general"), _handler("fallback")
    known = Registry(fallback)
    known.add("send", general)
    known.add("send", own, queue="mail")
    assert known.find("mail", "send") is own
    assert known.find("other", "send") is general
    assert known.find("mail", "unknown") is fallback
    assert Registry().find("mail", "send") is None


def test_names_with_colons_do_not_collide() -> None:
    one, two = _handler("one"), _handler("two")
    known = Registry()
    known.add("c", one, queue="a.b")
    known.add("b:c", two, queue="a")
    assert known.find("a.b", "c") is one
    assert known.find("a", "b:c") is two
    assert known.find("a", "c") is None


def test_registering_again_replaces() -> None:
    known = Registry()
    known.add("send", _handler("old"))
    new = _handler("new")
    known.add("send", new)
    assert known.find("mail", "send") is new
    assert known.names() == ["send"]


def test_what_cannot_be_called_or_named_is_refused() -> None:
    known = Registry()
    with pytest.raises(ConfigError, match="callable"):
        known.add("send", Handler(5, takes_job=True))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="queue"):
        known.add("send", _handler("x"), queue="a:b")
    with pytest.raises(ConfigError, match="name"):
        known.add("", _handler("x"))


async def _coroutine(job: Any) -> None: ...


def _plain(job: Any) -> None: ...


class _AsyncObject:
    async def __call__(self, job: Any) -> None: ...

    async def method(self, job: Any) -> None: ...


class _PlainObject:
    def __call__(self, job: Any) -> None: ...


@pytest.mark.parametrize(
    ("call", "mode"),
    [
        (_coroutine, "loop"),
        (_plain, "thread"),
        (functools.partial(_coroutine, None), "loop"),
        (functools.partial(functools.partial(_plain), None), "thread"),
        (_AsyncObject(), "loop"),
        (_AsyncObject().method, "loop"),
        (_PlainObject(), "thread"),
        (print, "thread"),
    ],
)
def test_where_a_handler_runs_follows_from_what_it_is(call: Any, mode: str) -> None:
    assert Handler(call, takes_job=True).mode == mode


def test_isolation_overrules_what_it_is() -> None:
    assert Handler(_coroutine, takes_job=True, isolation="process").mode == "process"
    assert Handler(_plain, takes_job=True, isolation="thread").mode == "thread"
