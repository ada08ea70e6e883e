"""The forms of a dump: each holds the graph, is well formed for its readers, and some are read again."""

from __future__ import annotations

import functools
import io
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx as nx
import pytest

from graphml.errors import GraphError, UsageError
from graphml.inspect.dumps import dump, mermaid
from graphml.inspect.dumps.document import Document, nodes_of
from graphml.inspect.dumps.node_names import printable
from graphml.inspect.dumps.records import graph_of, is_dump, read_dump
from graphml.inspect.dumps.selection import Selection, select
from graphml.inspect.dumps.without_weights import describe_model, prepare_model
from graphml.ir.dtype import F32
from graphml.ir.graph import Graph
from graphml.ir.node import Node
from graphml.ir.op import Type
from graphml.ir.text import parse, write
from graphml.ir.verify import verify
from graphml.passes.fusion import all_ops
from tests.inspect import samples
from tests.ir.test_text_form import NAMES, VALUES, facts
from tests.looped import looped
from tests.model_forms import distinct
from tests.sample_models import MODELS


@functools.cache
def stories() -> Document:
    return describe_model(samples.stories(), 4)


@pytest.mark.parametrize(
    ("model", "tokens"), [(model, (1, 24)[i % 2]) for i, model in enumerate(distinct(list(MODELS)))]
)
def test_text_parses_back_after_every_pass_with_every_kind_of_node(model: str, tokens: int) -> None:
    executor = samples.executor(model)
    prepared, document = prepare_model(executor, tokens), describe_model(executor, tokens)
    assert list(prepared.snapshots) == [found["name"] for found in document["passes"]]
    last: object = None
    for name, graph in prepared.snapshots.items():
        selection = select(document, name)
        if last == (graph, selection.nodes, selection.outputs):
            continue  # a pass that changed nothing
        last = graph, selection.nodes, selection.outputs
        assert facts(parse(write(graph), all_ops())) == facts(graph)
        written = dump.text(selection)
        again = verify(parse(written, all_ops()))
        assert write(again) == written
        assert nodes_of(again) == nodes_of(graph)


@looped("value", VALUES, ids=repr)
def test_attributes_come_back(value: Any) -> None:
    node = Node(all_ops()["clamp"], (), Type(F32, (2,)), "x", {"low": value})
    if value == "inf":  # an attribute that is a number by default is one
        value = float("inf")
    found = graph_of(json.loads(json.dumps(nodes_of(Graph((node,), {})), allow_nan=False)), {})
    assert found.nodes[0].attributes["low"] == value
    assert type(found.nodes[0].attributes["low"]) is type(value)


def odd_names() -> Selection:
    """A graph whose names hold what forms are written with."""
    leaves = [Node(all_ops()["weight"], (), Type(F32, (2,)), name) for name in [*NAMES, "\x07", "\\x07"]]
    sums = [Node(all_ops()["add"], (leaf, leaf), leaf.type, f"{leaf.name}+") for leaf in leaves]
    graph = Graph((*leaves, *sums), {"out": sums[0]})
    return Selection("odd", nodes_of(graph), {"out": sums[0].name})


@functools.cache
def drawings() -> dict[str, Selection]:
    return {
        "whole": select(stories()),
        "build": select(stories(), "build"),
        "layer": select(stories(), layer=2),
        "collapsed": select(stories(), collapse=True),
        "odd": odd_names(),
    }


every_drawing = pytest.mark.parametrize("name", ["whole", "build", "layer", "collapsed", "odd"])


def pairs(selection: Selection) -> list[tuple[str, str]]:
    return [
        (printable(source), printable(node["name"])) for node in selection.nodes for source in node["inputs"]
    ]


STRING = r'"(?:[^"\\\n]|\\.)*"'
DOT_LINE = re.compile(
    rf"digraph {STRING} \{{|(?:node|edge) \[.*\]|subgraph cluster_layer_\d+ \{{|(?:label|color)={STRING}|\}}"
    rf"|(?P<node>{STRING}) \[label={STRING}, fillcolor={STRING}\]|(?P<from>{STRING}) -> (?P<to>{STRING})"
)


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed: no `dot` on the path")
def test_graphviz_draws_the_dot_form() -> None:
    document = describe_model(samples.executor(next(iter(MODELS)), "cpu"), 1)
    for collapse in (False, True):
        chosen = select(document, collapse=collapse)
        made = subprocess.run(
            ["dot", "-Tsvg"], input=dump.dot(chosen).encode(), capture_output=True, timeout=60
        )
        assert made.returncode == 0, made.stderr.decode()
        assert not made.stderr
        drawing = ElementTree.fromstring(made.stdout)
        kinds = [g.get("class") for g in drawing.iter("{http://www.w3.org/2000/svg}g")]
        assert kinds.count("node") >= len(chosen.nodes)


