"""Flows: jobs that wait for other jobs.

``builder`` has ``chain``, ``group`` and ``chord``; ``producer`` adds whole trees; ``tree`` reads a flow.
"""

from windlass.core.edges import Dependency, Edge, EdgeStatus, OnFailure
from windlass.flows.builder import FlowGroup, Step, chain, chord, group, step
from windlass.flows.producer import FlowProducer
from windlass.flows.tree import JobNode
from windlass.jobs.payload import RESULT

__all__ = [
    "RESULT",
    "Dependency",
    "Edge",
    "EdgeStatus",
    "FlowGroup",
    "FlowProducer",
    "JobNode",
    "OnFailure",
    "Step",
    "chain",
    "chord",
    "group",
    "step",
]
