"""The document of a compiled graph: it says what the graph says, and which layers are alike."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from graphml.inspect.dumps.document import describe, source_of
from graphml.inspect.dumps.layers import equal_layers, layer_hashes, layer_of, renumbered, repeated_layers
from graphml.inspect.dumps.without_weights import describe_model
from graphml.ir.node import Source
from graphml.ir.shape import Symbol
from graphml.runtime.programs.executor import Executor
from graphml.runtime.programs.load_options import LoadOptions
from graphml.runtime.programs.open_executor import open_executor
from tests.docs.pages import table
from tests.inspect import samples
from tests.looped import looped
from tests.model_forms import distinct
from tests.sample_models import MODELS


def document(executor: Executor, tokens: int = 1) -> dict[str, Any]:
    compiled = executor.compiled(tokens, 1)
    return describe(compiled, model="m", backend=executor.backend, device=executor.device)


@pytest.mark.parametrize("model", distinct(list(MODELS)))
def test_it_says_what_the_graph_says(model: str) -> None:
    executor = samples.executor(model)
    compiled = executor.compiled(24, 1)
    found = document(executor, 24)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [one["name"] for one in found["passes"]] == list(compiled.snapshots)
    for one, graph in zip(found["passes"], compiled.snapshots.values(), strict=True):
        assert one["outputs"] == {name: node.name for name, node in graph.outputs.items()}
        for record, node in zip(one["nodes"], graph.nodes, strict=True):
            assert record["name"] == node.name
            assert record["op"] == node.op.name
            assert record["dtype"] == (repr(node.type) if node.type.parts else node.dtype.name)
            assert record["inputs"] == [source.name for source in node.inputs]
            assert record["origin"] == list(node.origin)
            assert record["shape"] == [str(d) if isinstance(d, Symbol) else d for d in node.shape]
            assert set(record["attributes"]) == set(node.attributes)


def test_buffers_are_those_of_the_plan_and_known_at_the_end_only() -> None:
    executor = samples.stories()
    plan, found = executor.compiled(1, 1).plan, document(executor)
    *before, last = found["passes"]
    assert all(node["buffer"] is None for one in before for node in one["nodes"])
    buffers = {node["name"]: node["buffer"] for node in last["nodes"]}
    assert {name: b["offset"] for name, b in buffers.items() if b} == {
        node.name: offset for node, offset in plan.offsets.items()
    }
    assert max(b["offset"] + b["size"] for b in buffers.values() if b) <= found["plan"]["peak"] == plan.peak
    assert {node["backend"] for node in last["nodes"]} == {"reference"}


def test_a_fallback_has_its_reason() -> None:
    executor = samples.stories()
    backend = replace(executor.backend, refuses=lambda node: "too round" if node.op.name == "rope" else None)
    compiled = executor.compiled(1, 1)
    found = describe(compiled, model="m", backend=backend, device=executor.device)["passes"][-1]["nodes"]
    ropes = [node for node in found if node["op"] == "rope"]
    assert ropes
    assert {(node["backend"], node["fallback"]) for node in ropes} == {("numpy", "too round")}
    others = {(node["backend"], node["fallback"]) for node in found if node not in ropes}
    assert others == {("reference", None)}


def test_bytes_are_of_a_node_s_own_storage() -> None:
    nodes = {node["name"]: node for node in document(samples.stories())["passes"][-1]["nodes"]}
    assert nodes["token_embd.weight"]["bytes"] == 512 * 64 * 4
    assert nodes["layers.0.cache_write"]["bytes"] == 0
    assert nodes["layers.0.reshape"]["bytes"] == 0
    assert nodes["logits"]["bytes"] == 512 * 4


def test_layers_that_are_equal_collapse() -> None:
    found = document(samples.stories())
    (run,) = found["collapsed"]
    assert run["layers"] == [0, 1, 2, 3, 4]
    assert run["first"] == 0
    hashes = layer_hashes(describe_model(samples.stories(), max_tokens=2)["passes"][0]["nodes"])
    assert len({hashes[layer] for layer in range(4)}) == 1
    assert hashes[4] != hashes[0]  # of several tokens the last layer picks the output rows


def test_kinds_of_layers_that_take_turns_stand_for_each_other() -> None:
    nodes = document(samples.stories())["passes"][0]["nodes"]
    assert repeated_layers(nodes) == {0: [0, 1, 2, 3, 4]}
    for node in nodes:
        if node["name"] in ("layers.1.rms_norm", "layers.3.rms_norm"):
            node["attributes"] = {"eps": 0.5}
    assert repeated_layers(nodes) == {0: [0, 2], 1: [1, 3]}
    for node in nodes:
        if node["name"] == "layers.2.rms_norm":
            node["attributes"] = {"eps": 0.25}
    assert repeated_layers(nodes) == {}


def test_a_changed_layer_stands_alone() -> None:
    nodes = document(samples.stories())["passes"][0]["nodes"]
    changed = next(node for node in nodes if node["name"] == "layers.1.rms_norm")
    changed["attributes"] = {"eps": 0.5}
    assert [run["layers"] for run in equal_layers([nodes])] == [[2, 3, 4]]


def test_reading_further_back_is_not_reading_the_layer_before() -> None:
    nodes = document(samples.stories())["passes"][0]["nodes"]
    for node in nodes:
        if node["layer"] == 3:
            node["inputs"] = [name.replace("layers.2.", "layers.1.") for name in node["inputs"]]
    assert [run["layers"] for run in equal_layers([nodes])] == [[0, 1, 2]]


@looped(
    ("name", "layer"),
    [
        ("layers.12.q", 12),
        ("blk.3.attn_q.weight", 3),
        ("cache.0.k", 0),
        ("logits", None),
        ("a.layers.1.q", None),
    ],
)
def test_the_layer_of_a_name(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer


def test_numbers_are_replaced_wherever_they_stand() -> None:
    assert renumbered("layers.1.blk.1.attn_q.1.weight", 1, 0) == "layers.0.blk.0.attn_q.1.weight"
    assert renumbered("layers.11.q", 1, 0) == "layers.11.q"


@pytest.mark.parametrize("file", ["/home/me/llama.py", "C:\\me\\llama.py", "llama.py"])
def test_a_source_does_not_tell_the_folder(file: str) -> None:
    assert source_of(Source(file, 63)) == "llama.py:63"
    assert source_of(None) is None


def test_nodes_on_several_backends_have_each_its_own() -> None:
    options = LoadOptions("cpu,reference", threads=1, place="reference:layers.1-2")
    with closing(open_executor(samples.STORIES, options)) as executor:
        last = describe_model(executor)["passes"][-1]
    owners = {node["name"]: node["backend"] for node in last["nodes"]}
    assert (owners["layers.0.q"], owners["layers.1.q"], owners["layers.3.q"]) == ("cpu", "reference", "cpu")
    assert owners["positions"] is None


def test_the_page_lists_the_keys_of_a_node() -> None:
    listed = [row["key of a node"] for row in table("docs/inspecting.md", "key of a node")]
    for found in document(samples.stories())["passes"]:
        assert listed == list(found["nodes"][0])
