"""Celery's signals, as far as there is something to tell: publishing a task, and each run of one.

Receivers are called in the thread of the task (or of the producer). One that raises is logged.
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
        """The functions that are connected."""
        return list(self._receivers.values())

    def connect(
        self,
        receiver: Receiver | None = None,
        sender: Any = None,
        weak: bool = False,
        dispatch_uid: Any = None,
    ) -> Any:
        """Call ``receiver`` when it happens, with ``sender`` only for that one; also a decorator.

        Receivers are held until ``disconnect``, also when ``weak`` is asked for.
        """
        if receiver is None:
            return lambda fn: self.connect(fn, sender, weak, dispatch_uid)
        self._receivers[dispatch_uid or receiver, _key(sender)] = receiver
        return receiver

    def disconnect(self, receiver: Any = None, sender: Any = None, dispatch_uid: Any = None) -> bool:
        """Call it no more; False when it was not connected."""
        return self._receivers.pop((dispatch_uid or receiver, _key(sender)), None) is not None

    def send(self, sender: Any, **facts: Any) -> list[tuple[Receiver, Any]]:
        """Call all receivers of ``sender``; what each returned, or raised."""
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
    """Tasks are known by their names: a shared task and its proxy are one sender."""
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
    want = f"one of {known}; for a worker's start and stop use app.windlass.lifespan"
    raise ConfigError("signal", want, name)
