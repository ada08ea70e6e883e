"""Checkpoints as their authors have them: older fields and names of tensors, which the class maps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from graphml.errors import ArchitectureError, GraphmlError, WeightsError
from graphml.loading.open_file import open_path
from tests.folder_records import HEAVY, LLAMA3, SPARSE, TOKENS, about, values
from tests.folders.test_folders_of_transformers import LIMIT, logits
from tests.golden import nmse

Arrays = dict[str, np.ndarray[Any, np.dtype[Any]]]


def fields_of(name: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record's language model, some changed; None leaves one out."""
    config = about(name)[0]
    fields = config.get("text_config", config) | changed
    return {field: value for field, value in fields.items() if value is not None}


def weights_of(name: str) -> Arrays:
    return {tensor: values(tensor, tuple(shape)) for tensor, shape in about(name)[1].items()}


def written(path: Path, name: str, fields: Mapping[str, Any], tensors: Arrays) -> Path:
    """A folder with these fields, of the language model alone where the record has one in a larger model."""
    config = about(name)[0]
    whole = {**config, "text_config": dict(fields)} if "text_config" in config else dict(fields)
    path.mkdir()
    (path / "config.json").write_text(json.dumps(whole))
    arrays = {tensor: np.ascontiguousarray(array) for tensor, array in tensors.items()}
    save_file(arrays, path / "model.safetensors", metadata={"format": "pt"})
    return path


def renamed(tensors: Arrays, *pairs: tuple[str, str]) -> Arrays:
    def name(tensor: str) -> str:
        for pattern, other in pairs:
            tensor = re.sub(pattern, other, tensor)
        return tensor

    return {name(tensor): array for tensor, array in tensors.items()}


def stacked(tensors: Arrays) -> Arrays:
    """Experts in one tensor for each layer, gates before the others, as transformers holds them."""
    whole = {name: array for name, array in tensors.items() if ".experts." not in name}
    for layer in {int(re.findall(r"\d+", name)[0]) for name in tensors if ".experts." in name}:
        at = f"model.layers.{layer}.mlp.experts"
        parts = [
            np.stack([tensors[f"{at}.{i}.{part}_proj.weight"] for i in range(8)])
            for part in ("gate", "up", "down")
        ]
        whole[f"{at}.gate_up_proj"], whole[f"{at}.down_proj"] = np.concatenate(parts[:2], axis=1), parts[2]
    return whole


OWN_NAMES = (
    ("^model\\.", ""),
    ("^embed_tokens", "embed"),
    ("hc_head\\.hc_", "hc_head_"),
    ("attn\\.norm", "attn.kv_norm"),
)
MODULES = (
    (r"^head\.", "lm_head."), (r"\.indexer\.compressor\.", ".compressor.indexer."),
    (r"\.attn\.indexer\.weights_proj", ".attn.compressor.indexer.scorer.weights_proj"),
    (r"\.attn\.indexer\.wq_b", ".attn.compressor.indexer.q_b_proj"),
    (r"\.attn\.", ".self_attn."), (r"\.ffn\.", ".mlp."), (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."), (r"\.hc_(attn|ffn)_", r".\1_hc."),
    (r"\.attn_sink", ".sinks"), (r"\.norm\.weight", ".kv_norm.weight"), (r"^model\.kv_norm", "model.norm"),
    (r"\.ape", ".position_bias"), (r"\.wq_a", ".q_a_proj"), (r"\.wq_b", ".q_b_proj"), (r"\.wkv", ".kv_proj"),
    (r"\.wgate", ".gate_proj"), (r"\.wo_a", ".o_a_proj"), (r"\.wo_b", ".o_b_proj"),
    (r"\.q_norm", ".q_a_norm"), (r"\.gate\.bias", ".gate.e_score_correction_bias"),
    (r"\.w1\.", ".gate_proj."), (r"\.w2\.", ".down_proj."), (r"\.w3\.", ".up_proj."),
)  # fmt: skip


@pytest.mark.parametrize("names", ["author", "modules"])
def test_deepseek_v4(names: str, tmp_path: Path) -> None:
    older = {"layer_types": None, "compress_ratios": [0, 4, 128], "mlp_layer_types": None,
             "num_hash_layers": 1, "compress_rates": None, "compress_rate_hca": 6, "rope_parameters": None,
             "partial_rotary_factor": None, "qk_rope_head_dim": 8}  # fmt: skip
    tensors = weights_of("deepseek_v4")
    tensors = renamed(tensors, *OWN_NAMES) if names == "author" else stacked(renamed(tensors, *MODULES))
    path = written(tmp_path / "model", "deepseek_v4", fields_of("deepseek_v4", older), tensors)
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about("deepseek_v4")[2]) <= LIMIT


def test_dots3_note(tmp_path: Path) -> None:
    config = about("dots3_note")[0]
    local = next(iter(config["per_layer_config"].values()))
    older = {"per_layer_config": None, "use_dsa": True, "sliding_window": None, "sliding_window_size": 8,
             "layer_types": ["full_attention", "sliding_attention"] * 2, "rope_parameters": None,
             "swa_rope_theta": 5e4, "rope_theta": 8e7, "swa_qk_rope_head_dim": 4,
             **{f"swa_{name}": value for name, value in local.items()}}  # fmt: skip
    path = written(tmp_path / "model", "dots3_note", fields_of("dots3_note", older), weights_of("dots3_note"))
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about("dots3_note")[2]) <= LIMIT


