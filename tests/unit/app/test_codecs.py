"""How arguments and results become bytes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
import pytest

from tests.unit.app.support import work_off, working
from windlass import ConfigError, Job, JobState, Windlass
from windlass.errors import PayloadTooLargeError
from windlass.serde import Codec, ZlibCodec, get_codec, register_codec
from windlass.serde.codecs import Codecs
from windlass.serde.encrypted import EncryptedCodec, new_key


async def _echo(job: Job[Any]) -> Any:
    return job.data


@pytest.mark.feature("W1", "W3", "Z6")
async def test_json_is_the_default_and_readable_by_anyone(app: Windlass) -> None:
    job = await app.queue("default").add("work", {"when": datetime(2024, 1, 2, tzinfo=UTC), "n": [1]})
    stored = await app.queue("default").get_job(job.id)
    assert stored is not None
    assert stored.record.codec == "json"
    assert msgspec.json.decode(stored.record.payload) == {
        "kwargs": {"when": "2024-01-02T00:00:00Z", "n": [1]},
        "form": "object",
    }


@pytest.mark.feature("W2")
async def test_msgpack_keeps_bytes_and_is_named_with_the_job(url: str) -> None:
    async with Windlass(url, codec="msgpack") as app:
        queue = app.queue("default")
        job = await queue.add("work", {"blob": b"\x00\xff", "n": 2**60})
        await work_off(app, "default", _echo)
        assert await job.result() == {"blob": b"\x00\xff", "n": 2**60}
        assert job.record.codec == "msgpack"


@pytest.mark.feature("W1", "W2")
async def test_jobs_of_several_codecs_live_in_one_queue(url: str) -> None:
    async with Windlass(url) as plain, Windlass(url, codec="msgpack") as packed:
        one = await plain.queue("default").add("work", {"a": 1})
        two = await packed.queue("default").add("work", {"a": 2})
        await work_off(plain, "default", _echo)
        assert [await one.result(), await two.result()] == [{"a": 1}, {"a": 2}]


@pytest.mark.feature("W1")
async def test_results_can_have_a_codec_of_their_own(url: str) -> None:
    async with Windlass(url, codec="json", result_codec="msgpack") as app:
        queue = app.queue("default")

        async def handler(job: Job[Any]) -> bytes:
            await job.update_progress(b"half")
            return b"\x00raw"

        job = await queue.add("work", {"a": 1})
        await work_off(app, "default", handler)
        assert await job.result() == b"\x00raw"
        assert job.progress == b"half"
        assert msgspec.json.decode(job.record.payload) == {"kwargs": {"a": 1}, "form": "object"}
        again = await queue.add_and_wait("work", {"a": 1}, job_id=job.id)
        assert again == b"\x00raw"


class Upper:
    """Text in capitals, as UTF-8."""

    name = "test-upper"

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value).decode().swapcase().encode()

    def decode(self, data: bytes) -> Any:
        return msgspec.json.decode(data.decode().swapcase())


@pytest.mark.feature("W1", "W2")
async def test_a_codec_of_ones_own_is_used_for_payloads_and_results(url: str) -> None:
    async with Windlass(url, codec=Upper()) as app:
        job = await app.queue("default").add("work", {"Key": "Value"})
        assert b'"kEY":"vALUE"' in job.record.payload
        await work_off(app, "default", _echo)
        assert await job.result() == {"Key": "Value"}
        assert job.record.codec == "test-upper"


@pytest.mark.parametrize(
    "wrong", ["nosuch", "+zlib", type("Half", (), {"name": "half", "encode": None})(), object()]
)
def test_what_is_no_codec_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="codec"):
        Windlass("memory://codecs", codec=wrong)


def test_a_codecs_name_must_be_short_text() -> None:
    class Long(Upper):
        name = "x" * 33

    with pytest.raises(ConfigError, match="codec must be an object"):
        register_codec(Long())


@pytest.mark.feature("C17", "W1")
async def test_a_job_in_a_codec_that_this_worker_does_not_know_fails_with_its_reason(url: str) -> None:
    from windlass.backend import requests as rq

    async with Windlass(url) as app:
        queue = app.queue("default")
        new = queue.prepare("work")
        new.codec = "of-tomorrow"
        await app.store.execute(rq.Add(jobs=[new]))
        await work_off(app, "default", _echo)
        job = await queue.get_job(new.id)
        assert job is not None
        assert (job.state, job.reason) == (JobState.FAILED, "bad_payload")
        assert job.record.payload == new.payload


# --- compression -----------------------------------------------------------------------------------------


@pytest.mark.feature("A37")
async def test_large_values_are_compressed_small_ones_stay_readable(url: str) -> None:
    async with Windlass(url, compress=True) as app:
        queue = app.queue("default")
        small = await queue.add("work", {"text": "short"})
        large = await queue.add("work", {"text": "long " * 5_000})
        assert b"short" in small.record.payload
        assert len(large.record.payload) < 1_000
        await work_off(app, "default", _echo)
        assert await large.result() == {"text": "long " * 5_000}
        assert await small.result() == {"text": "short"}
        assert len((await large.refresh()).record.result or b"") < 1_000


@pytest.mark.feature("A37")
async def test_a_payload_over_the_cap_may_fit_once_compressed(url: str) -> None:
    async with Windlass(url, compress=True) as app:
        job = await app.queue("default").add("work", "x" * 3_000_000)
        assert len(job.data) == 3_000_000


@pytest.mark.feature("A37", "W1")
async def test_a_worker_without_the_setting_reads_compressed_jobs(url: str) -> None:
    async with Windlass(url, compress=True) as producer, Windlass(url) as consumer:
        job = await producer.queue("default").add("work", "y" * 10_000)
        await work_off(consumer, "default", _echo)
        assert await job.result() == "y" * 10_000


def test_data_that_does_not_shrink_is_kept_as_it_is() -> None:
    import random

    codec = ZlibCodec(get_codec("msgpack"))
    noise = random.Random(1).randbytes(5_000)
    assert codec.decode(codec.encode(noise)) == noise


@pytest.mark.parametrize("inner", ["json", "msgpack"])
@pytest.mark.parametrize(
    "value", [120, "x" * 10, {"x": 1}, ["x"] * 3_000, b"x" * 3_000, None], ids=lambda v: repr(v)[:9]
)
def test_compressed_and_plain_data_are_never_confused(inner: str, value: Any) -> None:
    if inner == "json" and isinstance(value, bytes):
        value = value.decode()
    codec = get_codec(f"{inner}+zlib")
    assert codec.decode(codec.encode(value)) == value


class Text:
    """Text as it is: its bytes may begin with anything, zlib's mark included."""

    name = "test-text"

    def encode(self, value: Any) -> bytes:
        return str(value).encode()

    def decode(self, data: bytes) -> Any:
        return data.decode()


