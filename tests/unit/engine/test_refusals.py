"""A request that is refused changes nothing."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.backends.file.twins import dump
from windlass.backend import flow_requests as fl
from windlass.backend import limit_requests as lrq
from windlass.backend import requests as rq
from windlass.backend import stream_requests as sm
from windlass.backends.file.store import FileStore
from windlass.core.edges import Dependency
from windlass.core.job import SIGNALS_KEPT, JobRef, NewJob
from windlass.core.limit_rules import GroupLimits
from windlass.core.options import StoredOptions

NOW_MS = 1_760_000_000_000


def _new(job_id: str, **facts: Any) -> NewJob:
    return NewJob(queue="q", id=job_id, task="t", payload=b"{}", request_id=job_id, **facts)


def _store() -> FileStore:
    store = FileStore()
    ranked = _new("ranked", priority=5, options=StoredOptions(group="g"))
    store.apply(rq.Add(jobs=[_new("a"), _new("b", depends_on=[Dependency("q", "a")]), ranked]), NOW_MS)
    for n in range(SIGNALS_KEPT):
        store.apply(fl.Signal(ref=JobRef("q", "a"), name=f"s{n}", data=b"1"), NOW_MS)
    claim = rq.Claim(worker="w", queues=[rq.ClaimQueue("q", 1, 1)], limit=1, claim_id="c")
    store.apply(claim, NOW_MS)
    store.take_step()
    return store


_TOKEN = "c.3"  # of ``ranked``, which has the highest priority

REFUSED: dict[str, rq.Request[Any]] = {
    "a circle": rq.Add(jobs=[_new("a2", depends_on=[Dependency("q", "b")], parent=Dependency("q", "a"))]),
    "an unknown dependency": rq.Add(jobs=[_new("x"), _new("y", depends_on=[Dependency("q", "nowhere")])]),
    "an unknown parent": rq.Add(jobs=[_new("x", parent=Dependency("q", "nowhere"))]),
    "too many signals": fl.Signal(ref=JobRef("q", "a"), name="one more", data=b"1"),
    "a group that cannot be ordered": lrq.SetGroupLimits(
        queue="q", group="g", limits=GroupLimits(ordered=True)
    ),
    "every group, of which one cannot be ordered": lrq.SetGroupLimits(
        queue="q", group="*", limits=GroupLimits(ordered=True)
    ),
    "a gap in the output": sm.AppendStream(ref=JobRef("q", "ranked"), token=_TOKEN, first=7, chunks=[b"x"]),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_request_that_is_refused_changes_nothing(what: str) -> None:
    store = _store()
    before = msgspec.msgpack.encode(dump(store))
    with pytest.raises(Exception):  # noqa: B017 - whatever the refusal is
        store.apply(REFUSED[what], NOW_MS + 1)
    assert msgspec.msgpack.encode(dump(store)) == before
    assert store.take_step().effects == []