def test_step3p5(tmp_path: Path) -> None:
    scaling = {field: value for field, value in LLAMA3.items() if field != "rope_theta"}
    older = {"per_layer_config": None, "rope_parameters": None, "num_sliding_attention_heads": None,
             "attention_other_setting": {"num_attention_heads": 2}, "num_key_value_heads": None,
             "num_attention_groups": 2, "n_routed_experts": None, "moe_num_experts": 6,
             "num_experts_per_tok": None, "moe_top_k": 2, "mlp_layer_types": None, "moe_layers_enum": "1,2",
             "num_nextn_predict_layers": 1, "rope_theta": [1e4, 500.0, 500.0, 1e4], "rope_scaling": scaling,
             "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5], "swiglu_limits": [None, 0.5, 0.0, 0.0],
             "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
             "query_pre_attn_scalar": None}  # fmt: skip
    path = written(tmp_path / "model", "step3p7", fields_of("step3p7", older), weights_of("step3p7"))
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about("step3p7")[2]) <= LIMIT


def test_a_table_of_ngrams_may_be_whole(tmp_path: Path) -> None:
    tensors, at = weights_of("qwen4_exp"), "model.layers.0.ple.ple_embedding.ngram_embedding"
    shards = [tensors.pop(f"{at}.shard_{i}.weight") for i in range(3)]
    path = written(tmp_path / "model", "qwen4_exp", fields_of("qwen4_exp", {}), {
        **tensors, f"{at}.weight": np.concatenate(shards)})  # fmt: skip
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about("qwen4_exp")[2]) <= LIMIT


PLE = "model.layers.0.ple.ple_embedding"


def without_a_part(tensors: Arrays) -> None:
    del tensors[f"{PLE}.ngram_embedding.shard_1.weight"]


def with_a_wide_part(tensors: Arrays) -> None:
    tensors[f"{PLE}.ngram_embedding.shard_1.weight"] = np.zeros((43, 9), np.float32)


def with_factors_that_are_floats(tensors: Arrays) -> None:
    tensors[f"{PLE}.layer_multipliers"] = np.ones(3, np.float32)


def without_factors(tensors: Arrays) -> None:
    del tensors[f"{PLE}.layer_multipliers"]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (without_a_part, "per_layer_token_embd.weight: wanted parts 0 to 1; got .0, 2"),
        (with_a_wide_part, "shard_1.weight': wanted f32 rows .*; got f32 .43, 9"),
        (with_factors_that_are_floats, "ple.layer_multipliers: wanted one list of whole numbers; got f32"),
        (without_factors, "ple.layer_multipliers': wanted 3 integers, but the file has no such key"),
    ],
)
def test_tables_and_lists_of_ngrams_are_checked(
    damage: Callable[[Arrays], None], text: str, tmp_path: Path
) -> None:
    tensors = weights_of("qwen4_exp")
    damage(tensors)
    path = written(tmp_path / "model", "qwen4_exp", fields_of("qwen4_exp", {}), tensors)
    with pytest.raises(GraphmlError, match=text):
        logits(path, "reference", [[1]])


def test_numbers_of_experts_are_those_of_experts(tmp_path: Path) -> None:
    tensors = weights_of("deepseek_v4")
    tensors["model.layers.0.ffn.gate.tid2eid"][3, 1] = 8
    path = written(tmp_path / "model", "deepseek_v4", fields_of("deepseek_v4", {}), tensors)
    with pytest.raises(ArchitectureError, match=r"tid2eid.*wanted numbers of the 8 experts; got 0 to 8"):
        logits(path, "reference", [[1]])


ROPE = {"rope_type": "default", "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("step3p7", "layer_types", ["minimax_m3_sparse"] * 3), ("step3p7", "swiglu_limits", [-1.0, 0.0, 0.0]),
        ("step3p7", "use_bidirectional_attention", True), ("step3p7", "swiglu_limits_shared", [1e-7, 0, 0]),
        ("step3p7", "sliding_window", None),
        ("step3p7", "per_layer_config", {"1": {"num_attention_heads": 2}}),
        ("step3p7", "per_layer_config", {"1": {"head_dim": 8}, "2": {"head_dim": 8}}),
        ("step3p7", "rope_parameters",
         {"full_attention": ROPE, "sliding_attention": {**ROPE, "factor": 2.0}}),
        ("deepseek_ocr2", "topk_method", "group_limited_greedy"), ("deepseek_ocr2", "hidden_act", "gelu"),
        ("deepseek_v4", "compress_rates", {SPARSE: 4, HEAVY: 1}),
        ("deepseek_v4", "layer_types", ["full"] * 3),
    ],
)  # fmt: skip
def test_what_no_layer_computes_is_refused(name: str, field: str, value: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "model", name, fields_of(name, {field: value}), weights_of(name))
    wanted = {"rope_parameters": "rope of"}.get(field, field)
    with pytest.raises((ArchitectureError, WeightsError), match=rf"config\.json: .*{wanted}"):
        open_path(path)
