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


OF_WRAPPERS: Mapping[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    "multi_modality": ("llama", "language_model.", {"model_type": "multi_modality"},
                       ("gen_head.vision_head.bias",)),
    "deepseek_vl_v2": ("deepseek_v2", "language.", {"model_type": "deepseek_vl_v2"},
                       ("vision.norm.weight",)),
    "ovis": ("qwen2", "llm.", {"model_type": "ovis"}, ("vte.weight", "visual_tokenizer.head.0.weight")),
    "minicpmv 2.6": ("qwen2", "llm.", {"model_type": "minicpmv", "version": 2.6},
                     ("vpm.head.bias", "resampler.query")),
    "minicpmo 4.5": ("qwen3", "llm.", {"model_type": "minicpmo", "version": "4.5"},
                     ("apm.conv1.bias", "tts.bias")),
    "minicpmv 2.5": ("llama", "llm.", {"model_type": "minicpmv", "version": "2.5"},
                     ("resampler.query",)),
    "dots_ocr": ("qwen2", "", {"model_type": "dots_ocr"}, ("vision_tower.merger.ln_q.bias",)),
    "llava_llama": ("llama", "", {"model_type": "llava_llama"}, ("model.mm_projector.0.bias",)),
    "llava_qwen": ("qwen2", "", {"model_type": "llava_qwen"}, ("model.image_newline",)),
    "llava_mistral": ("mistral", "", {"model_type": "llava_mistral"}, ("model.image_newline",)),
    "phi3_v": ("phi3", "", {"model_type": "phi3_v"}, ("model.vision_embed_tokens.glb_GN",)),
    "glm of the edge": ("glm", "", {"model_type": "glm"}, ("model.vision.boi",)),
}  # fmt: skip
"""Class -> record of its text, what its names begin with, its own fields, tensors of other parts."""
WITHIN = {"multi_modality": "language_config", "deepseek_vl_v2": "language_config", "ovis": "llm_config"}


@pytest.mark.parametrize("name", OF_WRAPPERS)
def test_larger_models_of_their_authors(name: str, tmp_path: Path) -> None:
    record, begins, own, parts = OF_WRAPPERS[name]
    fields = fields_of(record, {})
    config = {**own, WITHIN[name]: fields} if name in WITHIN else {**fields, **own}
    tensors = {begins + tensor: array for tensor, array in weights_of(record).items()}
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    others = {tensor: np.ones(4, np.float32) for tensor in parts}
    save_file(tensors | others, path / "model.safetensors", metadata={"format": "pt"})
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about(record)[2]) <= LIMIT


TEXT = r"lm_head|model\.(language_model\.)?(layers|norm|embed_tokens)"


@pytest.mark.parametrize("window", [None, 128])
def test_deepseek_ocr(window: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fields = fields_of(
        "deepseek_ocr2", {"model_type": None, "mlp_layer_types": None, "rope_parameters": None}
    )
    inner = {
        **fields,
        "use_mla": False,
        "kv_lora_rank": None,
        "qk_nope_head_dim": 0,
        "first_k_dense_replace": 1,
    }
    config = {
        "model_type": "deepseek_vl_v2",
        "language_config": inner,
        "tile_tag": "2D",
        "sliding_window": window,
    }
    text = {name: of for name, of in weights_of("deepseek_ocr2").items() if re.match(TEXT, name)}
    tensors = renamed(text, (r"language_model\.", ""))
    tensors |= {
        "model.sam_model.neck.bias": np.ones(4, np.float32),
        "model.view_seperator": np.ones(4, np.float32),
    }
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about("deepseek_ocr2")[2]) <= LIMIT
    assert ("the last 128 of their own" in caplog.text) == (window is not None)


FORWARD = (("gate", "w1"), ("down", "w2"), ("up", "w3"))


