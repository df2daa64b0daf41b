"""Each example application passes its own tests, on its real framework."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.support import ROOT, run_example

#: Folder of ``examples/`` -> how many tests it has.
EXAMPLES = {"fastapi_shop": 3, "flask_shop": 3}


@pytest.mark.feature("Y4")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_application_passes_its_own_tests(name: str, tmp_path: Path) -> None:
    assert run_example(name, tmp_path) == EXAMPLES[name]


def test_every_example_application_is_run() -> None:
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/test_*.py")}

    assert folders == {*EXAMPLES, "celery_shop"}, "tests/compat runs the shop of Celery"
