"""Coroutines on the I/O loop of a connection, without a broker."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from windlass.backends.amqp import io_future
from windlass.backends.amqp.io_future import IoFuture, spawn
from windlass.errors import StorageError

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


class _Interrupted(deque[Callable[[], None]]):
    """Between two callbacks a signal handler raises, as it may on the thread of a caller."""

    left = 1

    def __bool__(self) -> bool:
        if self.left:
            self.left -= 1
            raise KeyboardInterrupt
        return len(self) > 0


def test_callbacks_run_again_after_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(io_future._callbacks_due, "_due", _Interrupted())
    called: list[int] = []
    for number in range(2):
        future: IoFuture[None] = IoFuture()
        future.then(lambda number=number: called.append(number))  # type: ignore[misc]
        if number == 0:
            with pytest.raises(KeyboardInterrupt):
                future.set(None)
        else:
            future.set(None)
    assert called == [0, 1]


def test_an_interrupt_in_a_coroutine_is_raised_and_fails_its_future() -> None:
    """Others may wait for the future, on other threads: it is not theirs."""
    started, outcomes = IoFuture[None](), list[IoFuture[None]]()

    async def interrupted() -> None:
        await started
        raise KeyboardInterrupt

    outcomes.append(spawn(interrupted()))
    with pytest.raises(KeyboardInterrupt):
        started.set(None)
    with pytest.raises(StorageError, match="interrupted"):
        outcomes[0].result()
