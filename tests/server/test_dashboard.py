"""The Grafana dashboard asks for metrics that a server has, and for all that matter."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import graphml
from graphml.server.options.server_options import ServerOptions
from tests.server.running_server import running

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
NAME = re.compile(r"(?:vllm|llamacpp|graphml):\w+")


@pytest.fixture(scope="module")
def samples(stories: graphml.Model) -> set[str]:
    """Names of samples that a server with keys writes, after a request."""
    with running(ServerOptions(parallel=1, n_ctx=64, metrics=True, api_keys=("a",)), stories) as found:
        key = {"X-Api-Key": "a"}
        assert found.post("/completion", {"prompt": "a", "n_predict": 2}, headers=key).status_code == 200
        lines = found.http.get("/metrics", headers=key).text.splitlines()
    return {one[0] for line in lines if (one := NAME.match(line))}


def test_each_metric_of_the_dashboard_is_written(samples: set[str]) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = [one["expr"] for panel in dashboard["panels"] for one in panel["targets"]]
    asked += [one["query"] for one in dashboard["templating"]["list"]]
    names = {name for text in asked for name in NAME.findall(text)}
    assert len(names) > 12
    assert names <= samples, sorted(names - samples)


def test_panels_do_not_overlap_and_have_different_numbers() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    places = {(one["gridPos"]["x"], one["gridPos"]["y"]) for one in panels}
    assert len(places) == len({one["id"] for one in panels}) == len(panels)
    assert all(one["gridPos"]["x"] + one["gridPos"]["w"] <= 24 for one in panels)
