"""How a store runs a verb: read what it asks for, go on, until it has its answer; then one write."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from windlass.engine.reads import Port, Verb
    from windlass.engine.work import Work

R = TypeVar("R")


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
