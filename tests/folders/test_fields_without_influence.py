"""Fields of config.json that say nothing, or the same in another way: the logits are those of the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import graphml
from tests.folder_records import LINEAR, TOKENS, YARN, about, write_folder
from tests.golden import Floats, nmse

LIMIT = 1e-8
WINDOWED = {"use_sliding_window": True, "sliding_window": 8, "layer_types": None}


def logits(path: Path, config: dict[str, Any], tensors: dict[str, list[int]]) -> Floats:
    with graphml.load(write_folder(path, config, tensors), backend="reference", kv="f32") as model:
        return np.asarray(model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True))


@pytest.mark.parametrize(
    ("name", "changed"),
    [("lfm2-adjusted", {"block_ff_dim": 100, "intermediate_size": 3000}),
     ("cohere2", {"use_parallel_embedding": True}), ("deepseek_v2", {"n_group": 3, "topk_group": 5}),
     ("qwen2", {**WINDOWED, "max_window_layers": 2}), ("qwen3", {**WINDOWED, "max_window_layers": 3})],
)  # fmt: skip
def test_they_change_nothing(name: str, changed: dict[str, Any], tmp_path: Path) -> None:
    config, tensors, wanted = about(name)
    assert nmse(logits(tmp_path / name, config | changed, tensors), wanted) <= LIMIT


@pytest.mark.parametrize(
    ("rope", "unread"),
    [(YARN, {"finetuned": True}), (YARN, {"long_factor": [2.0]}),
     (LINEAR, {"attention_factor": 2.0, "beta_fast": 7.0, "truncate": False, "low_freq_factor": 3.0})],
)  # fmt: skip
def test_a_rope_has_parameters_of_another_type(
    rope: dict[str, Any], unread: dict[str, Any], tmp_path: Path
) -> None:
    config, tensors, _ = about("qwen2")
    plain = logits(tmp_path / "plain", {**config, "rope_parameters": rope}, tensors)
    assert nmse(logits(tmp_path / "more", {**config, "rope_parameters": rope | unread}, tensors), plain) == 0


def test_a_null_of_heads_of_keys_is_as_many_as_of_queries(tmp_path: Path) -> None:
    config, tensors, _ = about("llama-linear")
    heads = {"num_attention_heads": config["num_key_value_heads"], "hidden_size": 32}
    for name in [name for name in tensors if "self_attn" in name]:
        tensors[name] = [32, 16] if "o_proj" in name else [16, 32]
    config |= {**heads, "head_dim": 8}
    stated = logits(tmp_path / "stated", config, tensors)
    assert nmse(logits(tmp_path / "null", {**config, "num_key_value_heads": None}, tensors), stated) == 0


def test_yarn_of_a_factor_below_1_multiplies_heads_by_1(tmp_path: Path) -> None:
    config, tensors, _ = about("qwen2")
    yarn = {**YARN, "factor": 0.5}
    ours = logits(tmp_path / "own", {**config, "rope_parameters": yarn}, tensors)
    stated = {**config, "rope_parameters": {**yarn, "attention_factor": 1.0}}
    assert nmse(logits(tmp_path / "stated", stated, tensors), ours) < LIMIT


def test_a_context_that_an_index_ends_says_so(tmp_path: Path) -> None:
    config, tensors, _ = about("glm5_next")
    inner = {**config["text_config"], "index_topk": 16, "max_position_embeddings": 256}
    path = write_folder(tmp_path / "glm", {**config, "text_config": inner}, tensors)
    with graphml.load(path, backend="reference") as model:
        wanted = "wanted 1 to 16, as much of the model's context of 256 as this architecture computes; got 17"
        with pytest.raises(graphml.UsageError, match=wanted):
            model.session(n_ctx=17)


def test_an_unknown_pooling_of_ids_is_refused(tmp_path: Path) -> None:
    config, tensors, _ = about("llama")
    path, wanted = (
        write_folder(tmp_path / "llama", config, tensors),
        "pooling: wanted .* or none; got 'lasttoken'",
    )
    with graphml.load(path, backend="reference") as model, pytest.raises(graphml.UsageError, match=wanted):
        model.embed_ids([[3, 4]], "lasttoken")


def test_ropes_by_kinds_of_layers_are_objects(tmp_path: Path) -> None:
    config, tensors, _ = about("gemma3")
    rope = {"full_attention": 3.0, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
    with pytest.raises(graphml.ArchitectureError, match="rope_parameters: wanted objects; got"):
        logits(tmp_path / "gemma3", {**config, "rope_parameters": rope}, tensors)