@every_drawing
def test_dot_is_well_formed_and_holds_the_graph(name: str) -> None:
    selection = drawings()[name]
    matches = [DOT_LINE.fullmatch(line.strip()) for line in dump.dot(selection).splitlines()]
    assert None not in matches
    lines = [match[0] for match in matches if match]
    assert sum(line.endswith("{") for line in lines) == lines.count("}")

    def named(text: str) -> str:
        return text[1:-1].replace('\\"', '"')

    nodes = [named(match["node"]) for match in matches if match and match["node"]]
    assert sorted(nodes) == sorted(printable(node["name"]) for node in selection.nodes)
    edges = [(named(match["from"]), named(match["to"])) for match in matches if match and match["from"]]
    assert edges == pairs(selection)


@every_drawing
def test_graphml_opens_in_networkx(name: str) -> None:
    selection = drawings()[name]
    read = nx.read_graphml(io.BytesIO(dump.graphml_xml(selection).encode()), force_multigraph=True)
    assert sorted(read.nodes) == sorted(printable(node["name"]) for node in selection.nodes)
    assert sorted(read.edges()) == sorted(pairs(selection))
    for node in selection.nodes:
        facts_of = read.nodes[printable(node["name"])]
        assert facts_of["bytes"] == node["bytes"]
        assert facts_of["op"] == node["op"]
        assert facts_of.get("layer") == node["layer"]
        assert facts_of["output"] is (node["name"] in selection.outputs.values())
        assert json.loads(facts_of["attributes"]) == node["attributes"] or name == "odd"
        operands = [data["operand"] for *_, data in read.in_edges(facts_of["label"], data=True)]
        assert sorted(operands) == list(range(len(node["inputs"])))


@pytest.mark.parametrize("name", ["layer", "collapsed", "odd"])
def test_mermaid_is_well_formed_and_holds_the_graph(name: str) -> None:
    selection = drawings()[name]
    first, *lines = dump.mermaid(selection).splitlines()
    assert first == "flowchart TD"
    node = re.compile(r'n(\d+)\["[^"<>`\n]*<br/>[^"<>`\n]*"\]')
    other = re.compile(r'subgraph layer\d+ \["[^"]*"\]|end|classDef \w+ [\w:#,]+|class [n\d,]+ \w+')
    edge = re.compile(r"n(\d+) --> n(\d+)")
    for line in lines:
        assert any(form.fullmatch(line.strip()) for form in (node, other, edge)), line
    found = [match for line in lines if (match := node.fullmatch(line.strip()))]
    assert sorted(int(match[1]) for match in found) == list(range(len(selection.nodes)))
    names = [printable(one["name"]) for one in selection.nodes]
    edges = [match for line in lines if (match := edge.fullmatch(line.strip()))]
    assert [(names[int(match[1])], names[int(match[2])]) for match in edges] == pairs(selection)


@pytest.mark.parametrize("limit", ["EDGES", "CHARACTERS"])
def test_mermaid_refuses_what_its_renderer_would_not_draw(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mermaid, limit, 20)
    with pytest.raises(UsageError, match="use --collapse, --layer N"):
        dump.mermaid(drawings()["layer"])


LAYERED = {
    "stories": ["layers 0 to 3 (x 4)", "layer 4"],
    "gemma3-plain": ["layer 0", "layer 1", "layer 2"],
    "granitehybrid-experts": ["layer 0", "layer 1"],
}


