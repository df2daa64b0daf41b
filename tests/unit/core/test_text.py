"""Texts from user code are cleaned and bounded before storage, and escaped before they are printed."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.text import MESSAGE_CHARS, clean_text, printable


class _Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _Shouting(str):
    def __str__(self) -> str:
        return self


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        ("plain, with ümlaut\n\tand lines", "plain, with ümlaut\n\tand lines"),
        (os.fsdecode(b"caf\xe9.txt"), "caf\\udce9.txt"),
        ("nul\0 bell\x07 escape\x1b[31m", "nul\\x00 bell\\x07 escape\\x1b[31m"),
        ("carriage\rreturn", "carriage\\rreturn"),
        (None, "None"),
        (ValueError("inside"), "inside"),
        (_Broken(), "<a _Broken that cannot be printed>"),
    ],
)
def test_texts_become_well_formed(value: object, cleaned: str) -> None:
    assert clean_text(value) == cleaned


def test_long_texts_are_cut_and_say_so() -> None:
    cut = clean_text("x" * 5_000_000)
    assert len(cut) == MESSAGE_CHARS
    assert cut.endswith("...")


def test_subclasses_of_str_become_plain() -> None:
    assert type(clean_text(_Shouting("loud"))) is str


@given(st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=60), st.integers(3, 80))
def test_cleaned_texts_are_bounded_and_every_codec_takes_them(text: str, limit: int) -> None:
    cleaned = clean_text(text, limit)
    assert len(cleaned) <= limit
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(cleaned)) == cleaned


@given(st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=60))
def test_printable_texts_stay_on_their_line(text: str) -> None:
    shown = printable(text)
    assert len(shown.splitlines()) <= 1
    assert not any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in shown)
    shown.encode("utf-8")