def test_internlm2(tmp_path: Path) -> None:
    tensors = weights_of("llama-linear")
    config = fields_of("llama-linear", {"model_type": "internlm2", "bias": False})
    heads, of_keys = config["num_attention_heads"], config["num_key_value_heads"]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        q, k, v = (tensors.pop(f"{at}.self_attn.{part}_proj.weight") for part in "qkv")
        width = len(q) // heads
        grouped = [
            part.reshape(of_keys, count, width, -1) for part, count in ((q, heads // of_keys), (k, 1), (v, 1))
        ]
        tensors[f"{at}.attention.wqkv.weight"] = np.concatenate(grouped, axis=1).reshape(-1, q.shape[1])
    tensors = renamed(
        tensors, ("embed_tokens", "tok_embeddings"), (r"^lm_head", "output"),
        ("self_attn.o_proj", "attention.wo"),
        ("post_attention_layernorm", "ffn_norm"), ("input_layernorm", "attention_norm"),
        *((f"mlp.{theirs}_proj", f"feed_forward.{own}") for theirs, own in FORWARD),
    )  # fmt: skip
    path = written(tmp_path / "model", "llama-linear", config, tensors)
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about("llama-linear")[2]) <= LIMIT


def test_minicpm(tmp_path: Path) -> None:
    config = fields_of("granite", {"model_type": "minicpm"})
    depth = config["residual_multiplier"] * config["num_hidden_layers"] ** 0.5
    scales = {
        "scale_emb": config.pop("embedding_multiplier"),
        "scale_depth": depth,
        "dim_model_base": config["hidden_size"] / config.pop("logits_scaling"),
        "mup_denominator": 32,
    }
    width = config["hidden_size"] // config["num_attention_heads"]
    factor = config.pop("attention_multiplier") * width**0.5  # of scores, beside that of MiniCPM
    del config["residual_multiplier"]
    tensors = weights_of("granite")
    tensors |= {name: of * np.float32(factor) for name, of in tensors.items() if "q_proj" in name}
    path = written(tmp_path / "model", "granite", config | scales, tensors)
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about("granite")[2]) <= LIMIT


@pytest.mark.parametrize("kind", ["bailing_moe", "bailing_moe_v2"])
def test_ling_2(kind: str, tmp_path: Path) -> None:
    config = fields_of("sarvam_moe", {
        "model_type": kind, "architectures": ["BailingMoeV2ForCausalLM"], "n_routed_experts": None,
        "num_experts": 8, "n_shared_experts": None, "num_shared_experts": 1, "score_function": "sigmoid",
        "use_rmsnorm": True, "moe_router_enable_expert_bias": True, "max_window_layers": 2,
        "moe_shared_expert_intermediate_size": 16, "router_dtype": "fp32", "embedding_dropout": 0.0,
        "output_dropout": 0.0, "use_qkv_bias": True,
        "rope_parameters": None, "rope_theta": 8e6, "partial_rotary_factor": 1.0, "rope_scaling": None,
    })  # fmt: skip
    path = written(tmp_path / "model", "sarvam_moe", config, weights_of("sarvam_moe"))
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about("sarvam_moe")[2]) <= LIMIT


def of_deepseek_ocr() -> tuple[dict[str, Any], Arrays]:
    """Fields and tensors of a record's language model, of experts without a factor."""
    left_out = ("model_type", "mlp_layer_types", "routed_scaling_factor", "rope_parameters", "topk_method")
    fields = fields_of("deepseek_ocr2", dict.fromkeys(left_out))
    text = {name: of for name, of in weights_of("deepseek_ocr2").items() if re.match(TEXT, name)}
    for name, array in text.items():  # the record's factor, in the matrix behind it
        if re.search(r"\.experts\.(\d+\.)?down_proj", name):
            text[name] = array * np.float32(1.5)
    return {**fields, "first_k_dense_replace": 1}, text


