"""Frames that we write and read ourselves are those that pika writes and reads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import BasicProperties, spec
from pika.frame import Body, Header, Method, decode_frame

from windlass.speedups import amqp_frames as frames

_names = st.text(max_size=40)
_headers = st.one_of(
    st.none(),
    st.fixed_dictionaries({frames.HEADER: st.binary(max_size=60)}),
    st.dictionaries(st.text(min_size=1, max_size=9), st.one_of(st.text(), st.integers(-9, 9))),
    st.fixed_dictionaries({"x-death": st.just(1), frames.HEADER: st.binary(max_size=9)}),
    st.fixed_dictionaries({frames.HEADER: st.text(max_size=9)}),
)
_properties = st.fixed_dictionaries(
    {
        "content_type": st.none() | _names,
        "content_encoding": st.none() | _names,
        "headers": _headers,
        "delivery_mode": st.none() | st.just(2),
        "priority": st.none() | st.integers(0, 10),
        "message_id": st.none() | _names,
    }
)


def _frames_of(method: Any, properties: BasicProperties, body: bytes, most: int) -> bytes:
    """What pika makes of a message on channel 7."""
    parts = [Body(7, body[at : at + most]).marshal() for at in range(0, len(body), most)]
    return b"".join([Method(7, method).marshal(), Header(7, len(body), properties).marshal(), *parts])


@given(_names, _names, st.booleans(), _properties, st.binary(max_size=50))
def test_a_published_message_is_what_pika_writes(
    exchange: str, key: str, mandatory: bool, given_properties: dict[str, Any], body: bytes
) -> None:
    method = spec.Basic.Publish(exchange=exchange, routing_key=key, mandatory=mandatory)
    told = frames.properties(**given_properties)
    ours = frames.published(7, exchange, key, mandatory, told, body, 20)
    assert b"".join(ours) == _frames_of(method, BasicProperties(**given_properties), body, 20)


@given(st.binary(max_size=80), st.integers(0, 10), _names)
def test_the_properties_of_a_job_are_what_pika_writes(header: bytes, priority: int, message_id: str) -> None:
    wanted = frames.properties(
        content_type="application/json",
        delivery_mode=2,
        headers={frames.HEADER: header},
        priority=priority or None,
        message_id=message_id or None,
    )
    assert frames.job_properties(header, priority, message_id) == wanted


@given(st.integers(0, 2**63), st.booleans())
def test_an_acknowledgement_is_what_pika_writes(tag: int, multiple: bool) -> None:
    wanted = Method(7, spec.Basic.Ack(tag, multiple)).marshal()
    assert frames.acknowledged(7, tag, multiple) == wanted
    assert frames.read_ack(b"more" + wanted, 4) == (tag, multiple)


@given(_properties, st.binary(min_size=1, max_size=50), st.booleans(), st.integers(0, 3))
def test_a_delivered_message_is_what_pika_reads(
    given_properties: dict[str, Any], body: bytes, redelivered: bool, before: int
) -> None:
    method = spec.Basic.Deliver("ctag", 12, redelivered, "exchange", "key")
    written = _frames_of(method, BasicProperties(**given_properties), body, 1_000)
    data = b"." * before + written + b"the next one"
    end = before + decode_frame(written)[0]
    assert data[before + 7 : before + 11] == frames.DELIVER
    assert frames.read_consumer(data, before) == b"ctag"
    found = frames.read_delivery(data, before, end)
    assert found is not None
    message, over = found
    assert over == before + len(written)
    header = (given_properties["headers"] or {}).get(frames.HEADER)
    assert message == frames.Delivery(
        12,
        redelivered,
        header if isinstance(header, bytes) else None,
        given_properties["priority"] or 0,
        body,
    )
    whole = frames.read_message(data, end)
    assert whole is not None
    assert (vars(whole[0]), *whole[1:]) == (
        vars(decode_frame(written[end - before :])[1].properties),
        body,
        over,
    )


@pytest.mark.parametrize("most", [4, 100])
def test_a_message_in_pieces_is_left_to_pika(most: int) -> None:
    method = spec.Basic.Deliver("ctag", 12, False, "exchange", "key")
    written = _frames_of(method, BasicProperties(headers={frames.HEADER: b"ours"}), b"body" * 2, most)
    end = decode_frame(written)[0]
    whole = range(len(written), len(written) + 1) if most == 100 else ()
    for size in range(end, len(written) + 1):
        assert (frames.read_delivery(written[:size], 0, end) is not None) == (size in whole)
        assert (frames.read_message(written[:size], end) is not None) == (size in whole)
    empty = _frames_of(method, BasicProperties(), b"", most) + written
    assert frames.read_delivery(empty, 0, end) is None
