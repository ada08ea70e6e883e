"""Classes of transformers whose parts are written otherwise than Llama's, from recorded descriptions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from graphml.authoring.importing.command import checkpoint
from graphml.authoring.importing.importing import Imported, import_description
from graphml.authoring.importing.proof import Proof, prove
from tests.import_records import described, write_folder

CLASSES = {
    "deepseek_v2": ('table, "norm")', 'c.size("qk_nope_head_dim") + 12', "g.repeat("),  # in complex numbers
    "deepseek_v3": ('table, "norm")', 'config.size("qk_nope_head_dim") + config.size("qk_rope_head_dim")'),
    "openai-gpt": ('layer["ln_2"]',),  # a norm that ends a layer
    "modernbert-decoder": ('weights["output_norm"]', 'weights["lm_head_norm"]'),
    "bert": ("rows(lambda c: (1, 2, 0, 1))",),  # a row of a table for all tokens
    "roberta": ("running_sum(g, h_TD, 0)", "g.equal("),  # positions are counts of tokens that are no padding
    "rembert": ('g.embed(weights["embeddings_word_embeddings"], g.tokens)',),  # narrower than the stream
    "bart": ('config.follows("num_hidden_layers", config.size("decoder_layers"))',
             '"decoder.layers.{}.encoder_attn.k_proj.weight": None'),
    "gpt_neox_japanese": ('layer["attention_dense_bias"]',),  # a bias that is spread over tokens
    "nanochat": ("turned_back(config, found)",),
    "diffllama": ("g.exp(g.sum_rows(g.mul(",),  # parameters that are computed in the graph
    "apertus": ("g.softplus(layer[",),
    "laguna": ("ropes_by_kind(config, found, {})", "dimension_count_swa"),
    "mimo_v2_flash": ("ropes_by_kind(config, found, {})",),
    "gemma4_text": ("widths=(32, 16)", "layer.index * 8"),
    "xglm": ("add_sinusoids(config, found, first=2, last_slowest=True, cosines_first=False)",),
    "kolibri1": ('layer["exp_probs_b.bias"]), config.routing.n_used', "x_TD, ids_TU)"),  # scores, a bias
    "llama4_text": ("chosen.total(", "g.log("),  # weights before the experts, queries that grow
    "gpt_oss": ("pairs_TUF2", "g.gelu_quick(g.clamp("),  # gates in turns, biases, limits
    "aria_text": ('layer["ffn_norm"]',),  # a norm that a view of it ends
    "granitemoe_swa": ('config.single("layer_rope_theta")',),  # the base of layers with a rope, and 0
    "ministral3": ("g.log(", 'config.pinned("rope_parameters.llama_4_scaling_beta", 0.1)'),
}  # fmt: skip
"""What the text of each has."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classes")


def imported(
    name: str, folder: Path, change: Callable[[dict[str, Any]], None] | None = None
) -> tuple[Imported, Proof]:
    description = described(name, folder / f"{name}.traced", change)
    write_folder(description, folder / name)
    model = import_description(description, checkpoint(folder / name))
    file = folder / f"{name.replace('-', '_')}.py"
    file.write_text(model.text)
    return model, prove(model, file, folder / name)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_becomes_a_file_that_agrees_in_every_part(name: str, folder: Path) -> None:
    model, proof = imported(name, folder)
    assert proof.holds, [(line.what, line.tokens, line.nmse) for line in proof.lines]
    for text in CLASSES[name]:
        assert text in model.text, model.text


def test_a_rope_of_another_base_than_config_says_is_seen(folder: Path) -> None:
    """In fresh weights, which are small, it is below the limit: random ones run by what config.json says."""

    def without_list(found: dict[str, Any]) -> None:
        del found["config"]["layer_rope_theta"]

    model, proof = imported("granitemoe_swa", folder, without_list)
    assert 'sinks=layer["attn_sinks"]' in model.text  # written as a sigmoid behind the values
    assert not proof.holds
    assert max(line.nmse for line in proof.lines if line.what.startswith("random parameters")) > 1e-6


def test_counted_tokens_have_rows_of_a_table_up_to_the_context(folder: Path) -> None:
    """The table's rows before those of the first token are none of a text's length."""
    model, _ = imported("roberta", folder)
    (table,) = (expr for expr in model.layers.before if "context" in expr.numbers)
    rows, padding = table.weights["weight"].shape[0], model.dependence.description.config["pad_token_id"]
    assert model.keys["context_length"] == rows - 1 - padding


def test_a_bias_behind_a_tied_embedding_is_added(folder: Path) -> None:
    model, proof = imported("bert", folder)
    assert model.tied
    assert any(place.name == "output.bias" for place in model.tensors)
    assert proof.holds
