"""The Grafana dashboard and the alert rules of the package ask for metrics that exist."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from windlass import Windlass, Worker
from windlass.dashboard import create_app
from windlass.telemetry import PrometheusMetrics

_METRIC = re.compile(r"\bwindlass_\w+")
_SAMPLE = re.compile(r"^(windlass_\w+)(?:\{(.*)\})? ", re.MULTILINE)
_SELECTOR = re.compile(r"(windlass_\w+)\{([^}]*)\}")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!=|!~|=)")


DOCS = Path(__file__).resolve().parents[3] / "docs"
#: Names that begin as metrics do and are none: fixtures, packages, commands, databases.
_NO_METRICS = {
    *("windlass_app", "windlass_clock", "windlass_conformance", "windlass_import", "windlass_shop"),
    *("windlass_v2", "windlass_worker"),
}


def _shipped(name: str) -> str:
    return files("windlass.telemetry").joinpath("monitoring", name).read_text("utf-8")


def _expressions() -> list[str]:
    board = json.loads(_shipped("grafana-dashboard.json"))
    panels = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    variables = [one["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    rules = yaml.safe_load(_shipped("alerts.yml"))["groups"][0]["rules"]
    return [*panels, *variables, *(rule["expr"] for rule in rules)]


async def _served() -> dict[str, set[str]]:
    """Every metric that a dashboard and a worker serve at ``/metrics``, with its labels."""
    app = Windlass("memory://monitoring")
    metrics = PrometheusMetrics()
    app.use(metrics)

    @app.task(name="work", max_attempts=1)
    async def work(fails: bool) -> None:
        if fails:
            raise ValueError("no")

    async with app:
        await work.enqueue(False)
        await work.enqueue(True)
        await Worker("default", url_or_app=app).drain()
        transport = httpx.ASGITransport(create_app(app), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            answer = await client.get("/metrics")
        assert answer.status_code == 200, answer.text
        text = answer.text + (await metrics.text(app)).decode()
    found: dict[str, set[str]] = {}
    for name, labels in _SAMPLE.findall(text):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


@pytest.mark.anyio
async def test_panels_and_alerts_name_metrics_and_labels_that_are_served() -> None:
    served = await _served()
    named = {name for text in _expressions() for name in _METRIC.findall(text)}
    assert len(named) >= 8
    assert named - served.keys() == set()
    for text in _expressions():
        for name, selector in _SELECTOR.findall(text):
            assert set(_LABEL.findall(selector)) <= served[name], text


@pytest.mark.anyio
async def test_pages_name_metrics_and_labels_that_are_served() -> None:
    served = await _served()
    for page in DOCS.rglob("*.md"):
        text = page.read_text()
        for name in set(_METRIC.findall(text)) - _NO_METRICS:
            assert any(one in (name, f"{name}_bucket") for one in served), f"{page.name}: {name}"
        for name, selector in _SELECTOR.findall(text):
            assert set(_LABEL.findall(selector)) <= served[name], f"{page.name}: {name}{{{selector}}}"


def test_every_alert_says_what_happened_and_what_to_do() -> None:
    rules: list[dict[str, Any]] = yaml.safe_load(_shipped("alerts.yml"))["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 4
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning", "info")


def test_every_panel_has_a_title_a_place_and_a_source() -> None:
    board = json.loads(_shipped("grafana-dashboard.json"))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert panel["title"] and place["x"] + place["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"
