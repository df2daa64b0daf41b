"""Ids: in order of time, unique, checked."""

from __future__ import annotations

import os
import threading
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core import ids as ids_of_process
from windlass.core.clock import SYSTEM_CLOCK
from windlass.core.ids import check_job_id, check_queue_name, check_task_name, content_id, new_id, new_ids
from windlass.errors import ConfigError


@pytest.mark.feature("A6", "A7")
def test_an_id_is_a_uuid_of_version_seven() -> None:
    text = new_id()
    parsed = uuid.UUID(text)
    assert (len(text), parsed.version, parsed.variant) == (32, 7, uuid.RFC_4122)


@pytest.mark.feature("A6")
def test_an_id_begins_with_the_time_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ids of a process only grow: one whose clock was ahead once would go on from there.
    monkeypatch.setattr(ids_of_process, "_sequence", ids_of_process._Sequence())
    before = SYSTEM_CLOCK.now_ms()
    made = int(new_id()[:12], 16)
    assert before <= made <= SYSTEM_CLOCK.now_ms()


@pytest.mark.feature("A6")
def test_ids_of_one_process_only_grow() -> None:
    ids = [new_id() for _ in range(2_000)] + new_ids(20_000) + [new_id()]
    assert ids == sorted(set(ids))


@pytest.mark.feature("A6")
def test_ids_of_many_threads_never_repeat() -> None:
    found: list[list[str]] = []

    def make() -> None:
        found.append([new_id() for _ in range(500)] + new_ids(500))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({item for part in found for item in part}) == 8_000
    assert all(part == sorted(part) for part in found)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_does_not_count_on_from_its_parents_draw() -> None:
    new_id()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - in the child
        os.write(writer, "".join(new_ids(50)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    os.waitpid(pid, 0)
    child = {text[at : at + 32] for at in range(0, len(text), 32)}
    assert len(child) == 50
    assert not child & set(new_ids(1_000))


@pytest.mark.feature("A6", "Z6")
@pytest.mark.parametrize("good", ["a", "A-Z_a.z0-9", "." * 256, "018f" * 8, "ada+jobs@example.com"])
def test_legal_job_ids_pass(good: str) -> None:
    assert check_job_id(good) == good


@pytest.mark.feature("A6", "Z6")
@pytest.mark.parametrize(
    "bad", ["", "x" * 257, "a:b", "a/b", "{a}", "a b", "ä", "a\n", "a\x00", "../x", None, 5, b"a"]
)
def test_ids_that_could_be_keys_or_paths_are_refused(bad: object) -> None:
    with pytest.raises(ConfigError) as caught:
        check_job_id(bad)
    assert caught.value.option == "job_id"


@given(st.text(max_size=300))
def test_only_the_legal_alphabet_passes(text: str) -> None:
    legal = 1 <= len(text) <= 256 and all(c.isascii() and (c.isalnum() or c in "._-@+") for c in text)
    try:
        check_job_id(text)
    except ConfigError:
        assert not legal
    else:
        assert legal


@pytest.mark.parametrize("good", ["a", "mail", "0", "a.b-c_d", "x" * 128])
def test_legal_queue_names_pass(good: str) -> None:
    assert check_queue_name(good) == good


@pytest.mark.feature("Z6")
@pytest.mark.parametrize("bad", ["", ".hidden", "-x", "_x", "a b", "a:b", "x" * 129, "{q}", None, 7, "ä"])
def test_queue_names_that_cannot_be_keys_are_refused(bad: object) -> None:
    with pytest.raises(ConfigError):
        check_queue_name(bad)


@pytest.mark.parametrize("good", ["a", "module.function", "a:b", "with space", "日本語", "x" * 256])
def test_a_task_may_be_called_nearly_anything(good: str) -> None:
    assert check_task_name(good) == good


@pytest.mark.parametrize("bad", ["", " ", "\t", "a\nb", "a\x00", "x" * 257, None, 5])
def test_task_names_that_nobody_can_read_are_refused(bad: object) -> None:
    with pytest.raises(ConfigError):
        check_task_name(bad)


@pytest.mark.feature("D6")
def test_the_id_of_a_content_does_not_depend_on_the_order_of_keys() -> None:
    one, two = content_id({"a": 1, "b": [2, 3]}), content_id({"b": [2, 3], "a": 1})
    assert one == two == check_job_id(one)
    assert (len(one), int(one, 16) >= 0) == (16, True)
    assert content_id({"a": 1, "b": [3, 2]}) != one


@pytest.mark.parametrize("tail", [7, 0xFFFF_FFF0, 0x3FFF_FFFF_FFFF_FFF0])
def test_many_ids_at_once_are_those_that_would_come_one_by_one(tail: int) -> None:
    ahead = (1 << 48) - 1
    together, apart = ids_of_process._Sequence(), ids_of_process._Sequence()
    for sequence in (together, apart):
        sequence._ms, sequence._tail = ahead, tail
    found = together.take(100)
    assert found == [apart.take(1)[0] for _ in range(100)]
    assert found == sorted(set(found))
