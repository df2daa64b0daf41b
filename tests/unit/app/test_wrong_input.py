"""Wrong input is refused where it is given, with the typed error, and changes nothing."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from windlass import ConfigError, Job, Unique, Windlass, Worker
from windlass.core.backoff import MAX_DELAY_MS, Backoff, backoff_ms
from windlass.core.job import error_info, fingerprint
from windlass.handlers.batch import Batch


@pytest.fixture
def app() -> Windlass:
    return Windlass(
        "memory://", backoff_strategies={"gentle": lambda n, e: 1, "exponential2": lambda n, e: 2}
    )


async def numbers() -> AsyncIterator[int]:
    yield 1


def plain_numbers() -> Iterator[int]:
    yield 1


class Numbers:
    async def __call__(self, job: Job[Any]) -> AsyncIterator[int]:
        yield 1


@pytest.mark.parametrize("fn", [numbers, plain_numbers])
def test_a_generator_is_no_task(app: Windlass, fn: Any) -> None:
    given: list[dict[str, Any]] = [{}, {"isolation": "process"}, {"name": "other"}]
    for options in given:
        with pytest.raises(ConfigError, match=f"^{fn.__name__} is a generator and cannot be a task"):
            app.task(**options)(fn)
    assert app.tasks == {} and app.registry.names() == []


@pytest.mark.parametrize("fn", [numbers, plain_numbers, Numbers()])
def test_a_generator_is_no_handler(app: Windlass, fn: Any) -> None:
    with pytest.raises(ConfigError, match="not a generator"):
        Worker("mail", fn, url_or_app=app)
    with pytest.raises(ConfigError, match="not a generator"):
        Worker("mail", fn, url_or_app=app, batch=Batch(5))
    with pytest.raises(ConfigError, match="not a generator"):
        app.register("n", fn)
    assert app.registry.names() == []


@pytest.mark.parametrize(
    ("given", "near"), [("exponentail", "exponential"), ("fixd", "fixed"), ({"type": "sidekick"}, "sidekiq")]
)
async def test_a_misspelt_backoff_is_refused_with_the_near_name(app: Windlass, given: Any, near: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        app.task(backoff=given)(lambda: None)
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        await app.queue("mail").add("n", backoff=given)
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        await app.queue("mail").add_bulk([{"name": "n", "backoff": given}])
    with pytest.raises(ConfigError, match=f"did you mean '{near}'"):
        Windlass("memory://", defaults={"backoff": given})
    assert await app.queue("mail").count() == 0
    await app.close()


async def test_names_that_are_registered_or_the_workers_are_taken(app: Windlass) -> None:
    for name in ("gentle", "exponential2", "of_some_worker"):
        assert (await app.queue("mail").add("n", backoff=name)).outcome == "queued"
    await app.close()


def test_a_unique_key_names_parameters_that_are_there(app: Windlass) -> None:
    def send(user: str, *, urgent: bool = False) -> None: ...

    with pytest.raises(ConfigError, match=r"unknown parameter of task .*: 'usr' \(did you mean 'user'\?\)"):
        app.task(unique=Unique.of("usr"))(send)
    assert app.tasks == {}
    task = app.task(unique=Unique.of("user", "urgent"))(send)
    with pytest.raises(ConfigError, match="did you mean 'urgent'"):
        task.options(unique=Unique.of("urgnt"))

    @app.task(unique=Unique.of("anything"))
    def takes_all(**kwargs: Any) -> None: ...


def test_a_refused_value_is_shown_short_and_never_raises() -> None:
    class NoText:
        def __repr__(self) -> str:
            raise RuntimeError("no text")

    assert str(ConfigError("x", "short", NoText())) == "x must be short, got a NoText"
    assert len(str(ConfigError("x", "short", "y" * 5_000_000))) < 300
    assert "got a int" in str(ConfigError("x", "short", 10**5_000))


@pytest.mark.parametrize("value", ["\ud800", 5, None, b"\xff", ["x"]])
def test_a_fingerprint_never_raises(value: Any) -> None:
    assert len(fingerprint(value, value)) == 16
    info = error_info(value, value)
    (info.error_class + info.message).encode()


def test_no_backoff_is_longer_than_a_hundred_years() -> None:
    rng = random.Random(1)
    for policy in (Backoff(type="sidekiq"), Backoff(delay_ms=10**15, cap_ms=10**18), Backoff(jitter=50.0)):
        delay_ms = backoff_ms(policy, 1_000_000, ValueError(), {}, rng)
        assert delay_ms is not None and 0 <= delay_ms <= MAX_DELAY_MS