@pytest.mark.parametrize("name", LAYERED)
def test_mermaid_draws_layers_where_nodes_are_too_many(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that are alike are one box in a row of boxes, and each kind of them is drawn once beside it."""
    document = stories() if name == "stories" else describe_model(samples.executor(name), 4)
    selection = select(document)
    flat = dump.mermaid(selection)
    monkeypatch.setattr(mermaid, "EDGES", flat.count(" --> ") - 1)
    drawn = dump.mermaid(selection)
    boxes = re.findall(r'(layers\d+)\["(layers? [^<]*)<br/>kind#?[^"]*"\]', drawn)
    assert [title for _, title in boxes] == LAYERED[name]
    arrows = re.findall(r"(\w+) --> (\w+)", drawn)
    row = [(source, reader) for source, reader in arrows if {source, reader} <= {box for box, _ in boxes}]
    assert row == [(a, b) for (a, _), (b, _) in itertools.pairwise(boxes)]
    frames = re.findall(r'subgraph kind(\w) \["kind \w#58; ([^"]*)"\]', drawn)
    if name == "stories":  # of the others no two layers are alike, and so more than all nodes would be drawn
        assert frames == list(zip("AB", LAYERED[name], strict=True))
        inside = [node for node in selection.nodes if node["layer"] == 0]
        assert all(f'["{mermaid._escaped(printable(node["name"]))}<br/>' in drawn for node in inside)
    known = set(re.findall(r'^  (\w+)\["', drawn, re.MULTILINE))
    assert {box for arrow in arrows for box in arrow} <= known
    monkeypatch.setattr(mermaid, "EDGES", len(boxes) + 20)  # without the kinds
    assert "subgraph" not in dump.mermaid(selection)


def test_model_explorer_graphs_are_closed_and_named_after_the_passes() -> None:
    passes = [found["name"] for found in stories()["passes"]]
    selections = {name: select(stories(), name) for name in passes}
    found = json.loads(json.dumps(dump.model_explorer(selections, "stories")))
    assert [graph["id"] for graph in found["graphs"]] == passes
    for graph, selection in zip(found["graphs"], selections.values(), strict=True):
        ids = [node["id"] for node in graph["nodes"]]
        assert len(set(ids)) == len(ids) == len(selection.nodes)
        edges = [(e["sourceNodeId"], n["id"]) for n in graph["nodes"] for e in n["incomingEdges"]]
        assert edges == pairs(selection)
        assert {node["namespace"] for node in graph["nodes"]} == {"", *(f"layer {i}" for i in range(5))}
        assert all(isinstance(one["value"], str) for node in graph["nodes"] for one in node["attrs"])


def test_a_layer_alone_is_a_graph_with_what_it_reads_as_inputs() -> None:
    selection = select(stories(), layer=2)
    graph = verify(parse(dump.text(selection), all_ops()))
    inputs = graph.leaves("input")
    assert "layers.1.ffn_residual" in inputs
    assert not inputs["rope_table"].attributes  # an input has none
    assert set(graph.outputs) == {"layers.2.ffn_residual"}
    assert {node["layer"] for node in selection.nodes if node["op"] == "weight"} == {2}


def test_collapsed_layers_are_a_smaller_graph() -> None:
    selection = select(stories(), "build", collapse=True)
    written = dump.text(selection)
    graph = verify(parse(written, all_ops()))
    assert written.startswith("# layers 0 to 3 (x 4): equal, shown is layer 0\n")
    assert {node["layer"] for node in selection.nodes} == {None, 0, 4}
    assert graph.node("layers.4.rms_norm").inputs == (graph.node("layers.0.ffn_residual"),)
    assert "layers 0 to 3 (x 4)" in dump.dot(selection)


def test_layers_that_take_turns_are_folded_under_headings() -> None:
    document = json.loads(json.dumps(stories()))
    for node in document["passes"][0]["nodes"]:
        if node["name"] in ("layers.1.rms_norm", "layers.3.rms_norm"):
            node["attributes"] = {"eps": 0.5}
    selection = select(document, "build", collapse=True)
    assert {node["layer"] for node in selection.nodes} == {None, 0, 1, 4}
    written = dump.text(selection)
    headings = [line for line in written.splitlines() if line.startswith("#")]
    assert headings == [
        "# layers 0 to 2, every 2nd (x 2): equal, shown is layer 0",
        "# layers 1 to 3, every 2nd (x 2): equal, shown is layer 1",
        "# layers 0 to 2, every 2nd (x 2)",
        "# layers 1 to 3, every 2nd (x 2)",
        "# layer 4",
    ]
    graph = verify(parse(written, all_ops()))
    assert graph.node("layers.1.rms_norm_1").inputs == (graph.node("layers.1.attn_residual"),)
    assert graph.node("layers.4.rms_norm").inputs == (graph.node("layers.1.ffn_residual"),)


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_dump_is_read_again(form: str, tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_text(json.dumps(stories()) if form == "json" else dump.text(select(stories())))
    assert is_dump(path)
    again = read_dump(path)
    assert again == stories() if form == "json" else again["model"] == "dump"
    assert dump.text(select(again)) == dump.text(select(stories()))


LAST = ("passes", 0, "nodes", -1)
CHANGES: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "format": (("format",), "other"),
    "no passes": (("passes",), None),
    "passes are a number": (("passes",), 3),
    "a pass is a number": (("passes", 0), 3),
    "nodes are numbers": (("passes", 0, "nodes"), [1]),
    "operand": ((*LAST, "inputs"), ["nobody"]),
    "op": ((*LAST, "op"), "boom"),
    "shape": ((*LAST, "shape"), ["T"]),
    "dtype": ((*LAST, "dtype"), "f99"),
    "attribute": ((*LAST, "attributes"), {"a": {}}),
    "origin": ((*LAST, "origin"), 3),
    "output": (("passes", 0, "outputs"), {"y": "nobody"}),
}


def damaged(path: tuple[str | int, ...], value: Any) -> str:
    found = json.loads(json.dumps(stories()))
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(found)


BAD = {name: damaged(*change) for name, change in CHANGES.items()} | {
    "cut": '{"format": "graph',
    "deep": '{"format":' + "[" * 100_000,
    "text": "%x: boom",
    "other": "{}",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_damaged_dump_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    path.write_text(text)
    with pytest.raises((UsageError, GraphError), match=r"dump\.json"):
        read_dump(path)


def test_a_model_is_no_dump(tmp_path: Path) -> None:
    assert not is_dump(samples.STORIES)
    assert not is_dump(samples.model_path("llama-plain"))
    assert not is_dump(tmp_path / "missing")
