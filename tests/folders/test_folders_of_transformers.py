"""Folders of every family against what transformers computes, and what is refused of their config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import graphml
from graphml.errors import ArchitectureError, UsageError, WeightsError
from graphml.loading import discovery
from graphml.loading.open_file import open_path
from tests.folder_records import (
    FOLDER,
    LLAMA3,
    LONG,
    OF_AUTHORS,
    RECORDS,
    TOKENS,
    YARN,
    about,
    in_steps,
    values,
    write_folder,
)
from tests.golden import Floats, nmse

LIMIT = 1e-8


def folder(path: Path, name: str, **changed: Any) -> Path:
    """The folder of a record, with other fields; None leaves one out."""
    config, tensors, _ = about(name)
    fields = {key: value for key, value in (config | changed).items() if value is not None}
    return write_folder(path / name, fields, tensors)


def logits(path: Path, backend: str, parts: list[list[int]]) -> Floats:
    with graphml.load(path, backend=backend, kv="f32", quant="fp32") as model:
        session = model.session(n_ctx=48)
        return np.concatenate([np.atleast_2d(session.eval(part, all_logits=True)) for part in parts])


def test_every_family_has_a_record() -> None:
    families = discovery.families()
    configs = [about(name)[0] for name in RECORDS]
    recorded = {one.get("text_config", one)["model_type"] for one in configs}
    assert sorted(RECORDS) == sorted(path.stem for path in FOLDER.glob("*.npz"))
    assert recorded <= set(families)
    drafts = discovery.drafters()  # test_shared_cells_heads.py has records of those
    recorded |= OF_AUTHORS
    for family in (of for of in families.values() if of.logits and of.architecture not in drafts):
        assert recorded & set(family.model_types), family.model_types
        assert discovery.architecture(family.architecture)


@pytest.mark.parametrize("name", RECORDS)
def test_it_is_what_transformers_computes(name: str, tmp_path: Path) -> None:
    ids = TOKENS.tolist()
    path = folder(tmp_path, name)
    assert nmse(logits(path, "reference", [ids]), about(name)[2]) <= LIMIT
    assert nmse(logits(path, "reference", [ids[:13], ids[13:14], ids[14:]]), in_steps(name)) <= LIMIT


# Records whose list of windows the class itself made.
BY_CLASS = [name for name in RECORDS if name.endswith("-windows") and "layer_types" not in RECORDS[name][1]]


@pytest.mark.parametrize("name", BY_CLASS)
def test_windows_follow_the_class_where_no_list_says_them(name: str, tmp_path: Path) -> None:
    path = folder(tmp_path, name, layer_types=None)
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), about(name)[2]) <= LIMIT


def test_a_field_of_null_is_the_class_s_own_choice(tmp_path: Path) -> None:
    """Falcon 40B: no number of norms, which its class takes for two."""
    config, tensors, wanted = about("falcon-new")
    path = write_folder(tmp_path / "falcon", {**config, "num_ln_in_parallel_attn": None}, tensors)
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), wanted) <= LIMIT


@pytest.mark.parametrize("name", ["gemma3", "falcon", "deepseek_v3"])
def test_it_is_on_the_cpu(name: str, tmp_path: Path) -> None:
    assert nmse(logits(folder(tmp_path, name), "cpu", [TOKENS.tolist()]), about(name)[2]) <= LIMIT


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [("llama", "is_causal", False), ("phi", "qk_layernorm", True),
     ("qwen2_moe-windows", "use_sliding_window", False), ("falcon", "alibi", True),
     ("llama", "hidden_act", "gelu"), ("mamba2", "time_step_limit", [0.0, 1.0]),
     ("llama", "is_encoder_decoder", True), ("qwen3_moe", "decoder_sparse_step", 2),
     ("smollm3", "no_rope_layers", [1, 1, 1, 1]), ("llama", "num_attention_heads", "4"),
     ("llama", "rope_parameters", {"rope_type": "dynamical", "factor": 2.0, "rope_theta": 1e4}),
     ("glm5_next", "index_kpool_always_select_tail", False), ("glm5_next", "linear_num_heads", 2),
     ("glm5_next", "linear_lower_bound", 1.0), ("glm5_next", "qk_rope_head_dim", 4),
     ("phimoe", "num_experts_per_tok", 3), ("muse_glimmer", "layer_rope_theta", [1e4, 1e4, 1e4, 0, 0]),
     ("muse_glimmer", "layer_types", ["full_attention"] * 5), ("muse_glimmer", "post_norm_eps", 1e-5),
     ("minimax_m3_vl", "index_n_heads", 1), ("minimax_m3_vl", "swiglu_limit", 5.0),
     ("minimax_m3_vl", "swiglu_alpha", 1.0), ("phimoe", "router_jitter_noise", -0.1),
     ("phimoe", "rope_parameters", {**LONG, "short_mscale": 1.0, "long_mscale": 1.2}),
     ("phimoe", "rope_parameters", {**YARN, "short_mscale": 1.2, "long_mscale": 1.2}),
     ("llama", "rope_parameters", {"rope_type": "default", "rope_theta": 1e4, "a_new_one": 2}),
     ("deepseek_v3", "rope_parameters", {"rope_type": "yarn", "factor": 2.0, "truncate": False,
                                         "mscale": 1.0, "mscale_all_dim": 1.0}),
     ("deepseek_v2-groups", "n_group", 5), ("qwen3_next", "rms_norm_eps", 1e-5),
     ("gpt_oss", "swiglu_limit", 8.0), ("gpt_bigcode", "multi_query", False), ("jamba", "sliding_window", 8),
     ("exaone_moe", "first_k_dense_replace", 2), ("afmoe", "mup_enabled", False),
     ("mpt", "attn_config", {"alibi": False}), ("bloom", "apply_residual_connection_post_layernorm", True),
     ("hunyuan_v1_dense", "rope_parameters", {"rope_type": "yarn", "alpha": 50.0}),
     ("gemma4", "use_bidirectional_attention", "all"), ("granitemoehybrid", "time_step_limit", [0.0, 1.0]),
     ("gemma3n", "activation_sparsity_pattern", [0.0, 0.95, 0.5, 0.0]),
     ("gemma3n", "vocab_size_per_layer_input", 70),
     ("lfm2", "conv_bias", True), ("ernie4_5_moe", "moe_layer_interval", 2), ("lfm2", "tie_embedding", False),
     ("falcon_h1", "rope_parameters", LLAMA3), ("gemma4", "rope_parameters", LLAMA3),
     ("exaone", "layer_norm_epsilon", 1e-3), ("glm4_moe_lite", "mlp_layer_types", ["sparse", "dense"]),
     ("glm4_moe", "topk_group", 0), ("minicpm3", "scale_depth", 2.0), ("youtu", "pad_token_id", 64),
     ("granite_swa", "layer_rope_theta", [0, 5e3, 1e4, 5e3]), ("granite", "residual_multiplier", 0.0),
     ("dbrx", "attn_config", {"kv_n_heads": 2, "rope_theta": 5e5}), ("iquestcoder", "clip_qkv", 8.0),
     ("dbrx", "ffn_config", {"moe_normalize_expert_weights": None}),
     ("cohere2_moe", "shared_expert_combination_strategy", "sum"), ("apertus", "rope_parameters", None),
     ("gemma2", "use_bidirectional_attention", True), ("chameleon", "vocabulary_map", None),
     ("chameleon", "vocabulary_map", {"IMGIMGA": 4}), ("bamba", "partial_rotary_factor", 1.0),
     ("mimo_v2_flash", "norm_topk_prob", False), ("mimo_v2_flash", "attention_bias", True),
     ("mimo_v2_flash", "rope_parameters", YARN), ("laguna", "moe_router_logit_softcapping", 5.0),
     ("laguna", "rope_parameters", {"full_attention": YARN, "sliding_attention": YARN}),
     ("hy_v4", "indexer_types", ["shared", "full", "full"]), ("hy_v4", "swiglu_limit", 0.0),
     ("kimi_linear", "moe_renormalize", False), ("kimi_linear", "linear_num_heads", 2),
     ("nemotron_h", "mlp_hidden_act", "silu"), ("nemotron_h", "mamba_hidden_act", "gelu"),
     ("nemotron_h", "layers_block_type", ["mlp", "conv"]), ("nemotron_h", "layer_types", ["mlp"]),
     ("nemotron_h-experts", "topk_group", 0), ("nemotron_h-experts", "routed_scaling_factor", 0.0),
     ("bitnet", "hidden_act", "gelu"), ("gemma2", "final_logit_softcapping", 1e-300),
     ("granite", "logits_scaling", 1e-39), ("llama", "rope_parameters", {**LLAMA3, "factor": -1e-300}),
     ("mellum", "rope_parameters", {
         kind: {"rope_theta": 1e4, "partial_rotary_factor": part}
         for kind, part in (("full_attention", 1.0), ("sliding_attention", 0.5))}),
     ("sarvam_moe", "use_qk_norm", False), ("sarvam_moe", "num_experts_per_tok", 6),
     ("sarvam_mla", "rope_interleave", False),
     ("hrm_text", "L_cycles", 0), ("hrm_text", "embedding_scale", 0.0),
     ("hrm_text", "H_cycles", 10**9), ("nemotron_h", "layers_block_type", [["mlp"]]),
     ("deepseek_v4", "mlp_layer_types", ["moe", "hash_moe", "moe"]), ("deepseek_v4", "swiglu_limit", 0.0),
     ("deepseek_v4", "scoring_func", "relu"), ("deepseek_v4", "sliding_window", 0),
     ("gemma4_unified", "use_bidirectional_attention", "all"), ("qwen4_exp", "output_gate_type", "silu"),
     ("qwen4_exp", "output_gate_type", None), ("qwen4_exp", "attention_bias", True),
     ("qwen4_exp", "ple_layer_ids", [1, 2]), ("qwen4_exp", "indexer_kv_heads", 2),
     ("qwen4_exp", "eos_token_id", None), ("dots3_note", "rope_parameters", YARN),
     ("dots3_note", "per_layer_config", {"1": {"num_attention_heads": 2}}), ("dots3_note", "use_dsa", False),
     ("dots3_note", "layer_types", ["full_attention"] * 4)],
)  # fmt: skip
def test_fields_that_change_the_mathematics_are_refused(
    name: str, field: str, value: object, tmp_path: Path
) -> None:
    text = about(name)[0].get("text_config", {})
    inner = {"text_config": {**text, field: value}} if text else {field: value}
    path = folder(tmp_path, name, **inner)
    names = {"rope_parameters": "rope", "first_k_dense_replace": "mlp_layer_types"}
    wanted = names.get(field, field)
    with pytest.raises(ArchitectureError, match=rf"config\.json: .*{wanted}"):
        open_path(path)


@pytest.mark.parametrize("name", ["hunyuan_vl", "paddleocr_vl", "qwen2_vl", "qwen2_5_vl"])
def test_a_model_that_sees_says_its_fields_in_the_older_style(name: str, tmp_path: Path) -> None:
    whole, tensors, wanted = about(name)
    inner = dict(whole["text_config"])
    rope = inner.pop("rope_parameters")
    if "alpha" in rope:
        rope = {"type": "xdrope", "alpha": rope["alpha"], "xdrope_section": rope["mrope_section"]}
    else:
        rope = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    config = {**inner, **whole, "rope_scaling": rope, "rope_theta": 10000.0, "vision_config": {"depth": 1}}
    del config["text_config"]
    path = write_folder(tmp_path / name, config, {**tensors, "visual.merger.mlp.0.weight": [4, 4]})
    assert config["model_type"] == name
    assert nmse(logits(path, "reference", [TOKENS.tolist()]), wanted) <= LIMIT


def test_kimi_linear_says_its_layers_in_either_way(tmp_path: Path) -> None:
    sizes = {"head_dim": 8, "num_heads": 4, "short_conv_kernel_size": 4}
    changed: dict[str, Any] = {"layer_types": None, "linear_head_dim": None, "moe_renormalize": None}
    changed |= {"norm_topk_prob": True, "num_expert_group": None, "n_group": 4}
    lists = {"full_attn_layers": [2], "kda_layers": [1, 3]}
    path = folder(tmp_path / "listed", "kimi_linear", **changed, linear_attn_config={**sizes, **lists})
    ours = logits(path, "reference", [TOKENS.tolist()])
    assert nmse(ours, about("kimi_linear")[2]) <= LIMIT
    path = folder(tmp_path / "twice", "kimi_linear", **changed,
                  linear_attn_config={**sizes, **lists, "kda_layers": [1, 2, 3]})  # fmt: skip
    with pytest.raises(ArchitectureError, match="each layer from 1 to 3"):
        open_path(path)


def test_nemotron_h_says_its_layers_and_sizes_in_either_way(tmp_path: Path) -> None:
    older = {"layers_block_type": None, "hybrid_override_pattern": "ME*E", "num_hidden_layers": 99}
    older |= {"n_groups": 5, "mamba_n_groups": 2, "conv_kernel": None, "mamba_d_conv": 4, "mamba_dt_min": 0.3}
    ours = logits(folder(tmp_path, "nemotron_h-experts", **older), "reference", [TOKENS.tolist()])
    assert nmse(ours, about("nemotron_h-experts")[2]) <= LIMIT
    unclamped = folder(tmp_path / "unclamped", "nemotron_h-experts", time_step_min=0.0)
    assert nmse(logits(unclamped, "reference", [TOKENS.tolist()]), about("nemotron_h-experts")[2]) > 1e-4


def test_sarvam_has_an_older_name_of_yarn_and_a_width_of_heads_that_says_nothing(tmp_path: Path) -> None:
    rope = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "rope_type": None, "type": "deepseek_yarn"}
    older = {"rope_parameters": None, "rope_scaling": rope, "head_dim": 20, "q_head_dim": 12}
    ours = logits(folder(tmp_path, "sarvam_mla-yarn", **older), "reference", [TOKENS.tolist()])
    assert nmse(ours, about("sarvam_mla-yarn")[2]) <= LIMIT


def test_hrm_text_says_the_layers_of_a_stack_in_either_way(tmp_path: Path) -> None:
    older = {"num_layers_per_stack": None, "num_hidden_layers": 2, "embedding_scale": None}
    ours = logits(
        folder(tmp_path, "hrm_text", **older, initializer_range=1 / 3), "reference", [TOKENS.tolist()]
    )
    assert nmse(ours, about("hrm_text")[2]) <= LIMIT
    with pytest.raises(ArchitectureError, match="embedding_scale: wanted a number, or initializer_range"):
        open_path(folder(tmp_path / "none", "hrm_text", **older, initializer_range=0.0))


def test_minimax_m3_says_its_index_in_either_way(tmp_path: Path) -> None:
    """And its tensors: as `save_pretrained` writes them, and as published files have them."""
    config, tensors, wanted = about("minimax_m3_vl")
    sizes = {"sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_block_size": 4,
             "sparse_topk_blocks": 3, "sparse_local_block": 1}  # fmt: skip
    assert config["index_topk_blocks"] == 3
    older = {**config, "index_topk_blocks": 16, "index_n_heads": 4, "sparse_attention_config": sizes}
    published = {}
    for name, shape in tensors.items():
        values_of = values(name, tuple(shape))
        name = name.replace("self_attn.indexer.", "self_attn.index_")
        stem, head, rest = name.partition(".mlp.")
        if any(f".{layer}." in name for layer in (1, 2)) and head:
            name = f"{stem}.block_sparse_moe.{rest.replace('gate.e_score', 'e_score')}"
        parts = {name: values_of}
        if rest.endswith("gate_up_proj.weight"):
            parts = {name.replace("gate_up", part): half for part, half in
                     zip(("gate", "up"), np.split(values_of, 2), strict=True)}  # fmt: skip
        elif rest == "experts.gate_up_proj":
            parts = {name.replace("gate_up_proj", f"{i}.w{w}.weight"): half for i, of in enumerate(values_of)
                     for w, half in zip((1, 3), np.split(of, 2), strict=True)}  # fmt: skip
        elif rest == "experts.down_proj":
            parts = {name.replace("down_proj", f"{i}.w2.weight"): of for i, of in enumerate(values_of)}
        published |= {f"language_model.{part}": np.ascontiguousarray(of) for part, of in parts.items()}
    (tmp_path / "config.json").write_text(json.dumps(older))
    save_file(published, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert nmse(logits(tmp_path, "reference", [TOKENS.tolist()]), wanted) <= LIMIT


def test_mimo_counts_the_tokens_before_one_in_the_older_style(tmp_path: Path) -> None:
    assert about("mimo_v2_flash")[0]["sliding_window"] == 8
    older = {"sliding_window": 100, "sliding_window_size": 7, "swa_rope_theta": 10000, "rope_theta": 5e6}
    ours = logits(folder(tmp_path, "mimo_v2_flash", **older), "reference", [TOKENS.tolist()])
    assert nmse(ours, about("mimo_v2_flash")[2]) <= LIMIT


def test_yarn_has_exact_bounds_wherever_transformers_does_not_truncate(tmp_path: Path) -> None:
    found = {}
    for truncate in (False, None, True):
        told = {**YARN, "truncate": truncate}
        with open_path(folder(tmp_path / str(truncate), "llama", rope_parameters=told)) as file:
            found[truncate] = "rope_freqs.weight" in file.tensors
    assert found == {False: True, None: True, True: False}


def test_the_style_of_transformers_4_says_the_same(tmp_path: Path) -> None:
    for name in ("llama", "gpt_neox", "phi3", "gemma3"):
        config = about(name)[0]
        told = config["rope_parameters"]
        full = told.get("full_attention", told)
        old: dict[str, Any] = {"rope_theta": full["rope_theta"], "rope_parameters": None}
        if "partial_rotary_factor" in full:
            old["rotary_pct"] = full["partial_rotary_factor"]
        rest = {
            key: value for key, value in full.items() if key not in ("rope_theta", "partial_rotary_factor")
        }
        old["rope_scaling"] = (
            {"type": rest.pop("rope_type"), **rest} if rest != {"rope_type": "default"} else None
        )
        if "sliding_attention" in told:
            old["rope_local_base_freq"] = told["sliding_attention"]["rope_theta"]
        with (
            open_path(folder(tmp_path / "new", name)) as new,
            open_path(folder(tmp_path, name, **old)) as older,
        ):
            assert dict(new.metadata) == dict(older.metadata)
            assert list(new.tensors) == list(older.tensors)
    older_olmo = folder(tmp_path / "olmo", "olmo3", rope_parameters=None, rope_theta=1000.0)
    with open_path(older_olmo) as opened:  # the class takes the field out for layers that see all
        bases = [opened.metadata[f"olmo2.rope.freq_base{kind}"] for kind in ("", "_swa")]
        assert bases == [1000.0, 5e5]


def test_texts_that_a_dynamic_rope_would_change_are_longer_than_the_context(tmp_path: Path) -> None:
    path, wanted = folder(tmp_path, "internlm3-dynamic"), "n_ctx: wanted 1 to 256"
    with graphml.load(path, backend="reference") as model, pytest.raises(UsageError, match=wanted):
        model.session(n_ctx=257)


def test_layers_that_are_numbered_with_zeros_before_are_the_same(tmp_path: Path) -> None:
    plain = about("gemma4")[0]["per_layer_config"]
    padded = {f"0{layer}": fields for layer, fields in plain.items()}
    with (
        open_path(folder(tmp_path, "gemma4")) as file,
        open_path(folder(tmp_path / "padded", "gemma4", per_layer_config=padded)) as other,
    ):
        assert padded != plain
        assert dict(file.metadata) == dict(other.metadata)


def test_an_unknown_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchitectureError, match=r"model_type 'llamma' is not known\. Did you mean 'llama'"):
        open_path(folder(tmp_path, "llama", model_type="llamma"))


def test_a_model_that_no_graph_computes_is_refused_by_the_reason(tmp_path: Path) -> None:
    """As `save_pretrained` of transformers 5.24 writes `DiffusionGemmaForBlockDiffusion`."""
    whole = {"model_type": "diffusion_gemma", "text_config": {"model_type": "diffusion_gemma_text"}}
    path = write_folder(tmp_path, whole, {"model.decoder.embed_tokens.weight": [4, 4]})
    with pytest.raises(ArchitectureError, match=r"'diffusion_gemma_text' is not read: .*embeddings mixed by"):
        open_path(path)


def test_tensors_without_a_place_are_refused(tmp_path: Path) -> None:
    config, tensors, _ = about("llama")
    more = tensors | {"model.layers.0.self_attn.gate.weight": [4, 4]}
    with pytest.raises(
        ArchitectureError, match=r"no place for 1 tensors: 'model.layers.0.self_attn.gate.weight'"
    ):
        open_path(write_folder(tmp_path, config, more))


def test_a_head_that_drafts_is_told_from_a_model(tmp_path: Path) -> None:
    config, tensors, _ = about("llama")
    path = write_folder(tmp_path, config, {**tensors, "fc.weight": [32, 96]})
    with pytest.raises(
        ArchitectureError, match=r"it is a head that drafts, .* as a GGUF file, for draft_model"
    ):
        open_path(path)


def test_layers_that_predict_further_tokens_are_left_out_and_drafts_by_them_say_so(tmp_path: Path) -> None:
    config, tensors, _ = about("qwen3_next")
    path = write_folder(tmp_path, config, tensors | {"mtp.fc.weight": [4, 8]})
    with graphml.load(path, "reference", threads=1) as model, model.session() as session:
        assert not [name for name in model.executor.file.tensors if "nextn" in name]
        with pytest.raises(
            UsageError, match=r"spec_type: mtp wants a GGUF file .* of a folder .* left out; got"
        ):
            session.generate([1], graphml.SamplingParams(spec_type="mtp"))


@pytest.mark.parametrize(("shape", "got"), [(None, "nothing"), ([2], r"\[2\]")])
def test_a_number_of_a_layer_that_is_none_is_refused(
    shape: list[int] | None, got: str, tmp_path: Path
) -> None:
    """Of xIELU, whose numbers checkpoints have as tensors."""
    config, tensors, _ = about("apertus")
    changed = {**tensors, "model.layers.1.mlp.act_fn.beta": shape}
    held = {name: sizes for name, sizes in changed.items() if sizes is not None}
    path = write_folder(tmp_path / "m", config, held)
    with pytest.raises(WeightsError, match=rf"blk\.1\.xielu\.beta: wanted a tensor of one number; got {got}"):
        open_path(path)


def test_a_missing_output_matrix_is_refused_unless_it_is_tied(tmp_path: Path) -> None:
    config, tensors, _ = about("llama")
    del tensors["lm_head.weight"]
    with pytest.raises(WeightsError, match="tie_word_embeddings is false"):
        open_path(write_folder(tmp_path / "untied", config, tensors))
    with open_path(write_folder(tmp_path / "tied", config | {"tie_word_embeddings": True}, tensors)) as file:
        assert "output.weight" not in file.tensors


def test_a_language_model_within_a_larger_one_is_read(tmp_path: Path) -> None:
    config, tensors, want = about("gemma3")
    inner = {f"language_model.{name}": shape for name, shape in tensors.items()}
    path = write_folder(
        tmp_path, {"model_type": "gemma3", "mm_tokens_per_image": 4, "text_config": config}, inner
    )
    with open_path(path) as file, open_path(folder(tmp_path, "gemma3")) as plain:
        assert list(file.tensors) == list(plain.tensors)
        assert dict(file.metadata) | {"general.name": ""} == dict(plain.metadata) | {"general.name": ""}
    assert want.shape == (len(TOKENS), config["vocab_size"])


def test_matrices_stay_in_the_map_where_the_layout_allows(tmp_path: Path) -> None:
    with open_path(folder(tmp_path, "qwen3")) as file:
        assert all(tensor.mapped for tensor in file.tensors.values())
    with open_path(folder(tmp_path, "llama")) as file:
        copied = {name.split(".")[-2] for name, tensor in file.tensors.items() if not tensor.mapped}
        assert copied == {"attn_q", "attn_k", "rope_freqs"}


def test_an_architecture_file_may_bring_its_family(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "from dataclasses import replace\n"
        "from graphml_models.huggingface.qwen3 import FAMILY as KNOWN\n"
        "from graphml_models.qwen3 import Config, build\n"
        "FAMILY = replace(KNOWN, model_types=('mine',), architecture='own')\n"
    )
    path = folder(tmp_path, "qwen3", model_type="mine")
    with pytest.raises(ArchitectureError, match="'mine' is not known"):
        graphml.load(path, backend="reference")
    with graphml.load(path, backend="reference", arch=own, kv="f32", quant="fp32") as model:
        got = model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True)
    assert nmse(np.asarray(got), about("qwen3")[2]) <= LIMIT


def test_a_folder_is_requantised_like_a_file(tmp_path: Path) -> None:
    with graphml.load(folder(tmp_path, "llama"), backend="reference", quant="q8") as model:
        got = model.session(n_ctx=48).eval(TOKENS.tolist(), all_logits=True)
    assert 1e-8 < nmse(np.asarray(got), about("llama")[2]) < 1e-2


def test_a_folder_without_a_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"wanted a model file, a folder with a config\.json"):
        graphml.load(tmp_path)


def test_the_docs_list_every_family() -> None:
    page = (Path(__file__).parents[2] / "docs" / "folders.md").read_text(encoding="utf-8")
    rows = [
        f"| `{kind}` | `{family.architecture}` |" for kind, family in sorted(discovery.families().items())
    ]
    assert "\n".join(["|---|---|", *rows, ""]) in page


def test_experts_in_mxfp4_are_those_of_floats(tmp_path: Path) -> None:
    """A gpt-oss with packed experts computes what one with the same values as floats does."""
    config, tensors, _ = about("gpt_oss")
    config |= {"hidden_size": 32, "intermediate_size": 32}
    shapes = {"gate_up_proj": (6, 64, 32), "down_proj": (6, 32, 32)}  # [experts, out, in], as packed
    plain = {name: shape for name, shape in tensors.items() if not name.endswith("gate_up_proj_bias")}
    plain |= {name: [6, 64] for name in tensors if name.endswith("gate_up_proj_bias")}
    floats, packed = dict[str, np.ndarray[Any, Any]](), dict[str, np.ndarray[Any, Any]]()
    for name in plain:
        last = name.rpartition(".")[2]
        if last not in shapes:
            floats[name] = packed[name] = values(name, tuple(plain[name]))
            continue
        rng = np.random.default_rng(len(name))
        blocks = rng.integers(0, 256, (*shapes[last][:2], 1, 16)).astype(np.uint8)
        packed[f"{name}_blocks"], packed[f"{name}_scales"] = (
            blocks,
            np.full((*shapes[last][:2], 1), 122, np.uint8),
        )
        codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(shapes[last])
        table = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
        numbers = np.where(codes & 8, -1, 1) * table[codes & 7] * np.float32(2.0**-5)
        floats[name] = np.ascontiguousarray(numbers.swapaxes(1, 2).astype(np.float32))
    got = []
    for kind, held in (("floats", floats), ("packed", packed)):
        told = config | ({"quantization_config": {"quant_method": "mxfp4"}} if kind == "packed" else {})
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "config.json").write_text(json.dumps(told))
        save_file(held, tmp_path / kind / "model.safetensors", metadata={"format": "pt"})
        got.append(logits(tmp_path / kind, "reference", [TOKENS.tolist()]))
    assert nmse(got[1], got[0]) < 1e-12
