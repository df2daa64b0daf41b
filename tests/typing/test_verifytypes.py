"""Every public type is known: pyright finds nothing of ours that another checker could see differently.

The public part is what ``windlass`` exports and the modules behind it; how the engine, backends, commands,
the dashboard and the pipeline are written inside is their own business.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
INSIDE = (
    "windlass.backend.local.",
    "windlass.backends.",
    "windlass.cli.",
    "windlass.compat.celery.",  # it takes what Celery takes, which has no types
    "windlass.contrib.django.",
    "windlass.dashboard.",
    "windlass.engine.",
    "windlass.pipeline.",
    "windlass.sandbox.",
    "windlass.speedups.",
    "windlass.telemetry.",
    "windlass_conformance.",
    "windlass_conformance.machine.",
    "windlass_conformance.own_clock.",
    "tools.storm.",
)


def readable_msgspec(folder: Path) -> Path:
    """msgspec's own stubs without a decorator that pyright does not know when it verifies a package."""
    stubs = folder / "msgspec-stubs"
    stubs.mkdir()
    for path in Path(str(msgspec.__file__)).parent.glob("*.pyi"):
        text = path.read_text()
        (stubs / path.name).write_text(
            text.replace("@disjoint_base\n", "").replace("    disjoint_base,\n", "")
        )
    return folder


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.feature("Y1", "Y3")
def test_every_public_type_is_known(tmp_path: Path) -> None:
    python_path = os.pathsep.join([str(readable_msgspec(tmp_path)), str(ROOT / "src")])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pyright", "--pythonpath", sys.executable),
            *("--verifytypes", "windlass", "--ignoreexternal", "--outputjson"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": python_path, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    public = [one for one in symbols if one["isExported"] and not one["name"].startswith(INSIDE)]
    assert len(public) > 1_500
    bad = {
        one["name"]: [found["message"] for found in one["diagnostics"] if "docstring" not in found["message"]]
        for one in public
        if not one["isTypeKnown"] or one["isTypeAmbiguous"]
    }
    assert bad == {}
