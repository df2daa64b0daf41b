"""How a store runs a verb: read what it asks for, go on, until it has its answer; then one write."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from windlass.engine.flows import tell

if TYPE_CHECKING:
    from windlass.engine.reads import Port, Verb
    from windlass.engine.work import Work

R = TypeVar("R")


def run(verb: Verb[R], port: Port, work: Work) -> R:
    """The answer of ``verb``, with its effects written, and told what waits for the jobs that it ended.

    A store that awaits has the same lines with await.
    """
    answer = _read_and_decide(verb, port, work)
    if work.ended:
        _read_and_decide(tell(work), port, work)
    work.close()
    port.write(work.effects)
    return answer


def _read_and_decide(verb: Verb[R], port: Port, work: Work) -> R:
    while True:
        try:
            reads = verb.send(None)
        except StopIteration as end:
            answer: R = end.value
            return answer
        port.load(reads, work)