@pytest.mark.parametrize("value", ["x", "xyz", "x" * 5_000, "x\x9c", "a" * 5_000])
def test_compression_is_safe_around_any_codec(value: str) -> None:
    codec = ZlibCodec(Text())
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.feature("A37", "W1")
@pytest.mark.parametrize("size", [9_000, 20_000])
def test_what_an_add_accepts_is_never_too_large_to_be_decompressed(size: int) -> None:
    codecs, value = Codecs(ZlibCodec(get_codec("json"), limit=10_000)), "a" * size
    assert codecs.unpacked(codecs.pack(value, max_bytes=30_000)) == value
    if size < 10_000:
        assert len(codecs.pack(value, max_bytes=1_000)) < 100
    else:
        with pytest.raises(PayloadTooLargeError):
            codecs.pack(value, max_bytes=1_000)


def test_a_large_value_that_could_be_taken_for_a_compressed_one_is_refused() -> None:
    codec = ZlibCodec(Text(), limit=10_000)
    assert codec.decode(codec.encode("x" * 10_000)) == "x" * 10_000
    with pytest.raises(PayloadTooLargeError):
        codec.encode("x" * 10_001)


@pytest.mark.parametrize("damaged", [b"x\x9cgarbage", b"x\x01", b"xx"])
def test_damaged_compressed_data_is_a_value_error(damaged: bytes) -> None:
    with pytest.raises(ValueError, match=r"damaged|cut off|malformed|JSON"):
        get_codec("json+zlib").decode(damaged)


async def test_a_codec_that_breaks_on_a_result_fails_the_job(url: str) -> None:
    class Fragile(Upper):
        name = "test-fragile"

        def encode(self, value: Any) -> bytes:
            if value == "boom":
                raise ZeroDivisionError
            return super().encode(value)

    async with Windlass(url, codec=Fragile()) as app:
        job = await app.queue("default").add("work")
        async with working(app, "default", lambda job: "boom"):
            assert await job.wait_until_finished(timeout=10) is JobState.FAILED
        assert job.reason == "result"


@pytest.mark.feature("Z6")
def test_there_is_no_pickle() -> None:
    with pytest.raises(ConfigError, match="one of"):
        get_codec("pickle")


class _SaltedCodec:
    """A codec that is not ours and never writes the same bytes twice."""

    name = "salted"

    def __init__(self) -> None:
        self._salts = count()

    def encode(self, value: Any) -> bytes:
        return b"%d " % next(self._salts) + msgspec.json.encode(value)

    def decode(self, data: bytes) -> Any:
        return msgspec.json.decode(data.partition(b" ")[2])


@pytest.mark.parametrize(
    "codec",
    [EncryptedCodec({"k": new_key()}), ZlibCodec(EncryptedCodec({"k": new_key()})), _SaltedCodec()],
    ids=["encrypted", "compressed", "custom"],
)
@pytest.mark.parametrize(("every", "who"), [(30, "ada"), (60, "bob")])
async def test_a_schedule_whose_bytes_differ_each_time_may_be_declared_again_only_as_it_is(
    codec: Codec, every: int, who: str
) -> None:
    app = Windlass("memory://", codec=codec)
    for _ in range(2):
        app.schedule("sync", {"every": 60}, "sync", "ada", queue="default")
    with pytest.raises(ConfigError, match="already has a schedule 'sync'"):
        app.schedule("sync", {"every": every}, "sync", who, queue="default")
