"""Every command that looks inside a model, on goldens of different architectures."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

import graphml
from graphml.ir.text import parse, write
from graphml.loading import discovery
from graphml.passes.fusion import all_ops
from tests import golden
from tests.cli.test_commands import graphml_command

WANTED = 12
NAMES = golden.decoders()
CHOSEN = sorted({NAMES[i * len(NAMES) // WANTED] for i in range(WANTED)})
every_chosen = pytest.mark.parametrize("path", CHOSEN, indirect=True)
SMALL = ["-p", 8, "-n", 4, "-r", 1]


@pytest.fixture
def path(request: pytest.FixtureRequest) -> Path:
    return golden.file(request.param)


def test_there_are_at_least_ten() -> None:
    assert len(CHOSEN) >= 10
    assert len({golden.read(name).architecture for name in CHOSEN}) >= 10


@every_chosen
def test_dumps(path: Path, tmp_path: Path) -> None:
    text = graphml_command("graph", path, "--pass", "build").stdout
    graph = parse(text, all_ops())
    assert write(graph) == text
    document = tmp_path / "g.json"
    graphml_command("graph", path, "-f", "json", "-o", document)
    assert json.loads(document.read_text())["model"] == path.name
    graphml_command("graph", path, "-f", "graphml", "--pass", "build", "-o", tmp_path / "g.graphml")
    assert len(nx.read_graphml(tmp_path / "g.graphml")) == len(graph.nodes)
    assert graphml_command("graph", path, "-f", "dot", "--collapse").stdout.startswith("digraph")
    assert graphml_command("graph", path, "-f", "mermaid", "--layer", 0).stdout.startswith("flowchart TD\n")
    assert json.loads(graphml_command("graph", path, "-f", "model-explorer").stdout)["label"] == path.name
    graphml_command("graph", path, "-f", "html", "-o", tmp_path / "g.html")
    assert (tmp_path / "g.html").stat().st_size < 1_000_000


@every_chosen
def test_diff_and_explain(path: Path) -> None:
    found = json.loads(graphml_command("diff", path, "--fuse-a", "none", "--json", code=1).stdout)
    assert found["changed"]
    fused = parse(graphml_command("graph", path).stdout, all_ops())
    node = max(fused.nodes, key=lambda node: len(node.origin))
    said = json.loads(graphml_command("explain", path, "--node", node.origin[0], "--json").stdout)
    assert node.name in json.dumps(said)
    text = graphml_command("explain", path, "--node", node.origin[0]).stdout
    assert node.source is not None
    assert f"{Path(node.source.file).name}:{node.source.line}" in text


@every_chosen
def test_tables(path: Path) -> None:
    for command in ("placement", "plan", "info"):
        assert graphml_command(command, path).stdout
    architecture = discovery.architecture(golden.read(path.stem).architecture)
    if not architecture.causal:
        told = graphml_command("profile", path, *SMALL, code=2).stderr
        assert f"{architecture.name} does not continue a text token by token" in told
    sizes = SMALL if architecture.causal else ["-p", 8, "-r", 1]
    profile = json.loads(graphml_command("profile", path, *sizes, "--format", "json").stdout)
    assert profile["model"] == path.name
    stages = ["prompt", *(["generation"] if architecture.causal else [])]
    assert [stage["name"] for stage in profile["stages"]] == stages
    assert all(stage["node"] for stage in profile["stages"])


@every_chosen
def test_compare_bisect_and_report(path: Path, tmp_path: Path) -> None:
    found = json.loads(
        graphml_command("compare", path, "--tokens", 6, "--kv", "f32", "--format", "json").stdout
    )
    assert found["values"]
    assert all(value["nmse"] < 1e-6 for value in found["values"] if value["nmse"] is not None)
    if path.stem in CHOSEN[::4]:  # it runs a model some twenty times
        told = graphml_command("bisect", path, "--tokens", 6, "--kv", "f32").stdout
        assert "nothing is wrong by itself" in told
    if path.stem not in CHOSEN[1::4]:  # tests/inspect/test_report.py makes reports of others
        return
    graphml_command("report", path, "-o", tmp_path / "r.zip")
    with zipfile.ZipFile(tmp_path / "r.zip") as report:
        assert len(report.namelist()) >= 6


@every_chosen
def test_capture_and_patch(path: Path) -> None:
    tokens = golden.read(path.stem).tokens[:6]
    with graphml.load(path, kv="f32") as model:
        mixing = [
            node.name
            for node in model.executor.build(1, 1).nodes
            if node.op.family in ("attention", "recurrent")
        ]
        session = model.session(capture=mixing[-1])
        logits = session.eval(tokens)
        name = list(session.captured)[-1]
        value = np.asarray(session.captured[name])
        changed = model.session(patch={name: lambda value: value * 0})
        assert not np.allclose(changed.eval(tokens), logits)
    assert value.shape[0] == len(tokens)
