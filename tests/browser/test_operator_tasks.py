"""Every task of an operator takes at most four clicks, on a store that holds many finished jobs, or none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.browser.operator_tasks import MOST_CLICKS, KeyboardOperator, run, table

pytestmark = [
    pytest.mark.service("chromium"),
    pytest.mark.slow,
    pytest.mark.timeout(420),
    pytest.mark.keeps_threads("windlass-*", "operator-*", reason="of the producer and of the stage"),
]

JOBS = 2_000
#: What the keyboard reaches does not depend on their number.
FEW = 100


@pytest.mark.feature("P16")
@pytest.mark.parametrize("store", ["sqlite", "valkey"])
def test_an_operator_needs_four_clicks_at_most(pages: None, store: str) -> None:
    with ThreadPoolExecutor(1) as aside:  # Playwright keeps a loop in its thread
        done = aside.submit(run, store, JOBS).result()
    assert [one.name for one in done if one.clicks > MOST_CLICKS] == [], table(done)


@pytest.mark.feature("P16")
def test_every_task_is_done_by_keyboard_alone(pages: None) -> None:
    with ThreadPoolExecutor(1) as aside:
        done = aside.submit(run, "sqlite", FEW, KeyboardOperator).result()
    assert [one.name for one in done if one.clicks] == [], table(done)
