"""What a store brings, and how it runs a verb: it reads what the verb asks for, until that has its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from windlass.engine.effects import Effects
    from windlass.engine.reads import Reads, Verb
    from windlass.engine.work import Work

R = TypeVar("R")


class Port(Protocol):
    """What a store brings, inside its transaction."""

    def load(self, reads: Reads, work: Work) -> None:
        """Put all that is asked for into ``work``."""

    def write(self, effects: Effects) -> None:
        """Make it so."""


def run(verb: Verb[R], port: Port, work: Work) -> R:
    """The answer of ``verb``, with its effects written. A store that awaits has the same lines with await."""
    while True:
        try:
            reads = verb.send(None)
        except StopIteration as end:
            answer: R = end.value
            break
        port.load(reads, work)
    work.close()
    port.write(work.effects)
    return answer
