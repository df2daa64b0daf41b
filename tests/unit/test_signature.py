"""Arguments: checked against a handler's signature at enqueue, decoded to its annotations in the worker."""

from __future__ import annotations

import enum
import functools
import importlib.util
import json
import sys
import types
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar, Union
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.errors import ConfigError, ResultError, UnrecoverableError
from windlass.handlers.signature import ArgumentError, Signature
from windlass.serde import encode_value, get_codec, to_plain

pytestmark = pytest.mark.feature("W4")

ID = UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
UserId = NewType("UserId", int)
T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Mixed(enum.Enum):
    TEXT = "a"
    NUMBER = 2
    PAIR = (1, 2)


@dataclass
class Point:
    x: int
    at: datetime = field(default=NOON)


@dataclass
class Circle:
    radius: float


class Item(msgspec.Struct):
    price: Decimal
    tags: set[str] = set()


class Row(TypedDict):
    day: date


class Pair(NamedTuple):
    left: int
    right: bytes


class Unknown:
    pass


class Model:
    """Quacks like a pydantic model."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self.n == other.n

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value, dict) or not isinstance(value.get("n"), int):
            raise ValueError("n: an int is required")
        return cls(value["n"])

    def model_dump(self, mode: str = "python") -> dict[str, Any]:
        return {"n": self.n}


def taking(kind: Any) -> Signature:
    """The signature of a function with one parameter ``value`` of that type."""

    def task(value: Any) -> None: ...

    task.__annotations__ = {"value": kind}
    return Signature.of(task, name="task")


def decoded(kind: Any, value: Any) -> Any:
    return taking(kind).decode([value], {})[0][0]


# --- decode --------------------------------------------------------------------------------------------

TYPED: list[tuple[Any, Any]] = [
    (int, 5),
    (str, "a"),
    (bool, True),
    (float, 1.5),
    (None, None),
    (list, [1, "a"]),
    (dict, {"a": 1}),
    (tuple, (1, 2)),
    (datetime, NOON),
    (datetime, datetime(2024, 5, 1)),
    (date, date(2024, 5, 1)),
    (time, time(12, 30)),
    (timedelta, timedelta(days=1, seconds=3, microseconds=5)),
    (UUID, ID),
    (Decimal, Decimal("1.10")),
    (bytes, b"\x00\xff"),
    (Color, Color.RED),
    (Level, Level.LOW),
    (Mixed, Mixed.TEXT),
    (Mixed, Mixed.NUMBER),
    (Mixed, Mixed.PAIR),
    (Point, Point(1, NOON)),
    (Item, Item(Decimal("1.5"), {"a"})),
    (Row, Row(day=date(2024, 5, 1))),
    (Pair, Pair(1, b"x")),
    (Path, Path("a/b")),
    (Model, Model(3)),
    (UserId, UserId(7)),
    (Literal["a", 1], "a"),
    (list[datetime], [NOON]),
    (set[UUID], {ID}),
    (frozenset[int], frozenset({1})),
    (tuple[int, date], (1, date(2024, 5, 1))),
    (tuple[date, ...], (date(2024, 5, 1),)),
    (dict[str, Point], {"a": Point(1)}),
    (dict[int, Decimal], {1: Decimal(2)}),
    (dict[UUID, Color], {ID: Color.RED}),
    (dict[date, list[Model]], {date(2024, 5, 1): [Model(1)]}),
    (Sequence[Point], [Point(1)]),
    (Mapping[str, datetime], {"a": NOON}),
    (datetime | None, NOON),
    (Optional[UUID], None),  # noqa: UP045
    (Union[int, datetime], NOON),  # noqa: UP007
    (Union[int, datetime], 5),  # noqa: UP007
    (Point | None, Point(2)),
    (Point | Circle, Circle(1.5)),
    (Model | Point, Point(4)),
    (list[Mixed | None], [Mixed.NUMBER, None]),
    (dict[str, tuple[Mixed, date]], {"a": (Mixed.TEXT, date(2024, 5, 1))}),
    (set[Mixed], {Mixed.TEXT}),
    (tuple[Mixed, ...], (Mixed.TEXT, Mixed.NUMBER)),
    (Annotated[datetime, "when"], NOON),
    (Annotated[Mixed, ["unhashable"]], Mixed.TEXT),
]


@pytest.mark.parametrize(("kind", "value"), TYPED, ids=lambda part: str(part)[:40])
@pytest.mark.parametrize("codec", ["json", "msgpack"])
def test_stored_values_come_back_as_they_were(kind: Any, value: Any, codec: str) -> None:
    signature = taking(kind)
    signature.check("task", [value], {})
    stored = get_codec(codec).decode(encode_value(get_codec(codec), {"args": [value]}))
    assert signature.decode(stored["args"], {})[0] == [value]
    assert signature.decode([], {"value": stored["args"][0]})[1] == {"value": value}
    back = signature.decode(stored["args"], {})[0][0]
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Any, {"a": 1}),
        (object, 5),
        (T, "x"),
        (Unknown, {"any": "thing"}),
        (list[Unknown], [1, {"a": 2}]),
        (Unknown | None, {"a": 1}),
        (Callable[[], int], "x"),
        (type[int], "int"),
        ("NoSuchName", "x"),
        ("list[NoSuchName]", ["x"]),
        ("not a type at all (", 5),
    ],
    ids=str,
)
def test_what_nobody_can_read_is_left_as_it_came(kind: Any, value: Any) -> None:
    args, kwargs = taking(kind).decode([value], {"value": value})
    assert args[0] is value or args == [value]
    assert kwargs == {"value": value}
    taking(kind).check("task", [value], {})


def test_one_name_for_type_checkers_does_not_hide_the_others() -> None:
    def task(a: NoSuchName, b: date) -> NoSuchName: ...  # type: ignore[name-defined]  # noqa: F821

    assert Signature.of(task).decode([{"x": 1}, "2024-05-01"], {})[0] == [{"x": 1}, date(2024, 5, 1)]


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (int, "5", "must be int, got str '5'"),
        (int, 5.0, "must be int, got float 5.0"),
        (int, True, "must be int, got bool True"),
        (bool, 1, "must be bool"),
        (str, 5, "must be str"),
        (float, "1.5", "must be float"),
        (list, {"a": 1}, "must be list"),
        (dict, [1], "must be dict"),
        (int, None, "must be int, got NoneType None"),
        (datetime, "yesterday", "must be datetime"),
        (datetime, 5, "must be datetime"),
        (UUID, "x", "Invalid UUID"),
        (bytes, "not base64!", "must be bytes"),
        (Color, "blue", "Invalid enum value 'blue'"),
        (Mixed, "blue", "Invalid enum value 'blue'"),
        (Mixed, 2.0, "Invalid enum value"),
        (Point, {"y": 1}, "missing required field `x`"),
        (Point, {"x": 1, "at": "no"}, r"at `\$.at`"),
        (list[int], [1, "2"], r"at `\$\[1\]`"),
        (tuple[int, int], [1], "must be tuple"),
        (dict[str, int], {"a": "b"}, "must be dict"),
        (Model, {"n": "x"}, "an int is required"),
        (Path, 5, "Expected `Path`"),
        (Point | Circle, {"z": 1}, "fits none of"),
        (tuple[Mixed, int], ["a"], "of length 2"),
        (list[Mixed], "a", "Expected `array`"),
        (dict[str, Mixed], ["a"], "Expected `object`"),
        (Literal["a"], "b", "must be"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_refused_by_name(kind: Any, value: Any, words: str) -> None:
    with pytest.raises(ArgumentError, match=words) as caught:
        decoded(kind, value)
    assert "argument 'value' of task 'task'" in str(caught.value)
    assert caught.value.parameter == "value"
    assert isinstance(caught.value, UnrecoverableError)
    with pytest.raises(ConfigError, match="argument 'value' of task 'named'"):
        taking(kind).check("named", [value], {})


def test_an_int_is_a_float_and_none_fits_a_default_of_none() -> None:
    def task(a: float, b: int = None) -> None: ...  # type: ignore[assignment]  # noqa: RUF013

    signature = Signature.of(task)
    args, _ = signature.decode([5, None], {})
    assert args == [5.0, None]
    assert type(args[0]) is float
    with pytest.raises(ArgumentError):
        signature.decode([1, "2"], {})


def test_long_values_are_shortened_in_messages() -> None:
    with pytest.raises(ArgumentError) as caught:
        decoded(int, "x" * 10_000)
    assert len(str(caught.value)) < 300


def test_extra_arguments_have_types_too() -> None:
    def task(first: int, *rest: date, flag: UUID | None = None, **named: Decimal) -> None: ...

    signature = Signature.of(task)
    args, kwargs = signature.decode([1, "2024-05-01", "2024-05-02"], {"flag": str(ID), "price": "1.5"})
    assert args == [1, date(2024, 5, 1), date(2024, 5, 2)]
    assert kwargs == {"flag": ID, "price": Decimal("1.5")}
    signature.check("task", [1, date(2024, 5, 1)], {"price": Decimal(1)})
    with pytest.raises(ArgumentError, match="'rest'"):
        signature.decode([1, "no"], {})
    with pytest.raises(ArgumentError, match="'price'"):
        signature.decode([1], {"price": "no"})
    with pytest.raises(ConfigError, match="'price'"):
        signature.check("task", [1], {"price": "no"})


def test_decode_leaves_what_it_was_given_alone() -> None:
    args, kwargs = ["2024-05-01"], {"b": "2024-05-02"}

    def task(a: date, b: date) -> None: ...

    Signature.of(task).decode(args, kwargs)
    assert (args, kwargs) == (["2024-05-01"], {"b": "2024-05-02"})


def test_plain_calls_are_passed_through_untouched() -> None:
    def task(a: int, b: Any, *, c: str = "") -> None: ...

    args, kwargs = [1, {"x": 1}], {"c": "s"}
    decoded_args, decoded_kwargs = Signature.of(task).decode(args, kwargs)
    assert decoded_args is args
    assert decoded_kwargs is kwargs


def test_methods_partials_and_callable_objects_have_signatures() -> None:
    class Service:
        def method(self, day: date) -> None: ...

        def __call__(self, day: date) -> None: ...

    def task(a: int, day: date) -> None: ...

    @functools.wraps(task)
    def wrapped(*args: Any, **kwargs: Any) -> None: ...

    for fn in (Service().method, Service()):
        assert Signature.of(fn).decode(["2024-05-01"], {})[0] == [date(2024, 5, 1)]
    assert Signature.of(functools.partial(task, 1)).decode([], {"day": "2024-05-01"})[1]["day"].year == 2024
    assert Signature.of(wrapped).decode([1, "2024-05-01"], {})[0][1].month == 5


def test_the_first_parameter_can_be_left_out() -> None:
    def task(job: Unknown, day: date) -> None: ...

    signature = Signature.of(task, skip_first=True)
    assert signature.decode(["2024-05-01"], {})[0] == [date(2024, 5, 1)]
    signature.check("task", ["2024-05-01"], {})
    with pytest.raises(ConfigError):
        signature.check("task", [1, "2024-05-01"], {})


def test_a_function_without_a_signature_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot read the signature of <class 'type'>"):
        Signature.of(type)


# --- check ---------------------------------------------------------------------------------------------


def _plain(a: Any, b: Any = 1, *, c: Any, d: Any = 2) -> None: ...
def _positional(a: Any, b: Any = 1, /, **rest: Any) -> None: ...
def _variadic(a: Any, *rest: Any, c: Any = 1) -> None: ...
def _nothing() -> None: ...


names = st.sampled_from(["a", "b", "c", "d", "e"])


@given(
    st.sampled_from([_plain, _positional, _variadic, _nothing]),
    st.lists(st.integers(), max_size=4),
    st.dictionaries(names, st.integers(), max_size=4),
)
def test_check_agrees_with_python(fn: Any, args: list[int], kwargs: dict[str, int]) -> None:
    try:
        fn(*args, **kwargs)
    except TypeError:
        with pytest.raises(ConfigError, match=r"^task 'named': .* \(signature: .*\)$"):
            Signature.of(fn).check("named", args, kwargs)
    else:
        Signature.of(fn).check("named", args, kwargs)


def test_a_refusal_names_the_parameter() -> None:
    signature = Signature.of(_plain)
    with pytest.raises(ConfigError, match="missing a required argument: 'c'"):
        signature.check("named", [1], {})
    with pytest.raises(ConfigError, match="unexpected keyword argument 'z'"):
        signature.check("named", [1], {"c": 1, "z": 2})
    with pytest.raises(ConfigError, match="multiple values for argument 'a'"):
        signature.check("named", [1], {"a": 1, "c": 2})


def test_check_leaves_to_the_codec_what_is_the_codecs_business() -> None:
    taking(datetime).check("task", [Unknown()], {})
    loop: list[Any] = []
    loop.append(loop)
    taking(list[int]).check("task", [loop], {})


def test_typed_and_stored_values_both_pass_check() -> None:
    for value in (NOON, "2024-05-01T12:00:00Z"):
        taking(datetime).check("task", [value], {})
    for point in (Point(1), {"x": 1}):
        taking(Point).check("task", [point], {})


# --- results -------------------------------------------------------------------------------------------


def test_results_come_back_as_annotated() -> None:
    async def later() -> Point: ...  # type: ignore[empty-body]
    def promise() -> Awaitable[date]: ...  # type: ignore[empty-body]
    def plain() -> int: ...  # type: ignore[empty-body]
    def silent(): ...  # type: ignore[no-untyped-def]

    assert Signature.of(later).decode_result({"x": 1, "at": "2024-05-01T12:00:00Z"}) == Point(1)
    assert Signature.of(promise).decode_result("2024-05-01") == date(2024, 5, 1)
    assert Signature.of(plain).decode_result("whatever came") == "whatever came"
    assert Signature.of(silent).decode_result({"a": 1}) == {"a": 1}
    with pytest.raises(ResultError, match=r"result of task .*later.* is not .*Point"):
        Signature.of(later).decode_result({"y": 1})


# --- pydantic ------------------------------------------------------------------------------------------


def test_models_and_paths_become_plain_data_at_any_depth() -> None:
    value = {"models": [Model(1)], "path": Path("a/b"), "when": NOON, "raw": b"x"}
    assert to_plain(value) == {"models": [{"n": 1}], "path": "a/b", "when": NOON, "raw": b"x"}
    assert json.loads(encode_value(get_codec("json"), value))["models"] == [{"n": 1}]
    with pytest.raises(TypeError, match="Unknown"):
        to_plain([Unknown()])


def _pydantic_module() -> types.ModuleType:
    """The real thing when it is installed; else a stand-in with the two methods we rely on."""
    if importlib.util.find_spec("pydantic") is not None:
        return importlib.import_module("pydantic")
    stand_in = types.ModuleType("pydantic")

    class BaseModel:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return type(self) is type(other) and vars(self) == vars(other)

        @classmethod
        def model_validate(cls, value: dict[str, Any]) -> Any:
            hints = sys.modules[cls.__module__].__dict__ | {"datetime": datetime}
            made = cls()
            for name, kind in cls.__annotations__.items():
                wanted = eval(kind, hints) if isinstance(kind, str) else kind
                setattr(made, name, msgspec.convert(value[name], wanted))
            return made

        def model_dump(self, mode: str = "python") -> Any:
            return msgspec.to_builtins(vars(self))

    stand_in.BaseModel = BaseModel  # type: ignore[attr-defined]
    return stand_in


def test_pydantic_models_travel_both_ways() -> None:
    base = _pydantic_module().BaseModel
    User = type("User", (base,), {"__annotations__": {"name": str, "at": datetime}, "__module__": __name__})
    user = User.model_validate({"name": "ada", "at": "2024-05-01T12:00:00Z"})  # type: ignore[attr-defined]
    signature = taking(list[User])  # type: ignore[valid-type]
    signature.check("task", [[user]], {})
    stored = json.loads(encode_value(get_codec("json"), [[user]]))
    assert signature.decode(stored, {})[0] == [[user]]
    with pytest.raises(ArgumentError, match="'value'"):
        signature.decode([[{"name": 5, "at": "no"}]], {})
