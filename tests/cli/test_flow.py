"""``windlass flow``: the tree of a flow, and changes to all of it."""

from __future__ import annotations

import pytest

from tests.cli.support import Cli
from windlass import FlowProducer, Windlass

pytestmark = pytest.mark.feature("X3")
backend_name = "sqlite"


def arrange(cli: Cli) -> str:
    async def add(app: Windlass) -> str:
        node = await FlowProducer(app).add(
            {
                "name": "report",
                "queue": "reports",
                "children": [
                    {"name": "rows", "queue": "reports", "children": [{"name": "fetch", "queue": "net"}]},
                    {"name": "chart", "queue": "reports"},
                ],
            }
        )
        return node.job.id

    return cli.app(add)


def test_the_tree_of_a_flow(cli: Cli) -> None:
    top = arrange(cli)
    view = cli.json("flow", "reports", top)
    assert (view["name"], view["state"]) == ("report", "blocked")
    assert sorted(child["name"] for child in view["children"]) == ["chart", "rows"]
    text = cli("flow", "reports", top).output
    assert text.index("report") < text.index("rows") < text.index("fetch")
    assert "2 blocked, 2 waiting" in text
    assert "..." in cli("flow", "reports", top, "--depth", "1").output


def test_a_flow_is_cancelled_as_a_whole(cli: Cli) -> None:
    top = arrange(cli)
    assert "pass --yes" in cli("flow", "reports", top, "--cancel", code=2).stderr
    assert cli.json("flow", "reports", top, "--cancel", "--reason", "wrong", "--yes") == {"cancelled": 4}
    assert cli.job("reports", top).reason == "wrong"


def test_a_flow_is_removed_as_a_whole(cli: Cli) -> None:
    top = arrange(cli)
    assert "Removed 4 jobs." in cli("flow", "reports", top, "--remove", "--yes").output
    assert "has no job" in cli("flow", "reports", top, code=1).stderr
    assert "Choose one" in cli("flow", "reports", top, "--remove", "--cancel", code=2).stderr