def test_deepseek_moe(tmp_path: Path) -> None:
    fields, tensors = of_deepseek_ocr()
    fields |= {
        "model_type": "deepseek",
        "scoring_func": "softmax",
        "moe_layer_freq": 1,
        "norm_topk_prob": False,
    }
    path = written(tmp_path / "model", "llama", fields, tensors)
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about("deepseek_ocr2")[2]) <= LIMIT


def test_ling_1(tmp_path: Path) -> None:
    fields, tensors = of_deepseek_ocr()
    fields |= {"model_type": "bailing_moe", "norm_topk_prob": False, "norm_head": False,
               "num_experts": fields.pop("n_routed_experts"), "max_window_layers": 2,
               "num_shared_experts": fields.pop("n_shared_experts"), "norm_softmax": False}  # fmt: skip
    for layer in range(2):
        at = f"model.layers.{layer}"
        parts = [tensors.pop(f"{at}.self_attn.{part}_proj.weight") for part in "qkv"]
        tensors[f"{at}.attention.query_key_value.weight"] = np.concatenate(parts)
    tensors = renamed(tensors, ("self_attn.o_proj", "attention.dense"), ("embed_tokens", "word_embeddings"))
    path = written(tmp_path / "model", "llama", fields, tensors)
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about("deepseek_ocr2")[2]) <= LIMIT


BLOCK = {"attention": {"n_heads_in_group": 2, "no_op": False, "replace_with_linear": False},
         "ffn": {"ffn_mult": 2.6, "no_op": False, "replace_with_linear": False}}  # fmt: skip


def of_blocks(path: Path, blocks: list[Any], change: Callable[[Arrays], Arrays] = dict) -> Path:
    """A Llama-Nemotron of a record's tensors."""
    left_out = {"model_type": "nemotron-nas", "intermediate_size": None, "num_key_value_heads": None}
    fields = {**fields_of("llama-linear", left_out), "block_configs": blocks}
    return written(path, "llama-linear", fields, change(weights_of("llama-linear")))


def test_llama_nemotron(tmp_path: Path) -> None:
    def without_the_last(tensors: Arrays) -> Arrays:
        return {name: array for name, array in tensors.items() if ".layers.1." not in name}

    def with_a_matrix(tensors: Arrays) -> Arrays:
        of_attention = r"layers\.1\.self_attn\.[qkv]_proj"
        kept = {name: array for name, array in tensors.items() if not re.search(of_attention, name)}
        return renamed(kept, (r"layers\.1\.self_attn\.o_proj", "layers.1.self_attn.linear_attn"))

    ids = [TOKENS.tolist()]
    whole = of_blocks(tmp_path / "whole", [BLOCK] * 2)
    assert nmse(logits(whole, "reference", ids), about("llama-linear")[2]) <= LIMIT
    none = {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"no_op": True, "ffn_mult": None}}
    got = logits(of_blocks(tmp_path / "pruned", [BLOCK, none], without_the_last), "reference", ids)
    fields = fields_of("llama-linear", {"num_hidden_layers": 1})
    shorter = written(tmp_path / "one", "llama-linear", fields, without_the_last(weights_of("llama-linear")))
    assert nmse(got, logits(shorter, "reference", ids)) <= LIMIT
    linear = {**BLOCK, "attention": {"n_heads_in_group": None, "replace_with_linear": True}}
    with open_path(of_blocks(tmp_path / "linear", [BLOCK, linear], with_a_matrix)) as file:
        assert file.metadata["deci.attention.head_count"] == [4, 4]
        assert file.metadata["deci.attention.head_count_kv"] == [2, 0]
        assert np.isfinite(logits(tmp_path / "linear", "reference", ids)).all()
    windowed = {**BLOCK, "attention": {**BLOCK["attention"], "window_length": 8}}
    with pytest.raises(ArchitectureError, match="layer 1: attention: wanted an object without"):
        open_path(of_blocks(tmp_path / "windowed", [BLOCK, windowed]))
