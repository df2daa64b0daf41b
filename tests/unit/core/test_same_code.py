"""Production and tests run the same code: nothing but clocks and the probe themselves asks which it is."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import windlass

ROOT = Path(windlass.__file__).parent
#: ``core.probe.reach`` is the one place that may look for a probe.
PROBE = ROOT / "core" / "probe.py"


def sources() -> list[tuple[Path, str]]:
    """Production code: every module but the testing kit, without its comments."""
    files = [file for file in sorted(ROOT.rglob("*.py")) if "testing" not in file.relative_to(ROOT).parts]
    return [(file, re.sub(r"(?m)#.*$", "", file.read_text(encoding="utf-8"))) for file in files]


def test_no_code_asks_whether_a_clock_is_driven() -> None:
    assert [str(file) for file, text in sources() if re.search(r"\.driven\b|\bdriven\s*=", text)] == []


def test_only_the_probe_asks_whether_a_probe_is_installed() -> None:
    found = [file for file, text in sources() if re.search(r"\b_installed\b", text)]
    assert found == [PROBE]


def test_each_store_asks_at_most_once_whether_a_request_carries_a_time() -> None:
    asked: Counter[str] = Counter()
    for file, text in sources():
        parts = file.relative_to(ROOT).parts
        place = parts[1] if parts[0] == "backends" else "elsewhere"
        asked[place] += len(re.findall(r"(?:now|given)_ms (?:is|is not|==|!=) None", text))
    assert asked.pop("elsewhere") == 1, "core.clock.moment is where stores look"
    assert all(count <= 1 for count in asked.values()), asked
