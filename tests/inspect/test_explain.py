"""Explanations: each node's story is that of the passes, the fusion log and the plan."""

from __future__ import annotations

import copy
import functools
import json
import re

import pytest

from graphml.compiler.options import CompileOptions
from graphml.errors import UsageError
from graphml.inspect.dumps.document import Document
from graphml.inspect.dumps.explain import explain, text
from graphml.inspect.dumps.without_weights import describe_model
from tests.inspect import samples
from tests.model_forms import distinct
from tests.sample_models import MODELS

UNQUANTISED = CompileOptions("none,+swiglu,+rms_norm_mul")


@functools.cache
def stories(keep: str | None = None) -> Document:
    options = CompileOptions(UNQUANTISED.fuse, keep=(keep,) if keep else ())
    return describe_model(samples.stories(), options=options)


@pytest.mark.parametrize("model", distinct(list(MODELS)))
def test_every_node_of_every_pass_has_a_story(model: str) -> None:
    document = describe_model(samples.executor(model))
    names = dict.fromkeys(node["name"] for found in document["passes"] for node in found["nodes"])
    for name in names:
        found = explain(document, name)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert text(found).startswith(f"{name}\n  written in ")
        assert found["final"] is not None
        assert len(found["passes"]) == len(document["passes"])


def test_a_node_that_a_fusion_took() -> None:
    found = explain(stories(), "layers.3.silu")
    assert found["source"].startswith("_ffn.py:")
    assert [stage["became"] for stage in found["passes"]][:2] == ["made", "taken"]
    (applied,) = found["fusions"]["applied"]
    assert (applied["fusion"], applied["node"]) == ("swiglu", "layers.3.swiglu")
    assert "layers.3.silu" in applied["covered"]
    assert found["final"]["name"] == "layers.3.swiglu"
    told = text(found)
    assert "took layers.3.swiglu, layers.3.silu into layers.3.swiglu" in told
    assert "computed in" in told


def test_a_node_that_a_fusion_changed_and_one_that_none_touched() -> None:
    changed = explain(stories(), "layers.3.swiglu")
    assert [stage["became"] for stage in changed["passes"]][:2] == ["made", "changed"]
    kept = explain(stories(), "layers.3.q_rope")
    assert {stage["became"] for stage in kept["passes"]} == {"made", "kept"}
    assert kept["fusions"] == {"applied": [], "refused": []}


def test_a_refusal_and_its_reason() -> None:
    document = stories("layers.3.silu")
    for name in ("layers.3.silu", "layers.3.swiglu"):
        found = explain(document, name)
        refused = [one for one in found["fusions"]["refused"] if one["fusion"] == "swiglu"]
        assert refused
        assert refused[0]["at"] == "layers.3.silu"
        assert refused[0]["reason"] in text(found)
    assert explain(document, "layers.3.silu")["final"]["outputs"] == ["value:layers.3.silu"]


def test_where_values_are_stored_and_read() -> None:
    storage = {
        name: explain(stories(), name)["final"]["storage"]
        for name in (
            "token_embd.weight",
            "cache.0.k",
            "layers.0.cache_write",
            "layers.0.reshape",
            "layers.0.q",
        )
    }
    assert storage["token_embd.weight"] == "in the model file, mapped"
    assert storage["cache.0.k"] == "in the session's state"
    assert storage["layers.0.cache_write"] == "in the session's state cache.0.k, which it changes"
    assert storage["layers.0.reshape"] == f"{storage['layers.0.q']}: a view on layers.0.q"
    up = explain(stories(), "layers.0.up")["final"]
    assert up["readers"] == ["layers.0.swiglu"]
    swiglu = explain(stories(), "layers.0.swiglu")["final"]
    assert "in place of layers.0." in swiglu["storage"]
    assert up["last_read"] == swiglu["step"] == up["step"] + 1


def test_steps_are_counted_from_one_and_leaves_take_none() -> None:
    nodes = stories()["passes"][-1]["nodes"]
    assert f", step {len(nodes)} of {len(nodes)}\n" in text(explain(stories(), nodes[-1]["name"]))
    assert "placed on  " in text(explain(stories(), "token_embd.weight"))
    assert ", step" not in text(explain(stories(), "token_embd.weight"))


def test_times_are_told_where_they_are_known() -> None:
    document = copy.deepcopy(stories())
    document["overlays"]["time_us"] = {"layers.3.swiglu": 2.5}
    assert explain(document, "layers.3.silu")["time_us"] == 2.5
    assert "time        " in text(explain(document, "layers.3.silu"))
    assert explain(document, "logits")["time_us"] is None


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(
        UsageError, match=r"no node is called 'layers\.3\.ffn\.up'; did you mean layers\.3\.up"
    ):
        explain(stories(), "layers.3.ffn.up")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("attn_norm-0", "layers.0.attn_norm"), ("ffn_out-3", "layers.3.down"),
        ("blk.1.ffn_norm", "layers.1.ffn_norm"), ("l_out-2", "layers.2.ffn_residual"),
    ],
)  # fmt: skip
def test_names_of_llama_cpp_are_ours(theirs: str, ours: str) -> None:
    assert explain(stories(), theirs) == explain(stories(), ours)


@pytest.mark.parametrize(("theirs", "ours"), [("ffn_nrm-1", "layers.1.ffn_norm"), ("Qcur-9", "layers.4.q")])
def test_the_nearest_of_a_wrong_name_of_llama_cpp_is_ours(theirs: str, ours: str) -> None:
    with pytest.raises(UsageError, match=rf"no node is called '{theirs}'; did you mean .*{re.escape(ours)}"):
        explain(stories(), theirs)
