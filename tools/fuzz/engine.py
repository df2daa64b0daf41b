"""A small, seeded fuzzer: good examples, damaged in every way, and plain noise.

The same seed gives the same inputs, and a finding tells the number of its input. An input is *refused* when
the target raises one of the errors that it promises; any other error, and any answer that takes long, is a
finding.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: One input that takes longer than this hangs: of the processor's time, or (where it waits) by the clock. A
#: busy machine takes the processor away for seconds, which is nobody's fault.
SLOW_CPU_S, SLOW_S = 2.0, 60.0
_FINDINGS = 20
_EDGES = (
    *(b"", b"\x00", b"\xff" * 9, b"\x80", b"\xc1", b"{}", b"[]", b'""', b"null", b"-0", b"1e999", b"NaN"),
    *(b"[" * 3_000, b'{"a":' * 3_000, b"\x91" * 3_000, b"\x81\xa1a" * 3_000, b"9" * 5_000),  # deep, and long
)


@dataclass(frozen=True)
class Target:
    """Something that reads input. ``make`` draws one from a generator, ``read`` must take or refuse it."""

    name: str
    make: Callable[[random.Random], Any]
    read: Callable[[Any], object]
    #: The errors by which it refuses.
    refuses: tuple[type[BaseException], ...]


@dataclass(frozen=True)
class Finding:
    """An input that was neither taken nor refused."""

    number: int
    given: str
    what: str


@dataclass
class Outcome:
    """How a campaign went."""

    target: str
    inputs: int = 0
    taken: int = 0
    refused: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


def campaign(target: Target, inputs: int, seed: int = 1) -> Outcome:
    """Give ``target`` so many inputs; stops early when very much is wrong."""
    rng = random.Random(f"{seed}/{target.name}")
    outcome = Outcome(target.name)
    began = time.perf_counter()
    for number in range(inputs):
        given = target.make(rng)
        outcome.inputs += 1
        start, cpu = time.perf_counter(), time.thread_time()
        try:
            target.read(given)
            outcome.taken += 1
        except target.refuses:
            outcome.refused += 1
        except Exception as error:
            outcome.findings.append(
                Finding(number, repr(given)[:500], f"{type(error).__name__}: {error}"[:500])
            )
        if _is_slow(start, cpu) and _is_slow_again(target, given):
            outcome.findings.append(Finding(number, repr(given)[:500], "took too long"))
        if len(outcome.findings) >= _FINDINGS:
            break
    outcome.seconds = time.perf_counter() - began
    return outcome


def _is_slow(start: float, cpu: float) -> bool:
    return time.thread_time() - cpu > SLOW_CPU_S or time.perf_counter() - start > SLOW_S


def _is_slow_again(target: Target, given: Any) -> bool:
    """Whether it is the input that takes so long: a machine that stands still does so once."""
    start, cpu = time.perf_counter(), time.thread_time()
    with contextlib.suppress(Exception):
        target.read(given)
    return _is_slow(start, cpu)


# --- inputs ---------------------------------------------------------------------------------------


def damaged(rng: random.Random, examples: Sequence[bytes]) -> bytes:
    """Noise, an edge case, or a good example after a few accidents."""
    kind = rng.random()
    if kind < 0.1:
        return rng.randbytes(rng.randrange(64))
    if kind < 0.15:
        return rng.choice(_EDGES)
    data = bytearray(rng.choice(examples))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        _ACCIDENTS[rng.randrange(len(_ACCIDENTS))](rng, data, examples)
    return bytes(data)


def each_damaged(examples: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    """Draws inputs that are made of ``examples``."""
    return lambda rng: damaged(rng, examples)


def _flip(rng: random.Random, data: bytearray, examples: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, data: bytearray, examples: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, 0xC1, 0xDD, rng.randrange(256)))


def _cut(rng: random.Random, data: bytearray, examples: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _drop(rng: random.Random, data: bytearray, examples: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    del data[start : start + rng.randrange(8)]


def _insert(rng: random.Random, data: bytearray, examples: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    data[start:start] = rng.randbytes(rng.randrange(8))


def _repeat(rng: random.Random, data: bytearray, examples: Sequence[bytes]) -> None:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.randrange(16)]
    data[start:start] = piece * rng.randrange(1, 6)


def _splice(rng: random.Random, data: bytearray, examples: Sequence[bytes]) -> None:
    other = rng.choice(examples)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


_ACCIDENTS = (_flip, _set, _cut, _drop, _insert, _repeat, _splice)


def damaged_text(rng: random.Random, examples: Sequence[str]) -> str:
    """Text that was damaged; now and then with signs that few expect."""
    text = damaged(rng, [example.encode() for example in examples]).decode("utf-8", "replace")
    if rng.random() < 0.1:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(_SIGNS) + text[at:]
    return text


_SIGNS = (
    "\x00",
    "\n",
    "²",
    "٣",
    "\ud800",
    "%00",
    "%zz",
    "[",
    "]",
    "::",
    "@",
    "\u202e",
    "\U0001d7d8",
    "-",
    "+",
    "1e9",
    "nan",
)


def odd_value(rng: random.Random, depth: int = 0) -> Any:  # noqa: C901 - a list of odd things
    """Some value of Python, often one that nobody should pass."""
    kind = rng.randrange(14 if depth < 2 else 11)
    match kind:
        case 0:
            return None
        case 1:
            return rng.choice((True, False))
        case 2:
            return rng.choice((0, 1, -1, 2, 60, 10**6, 2**31, 2**53, 2**63, 2**64, -(2**63) - 1, 10**30))
        case 3:
            return rng.choice((0.0, -0.0, 0.5, 1e-9, 1e18, 1e308, float("nan"), float("inf"), float("-inf")))
        case 4:
            return rng.choice(
                ("", "x", "a" * 300, "fixed", "json", "*", "\x00", "\ud800", "until_done", "all")
            )
        case 5:
            return rng.randbytes(rng.randrange(6))
        case 6:
            return rng.randrange(-5, 5_000)
        case 7:
            return rng.uniform(-2, 2_000)
        case 8:
            return object()
        case 9:
            return complex(1, 2)
        case 10:
            return rng.choice((int, len, Ellipsis))
        case 11:
            return [odd_value(rng, depth + 1) for _ in range(rng.randrange(3))]
        case 12:
            return tuple(odd_value(rng, depth + 1) for _ in range(rng.randrange(3)))
        case _:
            return {
                rng.choice(("type", "delay", "key", "max", "age", "count", 3)): odd_value(rng, depth + 1)
                for _ in range(rng.randrange(3))
            }
