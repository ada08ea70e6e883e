"""llama.cpp's names of values: each means the value of that meaning, or the error says what to write."""

from __future__ import annotations

import re

import pytest

from graphml.errors import UsageError
from graphml.ir.graph import Graph
from graphml.passes.llama_cpp_names import OF_A_LAYER, OUTSIDE, as_ours
from graphml.passes.patch import hits_of, values
from tests.inspect import samples
from tests.model_forms import distinct
from tests.sample_models import MODELS

STREAMS = {"cache_write", "cache_write_1", "value", "selected"}
"""What layers hand on besides their result."""


def graph_of(model: str) -> Graph:
    return samples.executor(model).build(2, 2)


def between_layers(graph: Graph) -> set[str]:
    """The values of the first layer that later nodes read."""
    return {
        source.name
        for node in graph.nodes
        for source in node.inputs
        if source.name.startswith("layers.0.") and not node.name.startswith("layers.0.")
    }


@pytest.mark.parametrize("model", distinct(list(MODELS)))
def test_a_layer_s_result_is_what_later_layers_read(model: str) -> None:
    graph = graph_of(model)
    results = as_ours("l_out-0", [node.name for node in values(graph)])
    handed_on = {name for name in between_layers(graph) if name.split(".", 2)[2] not in STREAMS}
    assert set(results) in (handed_on, set())
    if results == []:
        assert not any(name.endswith("ffn_residual") for name in handed_on)


def test_every_name_is_of_a_value_of_some_model() -> None:
    names = {
        node.name
        for model in ("llama-plain", "gemma3-plain", "qwen3-plain", "gpt2-plain", "qwen3moe-plain",
                      "bert-plain", "nemotron-plain")
        for node in values(graph_of(model))
    }  # fmt: skip
    for name in OF_A_LAYER:
        assert as_ours(f"{name}-0", names), name
    for name in OUTSIDE:
        assert as_ours(name, names), name


@pytest.mark.parametrize(("name", "ours"), [
    ("attn_norm-0", ["layers.0.attn_norm"]), ("ffn_out-1", ["layers.1.down"]),
    ("kqv_out-1", ["layers.1.attention"]),
    ("result_norm", ["output_norm"]), ("result_output", ["logits"]), ("inp_embd", ["embedding"]),
    ("l_out-*", ["layers.0.ffn_residual", "layers.1.ffn_residual"]),
])  # fmt: skip
def test_a_name_of_llama_cpp_selects_the_value(name: str, ours: list[str]) -> None:
    assert hits_of("capture", name, [node.name for node in values(graph_of("llama-plain"))]) == ours


@pytest.mark.parametrize(("name", "said"), [
    ("Qcur-1", "'Qcur-1' names two values of llama.cpp, before and after rotary positions: wanted "
     "'layers.1.q' or 'layers.1.q_rope'"),
    ("Kcur-*", "wanted 'layers.0.k' or 'layers.0.k_rope'"),
    ("kq_soft_max-1", "kq_soft_max is computed within 'layers.1.attention'"),
    ("l_out", "wanted 'l_out-0', or 'l_out-*'"), ("k-0", "Did you mean 'layers.0.k'"),
    ("atn_out-1", "Did you mean 'layers.1.attn_out'"), ("zzzz-1", "Layer 1 has 'layers.1.rms_norm', "),
    ("l_out-7", "Did you mean 'layers.1.ffn_residual'"), ("qqqq", "`graphml explain MODEL` lists them"),
])  # fmt: skip
def test_another_name_is_an_error_that_says_what_to_write(name: str, said: str) -> None:
    names = [node.name for node in values(graph_of("llama-plain"))]
    with pytest.raises(UsageError, match=re.escape(said)):
        hits_of("capture", name, names)
