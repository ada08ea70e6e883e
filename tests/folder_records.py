"""Records what transformers computes for tiny folders of many classes: a tool for developers.

    python -m venv VENV; VENV/bin/pip install torch==2.13.0 transformers
    PYTHONPATH=.:quant:models VENV/bin/python -m tests.folder_records [NAME ...]

A record holds config.json, names and shapes of the tensors, and the logits; the weights follow from the
names, so that the tests need neither package. Made with transformers 5.23.0, those since Apertus with 5.24.0,
float32, eager attention.
"""

from __future__ import annotations

import json
import sys
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.folder_parts import NESTED, OF_OTHERS, OTHER_PARTS, QWEN_WINDOWS, SEEING, VISION, VISIONS, VQ

FOLDER = Path(__file__).parent / "data" / "folders"
PARTS = (13, 1, 10)  # of the tokens, in steps that keep a cache
COMPUTED = (".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay")  # by the class, of no weights
TOKENS = np.random.default_rng(5).integers(3, 64, 24)
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 32}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16,
        "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.5, 2.0, 2.5]}  # fmt: skip
BY_KIND = {"full_attention": {**YARN, "attention_factor": 1.2},
           "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}  # fmt: skip
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2,
           "logits_scaling": 4.0}  # fmt: skip
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
          "first_k_dense_replace": 1}  # fmt: skip
HEADS = {"num_key_value_heads": 4, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
         "v_head_dim": 12}  # fmt: skip
LATENT = {**ROUTED, **HEADS}
OF_FLASH = {**ROUTED, "first_k_dense_replace": None, "num_key_value_heads": 4, "kv_lora_rank": 16,
            "q_lora_rank": 24, "qk_nope_head_dim": 12, "v_head_dim": 10, "linear_head_dim": 8,
            "linear_num_heads": 4, "index_topk": 64, "index_head_dim": 16, "index_n_heads": 2,
            "index_kpool": 4}  # fmt: skip
INDEXED = {"q_lora_rank": 24, "index_topk": 8, "index_head_dim": 16, "index_n_heads": 16}
LOCAL_LATENT = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 20, "kv_lora_rank": 20,
                "head_dim": 20, "qk_nope_head_dim": 16, "v_head_dim": 10}  # fmt: skip
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
OF_GROUPS = {
    "num_hidden_layers": 3, "num_key_value_heads": 1, "head_dim": 16, "q_lora_rank": 24,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "intermediate_size": 16,
    "sliding_window": 8, "o_groups": 2, "o_lora_rank": 12, "index_n_heads": 16, "index_head_dim": 16,
    "index_topk": 2, "hc_mult": 2, "hc_sinkhorn_iters": 3, "partial_rotary_factor": 0.5,
    "layer_types": ["sliding_attention", SPARSE, HEAVY], "compress_rates": {SPARSE: 4, HEAVY: 6},
    "mlp_layer_types": ["hash_moe", "moe", "moe"],
}  # fmt: skip
OF_STREAMS = {
    **EXPERTS, "head_dim": 16, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"], "shared_expert_intermediate_size": 24,
    "hc_count": 2, "hc_lowrank": 6, "ngram_size": 3, "heads_per_ngram": 2, "ngram_vocab_size_base": 20,
    "split_ngram_parts": 3, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16,
    "indexer_budget": 64, "indexer_compress_ratio": 4, "output_gate_type": "sigmoid",
}  # fmt: skip
OF_STEP = {
    "num_hidden_layers": 3, "head_dim": 16, "n_routed_experts": 6, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "share_expert_dim": 24, "sliding_window": 8,
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "num_sliding_attention_heads": 2, "mlp_layer_types": ["dense", "sparse", "sparse"],
    "moe_router_scaling_factor": 1.5, "swiglu_limits": [None, 0.5, 0.0],
    "swiglu_limits_shared": [0.4, 0.0, 0.3],
}  # fmt: skip
DELTA = {"head_dim": 16, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
         "linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"]}  # fmt: skip
GEMMA4 = {"num_hidden_layers": 4, "head_dim": 16, "global_head_dim": 32, "sliding_window": 8,
          "layer_types": ["sliding_attention", "full_attention"] * 2, "final_logit_softcapping": 3.0,
          "vocab_size_per_layer_input": 64}  # fmt: skip
HYBRID = {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3,
          "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 8,
          "shared_intermediate_size": 24}  # fmt: skip
