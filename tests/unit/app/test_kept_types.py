"""A task gets what it was enqueued with: a value whose type would be lost is refused, or kept by tags."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from windlass import ConfigError, Windlass, Worker
from windlass.serde import get_codec

ID = UUID("018f4d2e-7c3a-7c11-9d3b-0123456789ab")


@dataclass
class Point:
    x: int
    y: int


#: What JSON would hand to an untyped parameter as something else, and what it would be.
CHANGED = {
    "decimal": (Decimal("1.50"), "a decimal.Decimal would arrive as str"),
    "datetime": (datetime(2026, 1, 2, 3, 4, tzinfo=UTC), "a datetime.datetime would arrive as str"),
    "date": (date(2026, 1, 2), "a datetime.date would arrive as str"),
    "uuid": (ID, "a uuid.UUID would arrive as str"),
    "bytes": (b"\x00\xff", "a bytes would arrive as str"),
    "set": ({1}, "a set would arrive as list"),
    "tuple": ((1, 2), "a tuple would arrive as list"),
}
POINT = Point(1, 2)


@pytest.fixture
async def app() -> AsyncIterator[Windlass]:
    async with Windlass("memory://") as app:
        yield app


@pytest.mark.parametrize("kind", CHANGED)
async def test_an_untyped_parameter_refuses_what_would_change_and_names_the_annotation(
    app: Windlass, kind: str
) -> None:
    value, said = CHANGED[kind]

    @app.task(name="untyped")
    async def untyped(price) -> None: ...  # type: ignore[no-untyped-def]

    name = said.split()[1]
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        await untyped.enqueue(value)
    assert "argument 'price' of task 'untyped' must be annotated" in str(caught.value)
    assert f"write price: {name}" in str(caught.value)
    assert "codec='json+tagged'" in str(caught.value)
    with pytest.raises(ConfigError, match="argument 'price'"):
        await untyped.enqueue(price={"deep": [value]})
    assert await untyped.queue.count() == 0


async def test_keys_that_are_no_text_are_named(app: Windlass) -> None:
    @app.task(name="untyped")
    async def untyped(prices) -> None: ...  # type: ignore[no-untyped-def]

    with pytest.raises(ConfigError, match="the int keys of a dict would arrive as str") as caught:
        await untyped.enqueue({1: "a"})
    assert "write prices: dict[int, ...]" in str(caught.value)
    with pytest.raises(ConfigError, match="the int keys of a dict would arrive as str"):
        await untyped.enqueue({"deep": [{1: "a"}]})
    with pytest.raises(ConfigError, match=r"with list\[uuid\.UUID\]"):
        await untyped.enqueue([ID])


async def test_an_annotation_decides_which_sequence_the_task_gets(app: Windlass) -> None:
    @app.task(name="pages")
    async def pages(items: list, once: set = frozenset()) -> str:  # type: ignore[type-arg,assignment]
        return f"{items} {once}"

    job = await pages.enqueue((1, 2), once=[3])  # type: ignore[arg-type]
    await Worker("default", url_or_app=app).drain()
    assert await job.result() == "[1, 2] {3}"
    with pytest.raises(ConfigError, match=r"a uuid\.UUID would arrive as str"):
        await pages.enqueue((1, ID))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [b"ada", bytearray(b"ada")])
async def test_bytes_are_no_text(app: Windlass, value: Any) -> None:
    @app.task(name="greet")
    async def greet(name: str, other: str | None = None) -> None: ...

    with pytest.raises(ConfigError, match=r"must be str \(bytes would arrive as base64 text"):
        await greet.enqueue(value)
    with pytest.raises(ConfigError, match="argument 'other' of task 'greet' must be"):
        await greet.enqueue("ada", other=value)


async def test_parameters_that_say_nothing_of_what_they_hold_refuse_it_too(app: Windlass) -> None:
    @app.task(name="open")
    async def open_(
        anything: Any = None,
        data: dict[str, Any] | None = None,
        items: list = (),  # type: ignore[type-arg,assignment]
        **more: Any,
    ) -> None: ...

    for given in (
        {"anything": POINT},
        {"data": {"at": date(2026, 1, 2)}},
        {"items": [Decimal(1)]},
        {"other": ID},
    ):
        with pytest.raises(ConfigError, match="must be annotated"):
            await open_.enqueue(**given)
    with pytest.raises(ConfigError, match=r"say what 'data' holds, with dict\[str, datetime.date\]"):
        await open_.enqueue(data={"at": date(2026, 1, 2)})
    await open_.enqueue({"a": [1, 2.5, None, True, "x"]}, data={"a": {"b": []}}, items=[{}], other=1)


async def test_annotated_parameters_take_them_as_before(app: Windlass) -> None:
    got: list[Any] = []

    @app.task
    async def typed(price: Decimal, at: datetime, where: Point, many: tuple[int, int], raw: bytes) -> None:
        got.extend([price, at, where, many, raw])

    given = [Decimal("1.50"), datetime(2026, 1, 2, tzinfo=UTC), POINT, (1, 2), b"\xff"]
    await typed.enqueue(*given)  # type: ignore[arg-type]
    await Worker("default", url_or_app=app).drain()
    assert got == given


async def test_a_codec_that_keeps_a_type_lets_it_pass() -> None:
    async with Windlass("memory://", codec="msgpack") as app:

        @app.task
        async def untyped(raw: Any) -> None: ...

        await untyped.enqueue(b"\xff")
        with pytest.raises(ConfigError, match="must be annotated"):
            await untyped.enqueue(Decimal(1))


async def test_tagged_json_keeps_them_for_untyped_parameters_and_results() -> None:
    values = [value for value, _ in CHANGED.values()]
    values += [
        time(1, 2),
        timedelta(days=-1, microseconds=5),
        frozenset({"a"}),
        {"$type": "x"},
        {"a": [(1, (2,))]},
    ]
    values += [None, "text", 1, 2.5, True, [], {}]
    async with Windlass("memory://", codec="json+tagged") as app:
        got: list[Any] = []

        @app.task
        async def untyped(value, *, again=None):  # type: ignore[no-untyped-def]
            got.append((value, again))
            return value

        job = await untyped.enqueue(values, again=values)
        await Worker("default", url_or_app=app).drain()
        assert got == [(values, values)]
        assert [type(one) for one in got[0][0]] == [type(one) for one in values]
        assert await job.result() == values
        with pytest.raises(ConfigError, match="must be annotated"):
            await untyped.enqueue(POINT)


async def test_apps_with_tags_and_without_read_the_jobs_of_each_other() -> None:
    async with (
        Windlass("memory://shared") as plain,
        Windlass("memory://shared", codec="json+tagged") as tagged,
    ):
        got: list[Any] = []

        async def handler(value: Decimal) -> Decimal:
            got.append(value)
            return value

        for app in (plain, tagged):
            app.task(name="t")(handler)
        first = await plain.tasks["t"].enqueue(Decimal("1.50"))
        await Worker("default", url_or_app=tagged).drain()
        second = await tagged.tasks["t"].enqueue(Decimal("2.50"))
        await Worker("default", url_or_app=plain).drain()
        assert got == [Decimal("1.50"), Decimal("2.50")]
        assert [await first.result(), await second.result()] == got


@pytest.mark.parametrize(
    "data",
    [
        b'{"$type":"nothing","value":1}',
        b'{"$type":"uuid","value":5}',
        b'{"$type":"decimal","value":"x"}',
        b'{"$type":"set","value":[[]]}',
        b'{"$type":"tuple"}',
        b"{",
    ],
)
def test_tags_that_are_wrong_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        get_codec("json+tagged").decode(data)


async def test_reading_by_id_gives_what_the_job_gives(app: Windlass) -> None:
    @app.task(name="price")
    async def price() -> Decimal:
        return Decimal("1.50")

    @app.task(name="where")
    def where() -> Point:
        return POINT

    for task, expected in ((price, Decimal("1.50")), (where, POINT)):
        job = await task.enqueue()
        await Worker("default", url_or_app=app).drain()
        queue = app.queue("default")
        found = await queue.get_job(job.id)
        assert found is not None
        assert await job.result() == expected
        assert await found.result() == expected
        assert found.return_value == expected
        assert await queue.get_result(job.id) == expected
        status = await queue.get_status(job.id)
        assert status is not None
        assert status["result"] == expected
