"""What a store implements (``Port``), and the loop that runs a verb on it."""

from __future__ import annotations

from typing import Protocol, TypeVar

from windlass.engine.effects import Effects
from windlass.engine.flows import notify_dependents
from windlass.engine.reads import Reads, Verb
from windlass.engine.unit_of_work import UnitOfWork

R = TypeVar("R")


class Port(Protocol):
    """What a store implements. Both methods run inside its transaction."""

    def load(self, reads: Reads, work: UnitOfWork) -> None:
        """Load everything that ``reads`` requests into ``work``."""

    def write(self, effects: Effects) -> None:
        """Write the effects to the tables of the store."""


def run(verb: Verb[R], port: Port, work: UnitOfWork) -> R:
    """Run a verb, notify the dependents of the jobs that it ended, write the effects and return the answer.

    An asynchronous store has the same code with ``await``.
    """
    answer = _read_and_decide(verb, port, work)
    if work.ended:
        _read_and_decide(notify_dependents(work), port, work)
    work.close()
    port.write(work.effects)
    return answer


def _read_and_decide(verb: Verb[R], port: Port, work: UnitOfWork) -> R:
    while True:
        try:
            reads = verb.send(None)
        except StopIteration as end:
            answer: R = end.value
            return answer
        port.load(reads, work)
