"""Coroutines on the I/O loop of a connection, without a broker."""

from __future__ import annotations

import pytest

from windlass.backends.amqp.io_future import IoFuture, spawn

backend_name = "amqp"
MANY = 20_000


def test_a_long_chain_of_waiting_coroutines_needs_no_deep_stack() -> None:
    first: IoFuture[None] = IoFuture()
    last, done = first, list[int]()

    async def wait(before: IoFuture[None], after: IoFuture[None], number: int) -> None:
        await before
        done.append(number)
        after.set(None)

    for number in range(MANY):
        after: IoFuture[None] = IoFuture()
        spawn(wait(last, after, number))
        last = after
    first.set(None)
    assert last.done
    assert done == list(range(MANY))


def test_a_callback_that_fails_does_not_keep_others_waiting() -> None:
    future, called = IoFuture[None](), list[str]()

    def fail() -> None:
        raise ValueError("no")

    future.then(fail)
    future.then(lambda: called.append("second"))
    with pytest.raises(ValueError, match="no"):
        future.set(None)
    assert called == ["second"]
