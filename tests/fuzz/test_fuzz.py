"""Hostile input, a little of it every time; campaigns of a million inputs are run by hand (scripts/fuzz)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tools.fuzz import engine
from tools.fuzz.engine import Target, campaign, damaged
from tools.fuzz.poison import STORES, poison, store_url
from tools.fuzz.server import api_target, server_targets
from tools.fuzz.targets import pure_targets
from windlass import ConfigError, Windlass, Worker
from windlass.errors import ResultError
from windlass.serde import encode_payload, get_codec

INPUTS = 1_500
#: What the stores of hostile jobs need.
SERVICES = {"valkey": "valkey", "redis": "valkey", "cluster": "valkey", "amqp": "rabbitmq"}


@pytest.mark.keeps_threads("*", reason="the stores that cursors are tried on live as long as the process")
@pytest.mark.parametrize("name", sorted(pure_targets()))
def test_hostile_input_is_taken_or_refused(name: str) -> None:
    outcome = campaign(pure_targets()[name], INPUTS)
    assert outcome.findings == []
    assert outcome.inputs == INPUTS
    assert outcome.taken + outcome.refused == INPUTS


@pytest.mark.slow
@pytest.mark.service("valkey")
@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_a_server_outlives_hostile_calls(kind: str) -> None:
    with server_targets(kind) as targets:
        for target in targets:
            assert campaign(target, 400).findings == [], target.name


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_odd_values_are_refused_by_name_and_change_nothing(kind: str, tmp_path: Path) -> None:
    url = "memory://fuzz-api" if kind == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"
    with api_target(f"api-{kind}", url) as target:
        assert campaign(target, 400).findings == []


def test_a_fuzzer_finds_a_reader_that_crashes_hangs_or_takes_what_is_damaged() -> None:
    def fragile(data: bytes) -> int:
        return data[3]

    outcome = campaign(Target("fragile", lambda rng: damaged(rng, [b"abcdef"]), fragile, (ValueError,)), 500)
    assert any("IndexError" in finding.what for finding in outcome.findings)


def test_what_is_slow_each_time_is_a_finding_and_what_was_slow_once_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "SLOW_CPU_S", -1.0)
    always = campaign(Target("always", lambda rng: b"", len, ()), 3)
    assert [finding.what for finding in always.findings] == ["took too long"] * 3
    calls = iter([-1.0, 9.0, 9.0, 9.0])
    once = Target("once", lambda rng: b"", lambda _: setattr(engine, "SLOW_CPU_S", next(calls)), ())
    assert campaign(once, 3).findings == []


def test_the_same_seed_gives_the_same_inputs() -> None:
    one, two = (random.Random(5) for _ in range(2))
    assert [damaged(one, [b"abc", b"xyz"]) for _ in range(200)] == [
        damaged(two, [b"abc", b"xyz"]) for _ in range(200)
    ]


@pytest.mark.feature("W1")
@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), [1, {"a": float("-inf")}], {"n": None, "x": 1e999}]
)
@pytest.mark.parametrize("name", ["json", "json+zlib"])
def test_numbers_that_json_does_not_have_are_refused_and_not_stored_as_something_else(
    name: str, value: object
) -> None:
    with pytest.raises(ConfigError, match="NaN"):
        encode_payload(get_codec(name), value)
    assert get_codec("msgpack").encode(value)  # which has them


def test_null_and_text_that_looks_like_it_are_fine() -> None:
    for value in (None, "null", {"null": [None, "NaN", 0.5]}):
        assert get_codec("json").decode(encode_payload(get_codec("json"), value)) == value


async def test_a_result_that_json_does_not_have_fails_the_job_with_a_reason() -> None:
    async with Windlass("memory://odd-results") as app:

        @app.task(name="odd")
        async def odd() -> float:
            return float("nan")

        job = await odd.enqueue()
        await Worker("default", url_or_app=app).drain()
        await job.refresh()
        assert job.state == "failed"
        assert job.errors[-1].error_class == ResultError.__name__


@pytest.mark.feature("Z15")
@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.service(SERVICES[name]) if name in SERVICES else ())
        for name in STORES
    ],
)
def test_honest_jobs_complete_beside_hostile_ends_reports_cancels_and_records(name: str) -> None:
    with store_url(name) as url:
        outcome = poison(name, url, 2_000, seed=16)
    assert outcome.findings == []
    assert outcome.inputs >= 2_000 and outcome.refused > 0