MROPE = {"rope_type": "default", "rope_theta": 10000.0}
MULTIPLIED = {"embedding_multiplier": 3.0, "lm_head_multiplier": 0.5, "mlp_multipliers": [0.7, 1.3],
              "key_multiplier": 0.6, "attention_in_multiplier": 1.2, "attention_out_multiplier": 0.8,
              "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7], "ssm_in_multiplier": 1.4,
              "ssm_out_multiplier": 0.6}  # fmt: skip
ALPHA = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 1.0, "alpha": 50.0}
SHORT = ["conv", "full_attention", "conv"]
WINDOWED = ["sliding_attention"] * 3 + ["full_attention"]
SOME_ROPE = {"num_hidden_layers": 4, "sliding_window": 8, "layer_types": ["full_attention", *WINDOWED[:3]],
             "layer_rope_theta": [0, 5000.0, 5000.0, 5000.0]}  # fmt: skip
MAMBA = {"state_size": 8, "num_attention_heads": None, "num_key_value_heads": None, "intermediate_size": None,
         "max_position_embeddings": None}  # fmt: skip
NEMOTRON_H = {"num_hidden_layers": None, "head_dim": 16, "mamba_num_heads": 8, "mamba_head_dim": 8,
              "n_groups": 2, "ssm_state_size": 8, "chunk_size": 8}  # fmt: skip
LARGER = {"num_hidden_layers": 4, "hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 6,
          "num_key_value_heads": 3, "vocab_size": 72, "max_position_embeddings": 320}  # fmt: skip
