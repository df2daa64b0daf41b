"""What is added is what comes back, whatever its shape."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.app.support import work_off
from windlass import ConfigError, Job, JobState, Windlass
from windlass.core.job import NewJob
from windlass.errors import PayloadTooLargeError
from windlass.jobs.payload import Call, pack_call, pack_data, read_call, unpack
from windlass.serde import JSON
from windlass.serde.codecs import Codecs

FORMS: list[Any] = [
    None,
    {},
    {"a": 1},
    {"args": [1], "kwargs": {"x": 2}},
    {"form": "value"},
    {"nested": {"list": [1, {"deep": None}]}},
    [],
    [1, 2, 3],
    [[]],
    [None],
    "",
    "text",
    0,
    1.5,
    True,
    False,
    2**63,
    -(2**63),
    "ünïcödé \u2028 \U0001f600",
]


@pytest.mark.feature("A1", "A19", "W3")
@pytest.mark.parametrize("data", FORMS, ids=repr)
async def test_data_is_given_back_exactly(app: Windlass, data: Any) -> None:
    queue = app.queue("default")
    job = await queue.add("work", data)
    assert job.data == data
    assert type(job.data) is type(data)
    stored = await queue.get_job(job.id)
    assert stored is not None
    assert stored.data == data
    assert type(stored.data) is type(data)


@pytest.mark.feature("J1")
async def test_the_handler_sees_the_data_that_was_added(app: Windlass) -> None:
    seen: list[Any] = []

    async def handler(job: Job[Any]) -> None:
        seen.append(job.data)

    queue = app.queue("default")
    for data in FORMS:
        await queue.add("work", data)
    await work_off(app, "default", handler, concurrency=1)
    assert seen == FORMS


def test_a_tuple_is_stored_as_a_list() -> None:
    assert unpack({"args": [1, 2], "form": "list"}).data == [1, 2]
    assert pack_data((1, 2)) == {"args": [1, 2], "form": "list"}


def test_objects_become_keyword_arguments_lists_positional_ones_others_one() -> None:
    assert unpack(pack_data({"a": 1})) == Call([], {"a": 1}, "object")
    assert unpack(pack_data([1, 2])) == Call([1, 2], {}, "list")
    assert unpack(pack_data("x")) == Call(["x"], {}, "value")
    assert unpack(pack_data(None)) == Call([], {}, "none")


def test_any_language_can_write_args_and_kwargs_both_optional() -> None:
    assert unpack({}) == Call([], {})
    assert unpack({"args": [1]}).data == [1]
    assert unpack({"kwargs": {"a": 1}}).data == {"a": 1}
    assert unpack({"args": [1], "kwargs": {"a": 2}}).data == {"args": [1], "kwargs": {"a": 2}}
    assert unpack({}).data is None


def test_a_call_stores_only_what_it_has() -> None:
    assert pack_call((), {}) == {}
    assert pack_call((1,), {"b": 2}) == {"args": [1], "kwargs": {"b": 2}}


@pytest.mark.parametrize(
    "stored", [None, [], 5, "x", {"args": {}}, {"kwargs": []}, {"args": [], "form": "value"}]
)
def test_what_is_not_a_call_is_refused(stored: Any) -> None:
    with pytest.raises(ValueError, match=r"args|object|argument"):
        unpack(stored)


def test_object_keys_must_be_texts() -> None:
    with pytest.raises(ConfigError, match="data has a key that is not a text: 1"):
        pack_data({1: "a"})


@pytest.mark.feature("A37")
async def test_a_payload_over_the_cap_is_refused_and_nothing_is_stored(app: Windlass) -> None:
    queue = app.queue("default")
    with pytest.raises(PayloadTooLargeError) as refused:
        await queue.add("work", "x" * 1_000_000)
    assert refused.value.limit == 1_000_000
    assert refused.value.size > 1_000_000
    assert "reference" in str(refused.value)
    assert await queue.count() == 0


@pytest.mark.feature("A37")
async def test_one_item_over_the_cap_refuses_the_whole_bulk(app: Windlass) -> None:
    queue = app.queue("default")
    with pytest.raises(PayloadTooLargeError):
        await queue.add_bulk([{"name": "a"}, {"name": "b", "data": "x" * 1_000_001}])
    assert await queue.count() == 0


@pytest.mark.feature("A37")
async def test_the_cap_can_be_set_by_the_app(url: str) -> None:
    async with Windlass(url, max_payload_bytes=100) as app:
        queue = app.queue("default")
        await queue.add("work", "x" * 50)
        with pytest.raises(PayloadTooLargeError, match="bytes once encoded, over the limit of 100"):
            await queue.add("work", "x" * 100)


@pytest.mark.feature("C17")
@pytest.mark.parametrize("raw", [b"", b"not json", b"[1, 2]", b'{"args": 5}', b"\xff\xfe"], ids=repr)
async def test_bytes_that_are_no_call_fail_with_their_reason_and_are_kept(app: Windlass, raw: bytes) -> None:
    from windlass.backend import requests as rq

    queue = app.queue("default")
    new = queue.prepare("work")
    new.payload = raw
    await app.store.execute(rq.Add(jobs=[new]))
    healthy = await queue.add("work", {"ok": True})
    ran: list[str] = []

    async def handler(job: Job[Any]) -> None:
        ran.append(job.id)

    await work_off(app, "default", handler)
    bad = await queue.get_job(new.id)
    assert bad is not None
    assert bad.state is JobState.FAILED
    assert bad.reason == "bad_payload"
    assert bad.record.payload == raw
    assert bad.errors[-1].error_class == "BadPayload"
    assert bad.attempts == 0, "it is not the handler's fault"
    assert ran == [healthy.id]


_plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_stored = _plain | st.fixed_dictionaries(
    {},
    optional={
        "args": st.lists(_plain, max_size=2) | _plain,
        "kwargs": st.dictionaries(st.text(max_size=3), _plain, max_size=2) | _plain,
        "form": st.sampled_from(["call", "none", "object", "list", "value"]) | _plain,
        "more": _plain,
    },
)


_CODECS = Codecs(JSON)


@given(st.one_of(_stored.map(msgspec.json.encode), st.binary(max_size=20)))
def test_both_ways_to_read_a_payload_agree(payload: bytes) -> None:
    """The short way, which most payloads take, and the way of all codecs."""
    try:
        expected = unpack(JSON.decode(payload))
    except Exception as exc:  # every refusal
        with pytest.raises(type(exc)) as refused:
            read_call(_CODECS, NewJob(queue="q", id="j", task="t", payload=payload))
        assert str(refused.value) == str(exc)
    else:
        assert read_call(_CODECS, NewJob(queue="q", id="j", task="t", payload=payload)) == expected
