"""The soak tool itself: it measures, draws and tells what grew. Long soaks are run by hand."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tools.soak import Curve, chart, rss_mb, soak
from tools.storm import SqliteStorm


def test_growth_is_told_from_the_second_third_to_the_last() -> None:
    flat = Curve("flat", [(float(at), 50.0 + at % 2) for at in range(90)])
    leak = Curve("leak", [(float(at), 50.0 + at) for at in range(90)])
    assert abs(flat.growth) < 0.03
    assert leak.growth > 0.25


def test_the_chart_has_a_line_for_each_process() -> None:
    curves = [Curve("worker", [(0.0, 10.0), (60.0, 11.0)]), Curve("store", [(0.0, 5.0), (60.0, 5.0)])]
    drawn = ET.fromstring(chart(curves, "a title"))
    assert len([part for part in drawn if part.tag.endswith("polyline")]) == 2
    assert {"worker", "store"} <= {part.text for part in drawn}


def test_a_chart_of_many_points_is_small_and_keeps_the_peaks() -> None:
    curve = Curve("worker", [(float(at), 90.0 if at == 333 else 10.0) for at in range(1_000)])
    assert len(curve.thin()) <= 160
    assert max(mb for _, mb in curve.thin()) == 90.0


def test_memory_of_a_process_is_read() -> None:
    mb = rss_mb(os.getpid())
    assert mb is not None
    assert mb > 5
    assert rss_mb(2**22 + 1) is None


@pytest.mark.slow
async def test_a_short_soak_measures_every_process(tmp_path: Path) -> None:
    curves, completed = await soak(SqliteStorm(tmp_path), 3, 20, dashboard=False)
    assert [curve.name for curve in curves] == ["worker", "producer"]
    assert completed > 5
    assert all(len(curve.points) > 3 and curve.points[0][1] > 5 for curve in curves)
