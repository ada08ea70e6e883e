"""Folders of EAGLE-3 heads as their tools save them: the tensors, metadata and drafts of the GGUF files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from graphml.errors import ArchitectureError
from graphml.loading.open_file import open_path
from graphml.runtime.sessions.draft_file import usual_layers
from graphml.sampling import SamplingParams
from tests.drafted_model import write_model
from tests.folders.test_packed_folders import stored, write_safetensors
from tests.runtime.test_feature_heads import PROMPT, always, read, write_draft

_ = always  # a fixture
LAYER = {"attn_norm": "input_layernorm", "attn_norm_2": "hidden_norm", "ffn_norm": "post_attention_layernorm",
         **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"}, "attn_output": "self_attn.o_proj",
         **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")}}  # fmt: skip
TOP = {"token_embd": "embed_tokens", "fc": "fc", "output_norm": "norm", "output": "lm_head",
       "enc.output_norm": "input_norm"}  # fmt: skip


def in_halves(array: Any, n_head: int) -> Any:
    """Rows of a rope of neighbours for one of halves, as transformers has it."""
    rows = array.reshape(n_head, -1, 2, array.shape[-1])
    return np.ascontiguousarray(rows.swapaxes(1, 2).reshape(array.shape))


def write_head(path: Path, kind: str, layer: str, **changed: Any) -> Path:
    """A golden as a folder; layer: what the names of its one layer begin with."""
    of, _, tensors = read(kind)
    sizes = {key.removeprefix("eagle3."): value for key, (_, value) in of.metadata.items()}
    held = {}
    for name, array in tensors.items():
        stem = name.removesuffix(".weight")
        if stem.startswith("blk.0."):
            part = stem.removeprefix("blk.0.")
            heads = {"attn_q": 4, "attn_k": 2}.get(part)
            held[f"{layer}.{LAYER[part]}.weight"] = array if heads is None else in_halves(array, heads)
        elif stem in TOP:
            held[f"{TOP[stem]}.weight"] = array
    n_drafted = len(tensors["output.weight"])
    if "d2t" in tensors:
        held["d2t"] = tensors["d2t"] - np.arange(n_drafted)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_hidden_layers": 1,
        "draft_vocab_size": n_drafted, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": sizes["attention.key_length"],
        "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0,
        "target_hidden_size": 40, "norm_before_residual": sizes["norm_before_residual"],
        "norm_before_fc": sizes["norm_before_fc"], "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "tie_word_embeddings": False, **changed,
    }  # fmt: skip
    path.mkdir()
    fields = {name: value for name, value in config.items() if value is not None}
    (path / "config.json").write_text(json.dumps(fields))
    parts = {name: stored(array) for name, array in held.items()}
    used = stored(np.ones(128, np.uint8))
    write_safetensors(path / "model.safetensors", {**parts, "t2d": replace(used, dtype="BOOL")})
    return path


@pytest.mark.parametrize("layer", ["midlayer", "layers.0"])
def test_it_opens_as_the_file_that_llama_cpp_converts_it_to(layer: str, tmp_path: Path) -> None:
    for kind in ("plain", "fancy"):
        of, _, tensors = read(kind)
        with open_path(write_head(tmp_path / kind, kind, layer)) as file:
            for name, wanted in tensors.items():
                if name != "rope_freqs.weight":
                    assert np.array_equal(file.tensors[name].numpy(), wanted), name
            stated = {"target_layers", "target_hidden_size", "norm_before_residual", "norm_before_fc"}
            for key in (f"eagle3.{key}" for key in stated):
                assert np.array_equal(file.metadata[key], of.metadata[key][1]), key
            assert file.tensors.keys() == tensors.keys() - {"rope_freqs.weight"}


def test_its_drafts_are_those_of_the_file(tmp_path: Path) -> None:
    model_path = write_model(tmp_path / "model.gguf")
    drafts = write_draft(tmp_path / "head.gguf", "plain"), write_head(tmp_path / "head", "plain", "midlayer")
    said = []
    for draft in drafts:
        with (
            graphml.load(model_path, "cpu", threads=1, kv="f32", draft_model=draft) as model,
            model.session(seed=5) as session,
        ):
            params = SamplingParams(spec_type="eagle3", temperature=0)
            tokens = [token.id for token in session.generate(PROMPT, params, 40)]
            said.append((tokens, session.stats.n_drafted, session.stats.n_accepted))
    assert said[0] == said[1]
    assert said[0][1] > 0


def test_layers_that_it_does_not_name_are_the_usual_ones(tmp_path: Path) -> None:
    assert usual_layers(32) == (2, 16, 29)
    model_path = write_model(tmp_path / "model.gguf")
    head = write_head(tmp_path / "head", "plain", "midlayer", eagle_aux_hidden_state_layer_ids=None)
    with graphml.load(model_path, "cpu", threads=1, draft_model=head) as model:
        assert model.executor.graphs.hidden_layers == usual_layers(4)


def test_a_config_that_is_nested_and_fields_that_are_not_known(tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", "plain", "layers.0")
    config = json.loads((head / "config.json").read_text())
    outer = {name: config.pop(name) for name in ("draft_vocab_size", "target_hidden_size")}
    outer |= {name: config.pop(name) for name in ("eagle_aux_hidden_state_layer_ids", "architectures")}
    nested = {**outer, "transformer_layer_config": config, "speculators_model_type": "eagle3"}
    (head / "config.json").write_text(json.dumps(nested))
    with open_path(head) as file:
        assert file.metadata.text("general.architecture") == "eagle3"
    (head / "config.json").write_text(json.dumps({**nested, "norm_output": True}))
    with pytest.raises(ArchitectureError, match="norm_output = True"):
        open_path(head)
