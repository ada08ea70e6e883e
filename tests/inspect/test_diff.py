"""Differences: none where there are none, each planted one by its kind, shared ones told once."""

from __future__ import annotations

import copy
import functools
import json
from contextlib import closing

import pytest

from graphml.compiler.options import CompileOptions
from graphml.inspect.dumps import diff
from graphml.inspect.dumps.document import Document
from graphml.inspect.dumps.selection import Selection, select
from graphml.inspect.dumps.without_weights import describe_model
from tests.inspect import samples
from tests.looped import looped
from tests.model_forms import distinct
from tests.sample_models import MODELS


@functools.cache
def stories() -> Document:
    return describe_model(samples.stories())


def build() -> Selection:
    return copy.deepcopy(select(stories(), "build"))


def node(selection: Selection, name: str) -> dict[str, object]:
    return next(one for one in selection.nodes if one["name"] == name)


@pytest.mark.parametrize("model", distinct(list(MODELS)))
def test_a_graph_does_not_differ_from_itself(model: str) -> None:
    with closing(samples.opened(model)) as again:  # an executor keeps its last graphs
        documents = [describe_model(one) for one in (samples.executor(model), again)]
    before = None
    for found in documents[0]["passes"]:
        if found["nodes"] == before:
            continue  # a pass that changed nothing
        before = found["nodes"]
        one, other = (select(document, found["name"]) for document in documents)
        difference = diff.compare(one, other)
        assert not difference
        assert difference.equal == len(found["nodes"])
        assert diff.text(difference).endswith(f"0 removed, 0 added, 0 changed, {len(found['nodes'])} equal\n")


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("op", "tanh"),
        ("dtype", "f16"),
        ("shape", ["T<=1", 3]),
        ("attributes", {"eps": 0.5}),
        ("inputs", ["tokens"]),
    ],
)
def test_a_changed_fact_is_named(fact: str, value: object) -> None:
    changed = build()
    before = node(changed, "layers.2.rms_norm")[fact]
    node(changed, "layers.2.rms_norm")[fact] = value
    difference = diff.compare(build(), changed)
    (change,) = difference.changed
    assert (change.name, change.facts) == ("layers.2.rms_norm", {fact: (before, value)})
    assert not difference.added
    assert not difference.removed
    assert "~ layers.2.rms_norm" in diff.text(difference)


def test_sources_and_origins_do_not_matter() -> None:
    changed = build()
    for one in changed.nodes:
        one["source"] = "elsewhere.py:1"
    assert not diff.compare(build(), changed)


def test_a_node_more_is_added_and_one_less_removed() -> None:
    less = build()
    more = Selection(less.name, [*less.nodes, {**node(less, "logits"), "name": "extra"}], less.outputs)
    assert [one["name"] for one in diff.compare(less, more).added] == ["extra"]
    assert [one["name"] for one in diff.compare(more, less).removed] == ["extra"]


def test_an_output_elsewhere_is_a_difference() -> None:
    one = build()
    other = Selection(one.name, one.nodes, {"logits": "embedding"})
    assert diff.compare(one, other)
    assert "outputs: {'logits': '%logits'} -> {'logits': '%embedding'}" in diff.text(diff.compare(one, other))


def test_a_renamed_node_is_found_by_its_origin() -> None:
    renamed = build()
    one = node(renamed, "layers.2.up")
    one |= {"name": "layers.2.upward", "origin": ["layers.2.up"]}
    for reader in renamed.nodes:
        reader["inputs"] = ["layers.2.upward" if name == "layers.2.up" else name for name in reader["inputs"]]
    difference = diff.compare(build(), renamed)
    assert [(change.name, change.name_b, dict(change.facts)) for change in difference.changed] == [
        ("layers.2.up", "layers.2.upward", {})
    ]
    assert not difference.added
    assert not difference.removed


def test_removed_nodes_tell_into_what_they_went_and_layers_share_a_line() -> None:
    difference = diff.compare(select(stories(), "build"), select(stories(), "fuse"))
    assert list(difference.gone["layers.3.silu"]) == ["layers.3.swiglu"]
    lines = diff.text(difference).splitlines()
    (silu,) = [line for line in lines if line.startswith("- layers.#.silu")]
    assert "-> in layers.#.swiglu  (x 5: # = 0 to 4)" in silu
    assert len(lines) < len(difference.changed) + len(difference.removed)
    assert not difference.added


def test_switching_a_fusion_off_is_what_differs() -> None:
    without = describe_model(samples.stories(), options=CompileOptions("-swiglu"))
    there = diff.compare(select(stories(), "fuse"), select(without, "fuse"))
    back = diff.compare(select(without, "fuse"), select(stories(), "fuse"))
    assert sorted(one["name"] for one in there.added) == [f"layers.{i}.silu" for i in range(5)]
    assert there.added == back.removed
    assert {change.name: change.facts["op"] for change in there.changed} == {
        f"layers.{i}.swiglu": ("swiglu", "mul") for i in range(5)
    }


def test_as_json() -> None:
    difference = diff.compare(select(stories(), "build"), select(stories(), "fuse"), ("left", "right"))
    found = json.loads(json.dumps(difference.as_dict(), allow_nan=False))
    assert (found["format"], found["a"], found["b"], found["different"]) == (
        "graphml-diff-1",
        "left",
        "right",
        True,
    )
    assert len(found["removed"]) == len(difference.removed)
    assert found["removed"][0]["became"]


@looped(
    ("numbers", "said"), [([3], "3"), ([0, 1, 2], "0 to 2"), ([5, 0, 1, 7, 8], "0 to 1, 5, 7 to 8"), ([], "")]
)
def test_ranges(numbers: list[int], said: str) -> None:
    assert diff.ranges(numbers) == said


def test_a_name_cannot_steer_the_terminal() -> None:
    changed = build()
    extra = {**node(changed, "logits"), "name": "\x1b[2J"}
    more = Selection(changed.name, [*changed.nodes, extra], changed.outputs)
    assert "+ \\x1b[2J: mul_mat" in diff.text(diff.compare(changed, more))