OF_AUTHORS = {"bailing_moe", "bailing_moe_v2", "deepseek", "internlm2", "minicpm", "nemotron-nas"}
"""Families whose classes transformers lacks: `test_checkpoints_of_authors.py` has them by other records."""
# Name -> class of transformers, without the last part, and its fields; None: left out.
RECORDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "afmoe": ("Afmoe", {**EXPERTS, "num_hidden_layers": 5, "head_dim": 8, "mup_enabled": True,
                        "sliding_window": 8, "num_shared_experts": 2, "route_scale": 1.5}),
    "apertus": ("Apertus", {"attention_bias": True}),
    "arcee": ("Arcee", {}),
    "bamba": ("Bamba", {"num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_n_heads": 8,
                        "mamba_n_groups": 2, "mamba_d_state": 8, "mamba_chunk_size": 8,
                        "attention_bias": True}),
    "bitnet": ("BitNet", {"attention_bias": True}),
    "bloom": ("Bloom", {"intermediate_size": None, "num_key_value_heads": None,
                        "max_position_embeddings": None}),
    "chameleon": ("Chameleon", {"vocabulary_map": {"a": 5}, "vq_config": VQ}),
    "chameleon-behind": ("Chameleon", {"vocabulary_map": {}, "vq_config": VQ, "swin_norm": True}),
    "cohere": ("Cohere", {"use_qk_norm": True}),
    "cohere2": ("Cohere2", {"num_hidden_layers": 4, "sliding_window": 8}),
    "cohere2_moe": ("Cohere2Moe", {"num_hidden_layers": 4, "head_dim": 8, "sliding_window": 8,
                    "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 2,
                    "expert_selection_fn": "sigmoid", "prefix_dense_intermediate_size": 40,
                    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
                    "layer_types": ["full_attention", *WINDOWED[1:]]}),
    "cohere2_moe-rms": ("Cohere2Moe", {"num_hidden_layers": 4, "head_dim": 8, "sliding_window": 8,
                        "num_experts": 6, "num_experts_per_tok": 2, "rms_norm_eps": 1e-5}),
    "dbrx": ("Dbrx", {"attn_config": {"clip_qkv": 0.8, "kv_n_heads": 2, "rope_theta": 1e4},
                      "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 6, "moe_top_k": 2},
                      "intermediate_size": None, "num_key_value_heads": None, "hidden_size": None,
                      "num_hidden_layers": None, "num_attention_heads": None,
                      "max_position_embeddings": None, "d_model": 32, "n_heads": 4, "n_layers": 2,
                      "max_seq_len": 256}),
    "deepseek_ocr2": ("DeepseekOcr2", {
        **EXPERTS, "n_routed_experts": 6, "mlp_layer_types": ["dense", "sparse"],
        "routed_scaling_factor": 1.5}),
    "deepseek_v2": ("DeepseekV2", {**LATENT, "q_lora_rank": None, "routed_scaling_factor": 1.5}),
    "deepseek_v2-groups": ("DeepseekV2", {**LATENT, "n_routed_experts": 12, "n_group": 4, "topk_group": 2,
                           "num_experts_per_tok": 3, "topk_method": "group_limited_greedy"}),
    "deepseek_v2-yarn": ("DeepseekV2", {**LATENT, "q_lora_rank": 24,
                         "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}}),
    "deepseek_v3": ("DeepseekV3", {**LATENT, "n_group": 4, "topk_group": 2, "q_lora_rank": 24}),
    "deepseek_v3-yarn": ("DeepseekV3", {**LATENT, "n_group": 1, "topk_group": 1, "q_lora_rank": None,
                         "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "deepseek_v32": ("DeepseekV32", {**LATENT, **INDEXED, "n_group": 4, "topk_group": 2}),
    "deepseek_v32-yarn": ("DeepseekV32", {**LATENT, **INDEXED, "n_group": 1, "topk_group": 1,
                                          "rope_parameters": {**YARN, "mscale": 0.9, "mscale_all_dim": 0.9}}),
    "deepseek_v4": ("DeepseekV4", {**OF_GROUPS, "rms_norm_eps": 0.01, "swiglu_limit": 0.5}),
    "deepseek_v4-yarn": ("DeepseekV4", {
        **OF_GROUPS, "hc_mult": 3, "compress_rope_theta": 2e3, "scoring_func": "sigmoid",
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                            "beta_fast": 16, "beta_slow": 2},
        "layer_types": [HEAVY, SPARSE, "sliding_attention"],
        "mlp_layer_types": ["hash_moe", "hash_moe", "moe"]}),
    "unlimited_ocr": ("UnlimitedOcr", {
        "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "sliding_window": 8,
        "num_key_value_heads": 4,
        "mlp_layer_types": ["dense", "sparse"], "routed_scaling_factor": 1.5}),
    "dots1": ("Dots1", {**ROUTED, "head_dim": 8, "n_shared_experts": 2, "n_group": 4, "topk_group": 2,
                        "norm_topk_prob": True, "routed_scaling_factor": 1.5}),
    "dots3_note": ("Dots3Note", {
        **LATENT, **INDEXED, "num_hidden_layers": 4, "sliding_window": 8,
        "head_dim": 12, "shared_experts_intermediate_size": 12, "n_shared_experts": 2, "n_group": 4,
        "topk_group": 2, "routed_scaling_factor": 1.5, "rms_norm_eps": 0.01,
        "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
        **{f"swa_{name}": value for name, value in LOCAL_LATENT.items()}}),
    "ernie4_5": ("Ernie4_5", {"head_dim": 16}),
    "ernie4_5_moe": ("Ernie4_5_Moe", {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 16}),
    "ernie4_5_vl_moe": ("Ernie4_5_VLMoe", {
        "moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": [16, 8],
        "rope_parameters": {**MROPE, "mrope_section": [1, 1, 2]}}),
    "exaone": ("Exaone", {}),
    "exaone4": ("Exaone4", {"num_hidden_layers": 4, "sliding_window": 8, "layer_types": WINDOWED}),
    "exaone_moe": ("ExaoneMoe", {**EXPERTS, "num_hidden_layers": 4, "sliding_window": 8, "head_dim": 8}),
    "falcon": ("Falcon", {"multi_query": False, "num_key_value_heads": None, "intermediate_size": None}),
    "falcon-new": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2,
                              "num_key_value_heads": None, "intermediate_size": None}),
    "falcon-one": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 40,
                              "num_ln_in_parallel_attn": 1, "num_key_value_heads": None,
                              "intermediate_size": None}),
    "falcon_mamba": ("FalconMamba", MAMBA),
    "falcon_h1": ("FalconH1", {**MULTIPLIED, "mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_n_groups": 2,
                               "mamba_d_state": 8, "mamba_chunk_size": 8}),
    "falcon_h1-normed": ("FalconH1", {"mamba_d_ssm": 48, "mamba_n_heads": 6, "mamba_d_state": 8,
                                      "mamba_rms_norm": True, "mamba_norm_before_gate": False,
                                      "mamba_chunk_size": 8}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 20}),
    "gemma3": ("Gemma3", {"head_dim": 16, "num_hidden_layers": 6, "sliding_window": 8,
                          "query_pre_attn_scalar": 20}),
    "gemma3-factors": ("Gemma3", {"head_dim": 16, "num_hidden_layers": 3, "sliding_window": 8,
                       "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
                       "rope_parameters": {**BY_KIND, "full_attention": LLAMA3}}),
    "gemma2-larger": ("Gemma2", {**LARGER, "head_dim": 12, "sliding_window": 10, "query_pre_attn_scalar": 20,
                                 "layer_types": ["sliding_attention", "full_attention"] * 2}),
    "gemma3n": ("Gemma3n", {**GEMMA4, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2,
                            "laurel_rank": 12, "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.9],
                            "global_head_dim": None}),
    "gemma3n-shorter": ("Gemma3n", {**GEMMA4, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2,
                                    "laurel_rank": 12, "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.9],
                                    "global_head_dim": None, "vocab_size_per_layer_input": 40}),
    "gemma4": ("Gemma4", {**GEMMA4, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2}),
    "gemma4-full": ("Gemma4", {**GEMMA4, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 2,
                               "layer_types": ["full_attention"] * 4}),
    "gemma4-experts": ("Gemma4", {**GEMMA4, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
                                  "num_global_key_value_heads": 1, "enable_moe_block": True,
                                  "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 16}),
    "gemma4_unified": ("Gemma4Unified", {**GEMMA4, "vocab_size_per_layer_input": None,
                                         "attention_k_eq_v": True, "num_global_key_value_heads": 1}),
    "gemma4_unified-shared": ("Gemma4Unified", {**GEMMA4, "vocab_size_per_layer_input": None,
                                                "num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
    "glm": ("Glm", {"head_dim": 8}),
    "glm4": ("Glm4", {"head_dim": 8}),
    "glm4_moe": ("Glm4Moe", {**ROUTED, "head_dim": 8, "use_qk_norm": True, "attention_bias": True}),
    "glm4_moe-larger": ("Glm4Moe", {**LARGER, **ROUTED, "head_dim": 12, "use_qk_norm": True,
                                    "attention_bias": True, "n_routed_experts": 10, "num_experts_per_tok": 3,
                                    "moe_intermediate_size": 24, "first_k_dense_replace": 2}),
    "glm4v": ("Glm4v", {"rope_parameters": {**MROPE, "mrope_section": [1, 1, 0],
                                            "partial_rotary_factor": 0.5}}),
    "glm4v-whole": ("Glm4v", {"num_key_value_heads": 4,
                              "rope_parameters": {**MROPE, "mrope_section": [1, 1, 2]}}),
    "glm4v_moe": ("Glm4vMoe", {**ROUTED, "head_dim": 16, "n_group": 4, "topk_group": 2, "rope_parameters": {
        **MROPE, "mrope_section": [1, 1, 2], "partial_rotary_factor": 0.5}}),
    "glm5_next": ("Glm5Next", {
        **OF_FLASH, "num_hidden_layers": 4, "n_group": 4, "topk_group": 2, "hc_mult": 2,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"], "hc_sinkhorn_iters": 3,
        "swiglu_limit": 0.5, "rms_norm_eps": 0.01}),
    "glm5_next-free": ("Glm5Next", {
        **OF_FLASH, "n_group": 1, "topk_group": 1, "mlp_layer_types": ["dense", "sparse"], "hc_mult": 3,
        "layer_types": ["indexed_attention", "linear_attention"], "linear_lower_bound": None,
        "hc_sinkhorn_iters": 2}),
    "glm_ocr": ("GlmOcr", {"head_dim": 16, "rope_parameters": {**MROPE, "mrope_section": [2, 3, 3]}}),
    "glm4_moe_lite": ("Glm4MoeLite", {**LATENT, "q_lora_rank": 24, "n_shared_experts": 2,
                                      "mlp_layer_types": ["dense", "sparse"]}),
    "glm_moe_dsa": ("GlmMoeDsa", {**LATENT, **INDEXED, "num_hidden_layers": 4, "n_group": 1, "topk_group": 1,
                                  "indexer_types": ["full", "full", "shared", "full"]}),
    "gpt2": ("GPT2", {"num_key_value_heads": None, "intermediate_size": None}),
    "gpt_bigcode": ("GPTBigCode", {"num_key_value_heads": None, "intermediate_size": None}),
    "gpt_neox": ("GPTNeoX", {"num_key_value_heads": None, "use_parallel_residual": False}),
    "gpt_oss": ("GptOss", {"head_dim": 8, "sliding_window": 8, "num_local_experts": 6,
                           "num_experts_per_tok": 2, "rope_parameters": {**YARN, "truncate": False}}),
    "granite": ("Granite", GRANITE),
    "granite4_vision": ("Granite4Vision", GRANITE),
    "granite_docling": ("GraniteDocling", {**GRANITE, "tie_word_embeddings": True}),
    "granite_swa": ("GraniteSWA", {**GRANITE, **SOME_ROPE, "tie_word_embeddings": True}),
    "granitemoe": ("GraniteMoe", {**GRANITE, "num_local_experts": 6}),
    "granitemoe_swa": ("GraniteMoeSWA", {**GRANITE, **SOME_ROPE, "num_local_experts": 6,
                                         "shared_intermediate_size": 24}),
    "granitemoeshared": ("GraniteMoeShared", {**GRANITE, "num_local_experts": 6,
                                              "shared_intermediate_size": 24}),
    "granitemoehybrid": ("GraniteMoeHybrid", {**GRANITE, **HYBRID, "position_embedding_type": "rope",
                                              "num_local_experts": 6, "num_experts_per_tok": 2}),
    "granitemoehybrid-dense": ("GraniteMoeHybrid", {**GRANITE, **HYBRID, "num_local_experts": 0,
                                                    "num_experts_per_tok": 0}),
    "hrm_text": ("HrmText", {"head_dim": 16, "H_cycles": 2, "L_cycles": 2, "embedding_scale": 3.0,
                             "attention_bias": True, "mlp_bias": True}),
    "hunyuan_v1_dense": ("HunYuanDenseV1", {"head_dim": 8, "rope_parameters": ALPHA}),
    "hunyuan_v1_moe": ("HunYuanMoEV1", {"head_dim": 8, "num_experts": 6, "moe_topk": 2,
                                        "rope_parameters": ALPHA}),
    "hunyuan_vl": ("HunYuanVL", {"head_dim": 8, "rope_parameters": {**ALPHA, "mrope_section": [1, 1, 1, 1]}}),
    "internlm3": ("InternLM3", {"head_dim": 8}),
    "internlm3-dynamic": ("InternLM3", {"head_dim": 8, "rope_parameters": {
        "rope_type": "dynamic", "factor": 6.0, "rope_theta": 10000.0}}),
    "iquestcoder": ("IQuestCoder", {"head_dim": 16}),
    "hy_v3": ("HYV3", {**EXPERTS, "head_dim": 8, "num_hidden_layers": 3, "num_shared_experts": 2,
                       "router_scaling_factor": 1.5}),
    "hy_v4": ("HYV4", {
        **LATENT, "first_k_dense_replace": None, "q_lora_rank": 24, "num_hidden_layers": 3, "hc_mult": 2,
        "rms_norm_eps": 0.01,
        "index_topk": 8, "index_head_dim": 16, "index_n_heads": 16, "swiglu_limit": 0.5, "n_group": 4,
        "topk_group": 2, "n_shared_experts": 2, "indexer_types": ["full", "full", "shared"]}),
    "hy_v4_vl": ("HYV4VL", {
        **LATENT, "first_k_dense_replace": None, "q_lora_rank": 24, "hc_mult": 2, "rms_norm_eps": 0.01,
        "index_topk": 8, "index_head_dim": 16, "index_n_heads": 16, "swiglu_limit": 0.5,
        "rope_parameters": {**MROPE, "mrope_section": [1, 1, 0]}}),
    "jais2": ("Jais2", {}),
    "jamba": ("Jamba", {"num_experts": 6, "attn_layer_period": 2, "attn_layer_offset": 1,
                        "mamba_d_state": 8, "use_mamba_kernels": False}),
    "kimi_linear": ("KimiLinear", {
        **HEADS, "num_hidden_layers": 3, "rms_norm_eps": 0.01,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_experts": 8, "num_experts_per_token": 2, "moe_intermediate_size": 16, "num_expert_group": 4,
        "topk_group": 2, "linear_head_dim": 8, "linear_num_heads": 4, "num_shared_experts": 2}),
    "laguna": ("Laguna", {
        **EXPERTS, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 8, "layer_types": WINDOWED,
        "num_attention_heads_per_layer": [4, 2, 2, 4], "shared_expert_intermediate_size": 24,
        "moe_routed_scaling_factor": 1.5, "rope_parameters": {
            "full_attention": {**YARN, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0}}}),
    "laguna-elements": ("Laguna", {**EXPERTS, "head_dim": 16, "gating": "per-element"}),
    "lfm2": ("Lfm2", {"num_hidden_layers": 3, "layer_types": SHORT}),
    "lfm2-adjusted": ("Lfm2", {"num_hidden_layers": 3, "layer_types": SHORT, "intermediate_size": 100,
                               "block_multiple_of": 8, "block_ffn_dim_multiplier": 1.3}),
    "lfm2_moe": ("Lfm2Moe", {**EXPERTS, "num_hidden_layers": 3, "layer_types": SHORT, "num_dense_layers": 1,
                             "routed_scaling_factor": 1.5}),
    "llama": ("Llama", {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "llama-larger": ("Llama", {**LARGER, "rope_parameters": LLAMA3}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR, "tie_word_embeddings": True}),
    "llama4": ("Llama4", {"num_hidden_layers": 5, "head_dim": 8, "num_local_experts": 4,
                          "attention_chunk_size": 8, "floor_scale": 8, "interleave_moe_layer_step": 2,
                          "intermediate_size_mlp": 40, "rope_parameters": LLAMA3}),
    "mamba": ("Mamba", MAMBA),
    "mamba2": ("Mamba2", {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 8}),
    "ministral": ("Ministral", {"sliding_window": 8, "head_dim": 16,
                  "layer_types": ["full_attention", "sliding_attention"]}),
    "ministral3": ("Ministral3", {"head_dim": 8, "rope_parameters": {
        **YARN, "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3}}),
    "mellum": ("Mellum", {
        **EXPERTS, "num_hidden_layers": 4, "head_dim": 16, "sliding_window": 8, "layer_types": WINDOWED,
        "mlp_layer_types": ["dense", *["sparse"] * 3], "rope_parameters": BY_KIND}),
    "mellum-full": ("Mellum", {**EXPERTS, "head_dim": 16, "norm_topk_prob": False}),
    "mimo_v2_flash": ("MiMoV2Flash", {
        **ROUTED, "first_k_dense_replace": None, "num_hidden_layers": 4, "head_dim": 24, "v_head_dim": 16,
        "layer_types": ["full_attention", *WINDOWED[1:]], "sliding_window": 8, "num_key_value_heads": 1,
        "n_group": 4, "topk_group": 2, "routed_scaling_factor": 1.5}),
    "minicpm3": ("MiniCPM3", {**HEADS, "q_lora_rank": 24}),
    "minimax": ("MiniMax", {
        "num_hidden_layers": 4, "num_local_experts": 6, "num_experts_per_tok": 2, "block_size": 8,
        **{f"{part}_alpha_factor": 3.5 for part in ("full_attn", "linear_attn", "mlp")}}),
    "minimax_m2": ("MiniMaxM2", {"head_dim": 16, "num_local_experts": 6, "num_experts_per_tok": 2}),
    "minimax_m3_vl": ("MiniMaxM3VL", {
        "num_hidden_layers": 3, "head_dim": 16, "intermediate_size": 20, "dense_intermediate_size": 40,
        "shared_intermediate_size": 24, "num_local_experts": 6, "num_experts_per_tok": 2, "rotary_dim": 8,
        "rope_parameters": {**MROPE, "partial_rotary_factor": 0.5}, "index_n_heads": 2, "index_head_dim": 16,
        "index_block_size": 4, "index_topk_blocks": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]}),
    "mistral": ("Mistral", {"sliding_window": 7}),
    "mistral4": ("Mistral4", {**LATENT, "q_lora_rank": 24, "rope_parameters": {
        **YARN, "original_max_position_embeddings": 8, "mscale": 1.0, "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1}}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "mpt": ("Mpt", {"attn_config": {"clip_qkv": 0.8}, "num_key_value_heads": None,
                    "intermediate_size": None}),
    "muse_glimmer": ("MuseGlimmer", {"num_hidden_layers": 5, "head_dim": 16, "sliding_window": 8}),
    "nemotron": ("Nemotron", {}),
    "nemotron_h": ("NemotronH", {**NEMOTRON_H, "layers_block_type": [
        "linear_attention", "mlp", "full_attention", "linear_attention", "mlp"], "use_bias": True}),
    "nemotron_h-experts": ("NemotronH", {
        **NEMOTRON_H, "layers_block_type": ["linear_attention", "moe", "full_attention", "moe"],
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 4,
        "topk_group": 2, "moe_shared_expert_intermediate_size": 24, "moe_latent_size": 20,
        "routed_scaling_factor": 1.5, "time_step_min": 0.3}),
    "olmo": ("Olmo", {"clip_qkv": 0.5}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {"num_hidden_layers": 4, "sliding_window": 8, "rope_parameters": BY_KIND}),
    "olmoe": ("Olmoe", {"num_experts": 6, "num_experts_per_tok": 2}),
    "paddleocr_vl": ("PaddleOCRVL", {"head_dim": 16,
                                     "rope_parameters": {**MROPE, "mrope_section": [2, 3, 3]}}),
    "phi": ("Phi", {}),
    "phi3": ("Phi3", {"sliding_window": 10, "max_position_embeddings": 64, "rope_parameters": LONG,
                      "original_max_position_embeddings": 16}),
    "phimoe": ("Phimoe", {"num_local_experts": 6, "router_jitter_noise": 0.2, "attention_bias": True,
                          "lm_head_bias": True, "original_max_position_embeddings": 32,
                          "rope_parameters": {**LONG, "original_max_position_embeddings": 32,
                                              "short_mscale": 1.2, "long_mscale": 1.2}}),
    "qwen2": ("Qwen2", {"rope_parameters": YARN}),
    "qwen2_moe": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen2_5_vl": ("Qwen2_5_VL", {"rope_parameters": {**MROPE, "mrope_section": [1, 1, 2]}}),
    "qwen2_vl": ("Qwen2VL", {"rope_parameters": {**MROPE, "mrope_section": [1, 1, 2]}}),
    "qwen3_vl": ("Qwen3VL", {"head_dim": 16, "rope_parameters": {**MROPE, "mrope_section": [2, 3, 3]}}),
    "qwen3_vl_moe": ("Qwen3VLMoe", {**EXPERTS, "moe_intermediate_size": 24, "head_dim": 16,
                     "norm_topk_prob": True,
                     "rope_parameters": {**MROPE, "mrope_section": [2, 3, 3]}}),
    "qwen3_5": ("Qwen3_5", {**DELTA, "tie_word_embeddings": True}),
    "qwen3_5_moe": ("Qwen3_5Moe", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3_omni_moe": ("Qwen3OmniMoeThinker", {**EXPERTS, "head_dim": 16}),
    "qwen3_next": ("Qwen3Next", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 24}),
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3_moe-unnormalised": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": False}),
    "qwen4_exp": ("Qwen4Exp", {**OF_STREAMS, "ple_layer_ids": [1]}),
    "qwen4_exp-plain": ("Qwen4Exp", {**OF_STREAMS, "hc_count": 3, "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}),
    "sarvam_mla": ("SarvamMLA", {**LATENT, "n_group": 4, "topk_group": 2}),
    "sarvam_mla-yarn": ("SarvamMLA", {**LATENT, "rope_parameters": {
        **YARN, "mscale": 1.0, "mscale_all_dim": 1.0}}),
    "sarvam_moe": ("SarvamMoE", {**ROUTED, "head_dim": 8, "n_group": 4, "topk_group": 2,
                                 "attention_bias": True}),
    "seed_oss": ("SeedOss", {"head_dim": 16, "attention_bias": True, "attention_out_bias": True}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4}),
    "solar_open": ("SolarOpen", {**ROUTED, "head_dim": 8, "intermediate_size": None,
                                 "first_k_dense_replace": None}),
    "step3p7": ("Step3p7", {**OF_STEP, "rope_parameters": {
        "full_attention": {**LLAMA3, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0}}}),
    "step3p7-yarn": ("Step3p7", {**OF_STEP, "num_sliding_attention_heads": None, "query_pre_attn_scalar": 20,
        "attention_bias": True, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": YARN, "sliding_attention": {
            "rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}}}),
    "stablelm": ("StableLm", {"use_qkv_bias": True}),
    "stablelm-larger": ("StableLm", {"qk_layernorm": True, "use_parallel_residual": True}),
    "starcoder2": ("Starcoder2", {"sliding_window": 8}),
    "minicpm3-yarn": ("MiniCPM3", {**HEADS, "q_lora_rank": 24,
                      "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}}),
    "youtu": ("Youtu", {**HEADS, "q_lora_rank": 24, "tie_word_embeddings": True}),
    **QWEN_WINDOWS,
}  # fmt: skip


def values(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[Any]]:
    """The weights of a tensor of transformers, by its name: float32, but int64 where they are numbers."""
    made = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    at = np.arange(shape[0] if shape else 1)
    if name.endswith("A_log"):
        return np.float32(0.5) + np.float32(0.3) * made
    if name.endswith("tid2eid"):  # numbers of 8 experts, others in each row
        order = np.argsort(np.random.default_rng(shape[0]).random((shape[0], 8)))
        return np.ascontiguousarray(order[:, : shape[1]])
    if ".ple_embedding." in name and len(shape) == 1:  # of hashes: their factors, rows of each, and where
        factors = {"layer_multipliers": 2 * np.floor(np.abs(made) * 1e12) + 1, "ngram_heads_offsets": 16 * at,
                   "ngram_heads_vocab_sizes": 13 - at}  # fmt: skip
        return factors[name.rpartition(".")[2]].astype(np.int64)
    if name.endswith(".act_fn.eps"):
        return np.asarray(np.float32(-0.01) * np.abs(made))
    if "bias" in name:
        return np.float32(0.1) * made
    if len(shape) < 2:
        return np.asarray(1 + np.float32(0.1) * made)
    return made / np.float32(np.sqrt(shape[-1]))


def write_folder(path: Path, config: Mapping[str, Any], tensors: Mapping[str, list[int]]) -> Path:
    """A folder with config.json and model.safetensors, float32."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    made = {name: values(name, tuple(shape)) for name, shape in tensors.items()}
    save_file(made, path / "model.safetensors", metadata={"format": "pt"})
    return path


def about(name: str) -> tuple[dict[str, Any], dict[str, list[int]], np.ndarray[Any, np.dtype[np.float32]]]:
    """Config, tensors and logits of a record."""
    with np.load(FOLDER / f"{name}.npz") as found:
        told = json.loads(found["about"].tobytes())
        return told["config"], told["tensors"], found["logits"]


def in_steps(name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The logits of a record in steps of `PARTS`: others than at once where a rope goes by the length."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return np.asarray(arrays["steps" if "steps" in arrays else "logits"])


def class_of(transformers: Any, prefix: str) -> Any:
    """The class of a model, by the first part of its name."""
    head = {
        "GPT2": "LMHeadModel",
        "Chameleon": "ForConditionalGeneration",
        **dict.fromkeys(SEEING, "ForConditionalGeneration"),
    }
    prefix = OF_OTHERS.get(prefix, prefix)
    return getattr(transformers, prefix + head.get(prefix, "ForCausalLM"))


def config_of(transformers: Any, prefix: str) -> Any:
    """The class of a model's config: of a class that several have, one of its own."""
    if prefix in OF_OTHERS:
        return getattr(transformers, prefix + "Config")
    return class_of(transformers, prefix).config_class


def shapes(path: Path) -> dict[str, list[int]]:
    """The tensors of a file."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in sorted(file.keys())}


def record(name: str) -> None:
    """Write a record."""
    import torch
    import transformers

    prefix, fields = RECORDS[name]
    of_class = class_of(transformers, prefix)
    of_config = getattr(transformers, prefix + ("TextConfig" if prefix in NESTED else "Config"))
    told = {key: value for key, value in (SIZES | dict(fields)).items() if key in fields or value is not None}
    if "q_lora_rank" not in fields:
        told = {key: value for key, value in told.items() if value is not None}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        if prefix in SEEING:
            parts = {"vision_config": VISIONS.get(prefix, VISION), **OTHER_PARTS.get(prefix, {})}
            told = {"text_config": told, **parts}
        of_class(of_config(**told)).save_pretrained(path)
        config = json.loads((path / "config.json").read_text())
        held = shapes(path / "model.safetensors")
        tensors = {name: shape for name, shape in held.items() if not name.endswith(COMPUTED)}
        write_folder(path, config, tensors)
        settings = config_of(transformers, prefix).from_pretrained(path)
        model = of_class.from_pretrained(
            path, config=settings, attn_implementation="eager", dtype=torch.float32
        ).eval()
        with torch.no_grad():
            logits = model(torch.tensor(TOKENS)[None], use_cache=False).logits[0].numpy()
            steps, cache, by_length = [], None, fields.get("rope_parameters") == LONG
            for part in np.split(TOKENS, np.cumsum(PARTS)[:-1]) if by_length else ():
                step = model(torch.tensor(part)[None], past_key_values=cache, use_cache=True)
                cache = step.past_key_values
                steps.append(step.logits[0].numpy())
    text = json.dumps({"config": config, "tensors": tensors}, sort_keys=True)
    arrays: dict[str, Any] = {"steps": np.concatenate(steps)} if steps else {}
    of_text = np.frombuffer(text.encode(), np.uint8)
    np.savez_compressed(FOLDER / f"{name}.npz", about=of_text, logits=logits, **arrays)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for one in sys.argv[1:] or RECORDS:
        record(one)
        print(one)
