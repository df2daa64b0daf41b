"""Celery's signals for publishing a task and for each run of one. Others have no counterpart in Windlass.

Receivers are called in the thread of the task (or of the producer). An error of a receiver is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from windlass.errors import ConfigError

log: Final = logging.getLogger("windlass.compat.celery")

Receiver = Callable[..., Any]


class Signal:
    """A list of receivers: functions of ``(sender, **facts)``."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._receivers: dict[tuple[Any, Any], Receiver] = {}

    def __repr__(self) -> str:
        return f"<Signal {self.name}>"

    @property
    def receivers(self) -> list[Receiver]:
        """The connected functions."""
        return list(self._receivers.values())

    def connect(
        self,
        receiver: Receiver | None = None,
        sender: Any = None,
        weak: bool = False,
        dispatch_uid: Any = None,
    ) -> Any:
        """Call ``receiver`` for this signal, only from ``sender`` if given. Also usable as a decorator.

        Receivers are referenced until ``disconnect``, even with ``weak``.
        """
        if receiver is None:
            return lambda fn: self.connect(fn, sender, weak, dispatch_uid)
        self._receivers[dispatch_uid or receiver, _key(sender)] = receiver
        return receiver

    def disconnect(self, receiver: Any = None, sender: Any = None, dispatch_uid: Any = None) -> bool:
        """Disconnect a receiver. Returns False if it was not connected."""
        return self._receivers.pop((dispatch_uid or receiver, _key(sender)), None) is not None

    def send(self, sender: Any, **facts: Any) -> list[tuple[Receiver, Any]]:
        """Call all receivers of ``sender``; returns what each returned or raised."""
        answers: list[tuple[Receiver, Any]] = []
        for (_, wanted), receiver in list(self._receivers.items()):
            if wanted is None or wanted == _key(sender):
                try:
                    answers.append((receiver, receiver(signal=self, sender=sender, **facts)))
                except Exception as exc:
                    log.exception("a receiver of the signal %s failed", self.name)
                    answers.append((receiver, exc))
        return answers


def _key(sender: Any) -> Any:
    """Identify tasks by name, so that a shared task and its proxy are the same sender."""
    return getattr(sender, "name", sender)


before_task_publish = Signal("before_task_publish")
after_task_publish = Signal("after_task_publish")
task_prerun = Signal("task_prerun")
task_postrun = Signal("task_postrun")
task_success = Signal("task_success")
task_failure = Signal("task_failure")
task_retry = Signal("task_retry")


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    known = ", ".join(key for key, value in globals().items() if isinstance(value, Signal))
    raise ConfigError(
        "signal",
        message=f"there is no signal {name!r} (known: {known}); for a worker's start and stop use "
        "app.windlass.lifespan",
        got=name,
    )
