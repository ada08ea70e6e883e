"""Where nodes belong: phases of a model, kinds of its layers."""

from __future__ import annotations

import re

import pytest

from graphml.inspect.dumps.layers import layer_of
from graphml.inspect.profile.phases import (
    ATTENTION,
    EMBEDDING,
    FEED_FORWARD,
    OUTPUT,
    QKV,
    kinds,
    places,
)
from graphml.ir.dtype import F32
from graphml.ir.language import Builder
from graphml.ir.work import plain_nodes
from tests.inspect import samples
from tests.looped import looped
from tests.sample_models import MODELS


def phases_by_kind(model: str) -> dict[str, str]:
    graph = samples.executor(model).compiled(1, 1).graph
    return {name: place.phase for name, place in places(graph).items()}


def test_phases_of_a_llama_layer() -> None:
    found = phases_by_kind(next(name for name in MODELS if name.startswith("llama-")))
    groups = {
        EMBEDDING: ["embedding"],
        QKV: ["layers.0.attn_norm", "layers.0.q", "layers.0.k", "layers.0.v"],
        ATTENTION: ["rope_table", "layers.0.q_rope", "layers.0.cache_write", "layers.0.attention",
                    "layers.0.attn_residual"],
        FEED_FORWARD: ["layers.0.ffn_norm", "layers.0.swiglu", "layers.0.ffn_residual"],
        OUTPUT: ["output_norm", "logits"],
    }  # fmt: skip
    wanted = {name: phase for phase, names in groups.items() for name in names}
    assert {name: found.get(name) for name in wanted if name in found} == {
        name: phase for name, phase in wanted.items() if name in found
    }
    assert len(set(wanted) & set(found)) > 10


@pytest.mark.parametrize("model", MODELS)
def test_every_architecture_has_the_phases(model: str) -> None:
    graph = samples.executor(model).compiled(1, 1).graph
    found = {place.phase for place in places(graph).values()}
    wanted = {EMBEDDING, QKV, ATTENTION}
    if not model.startswith(("mamba-", "mamba2-")):  # their layers are recurrences alone
        wanted.add(FEED_FORWARD)
    if "logits" in graph.outputs:  # embeddings may be what the last layer gives
        wanted.add(OUTPUT)
    assert wanted <= found
    for family, name in (("attention", "attention"), ("recurrent", "recurrence")):
        mixing = [node for node in graph.nodes if any(part.op.family == family for part in plain_nodes(node))]
        named = {i for i, kind in kinds(graph).items() if name in re.split(r" \(.*?\)| \+ ", kind)}
        # Granite Switch attends before its layers, too, to find what is switched on.
        beside = {None} if model.startswith("graniteswitch") else set()
        assert named == {layer_of(node.name) for node in mixing} - beside


KINDS = {
    "llama-plain": ["attention + feed-forward"] * 2,
    "minimax-m3-plain": [
        "attention + feed-forward", "attention (select_blocks, selected_attention) + experts",
    ],
    "minimax-01-plain": ["recurrence (linear_attention) + experts", "attention + experts"],
    "rwkv6-plain": ["recurrence (ssm_conv, linear_attention) + feed-forward"] * 2,
    "mamba-plain": ["recurrence (ssm_conv, ssm_scan)"] * 2,
    "t5encoder-plain": ["attention (relative_attention) + feed-forward"] * 2,
    "lfm2-plain": ["recurrence (ssm_conv) + feed-forward", *["attention (window 40) + feed-forward"] * 2],
}  # fmt: skip


@looped("model", KINDS)
def test_kinds_of_layers(model: str) -> None:
    assert list(kinds(samples.executor(model).compiled(1, 1).graph).values()) == KINDS[model]


def test_what_runs_beside_attention_is_feed_forward_and_a_gate_is_not() -> None:
    g = Builder()
    x = g.embed(g.weight("table", F32, (9, 8)), g.tokens)
    with g.scope("layers.0"):
        h = g.rms_norm(x, g.weight("n", F32, (8,)), 1e-5, "norm")
        q, k, v, gate, up = (
            g.mul_mat(g.weight(name, F32, (8, 8)), h, name=name) for name in ("q", "k", "v", "gate", "up")
        )
        y = g.attend(g.heads(q, 2), g.heads(k, 2), g.heads(v, 2), 0, 1.0)
        y = g.mul(y, g.sigmoid(gate, name="opened"), name="gated")
        y = g.mul_mat(g.weight("o", F32, (8, 8)), y, name="out")
        x = g.add(g.add(x, y, name="sum"), g.silu(up, name="act"), name="both")
    graph = g.finish(logits=g.mul_mat(g.weight("head", F32, (9, 8)), x, name="logits"))
    found = {name.removeprefix("layers.0."): place.phase for name, place in places(graph).items()}
    assert {name for name, phase in found.items() if phase == QKV} >= {"norm", "q", "k", "v", "gate"}
    assert {found[name] for name in ("attention", "gated", "out", "opened")} == {ATTENTION}
    assert {found[name] for name in ("sum", "up", "act", "both")} == {FEED_FORWARD}
    assert found["logits"] == OUTPUT
