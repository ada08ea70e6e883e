"""Qwen4 as first shown, its language model: `Qwen4ExpForCausalLM`."""

from __future__ import annotations

from typing import Any

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, Names, To, plus_one, squeezed, unchanged
from graphml_models.huggingface import _delta_net, qwen3_5
from graphml_models.huggingface._names import EXPERTS, expert_keys
from graphml_models.huggingface.qwen2_moe import SHARED

INDEX = (
    "indexer_n_heads",
    "indexer_kv_heads",
    "indexer_head_dim",
    "indexer_budget",
    "indexer_compress_ratio",
)
PLE = "layers.{}.ple.ple_embedding."


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Qwen3.5 with experts, with streams of residuals, n-grams, and a context that is seen whole."""
    config.only("norm_topk_prob", True)
    config.only("attention_bias", False)
    config.only("output_gate_type", "sigmoid")
    if config.get("output_gate_type") is None:
        raise config.error("output_gate_type: wanted 'sigmoid'; null is silu to the class")
    heads, kv_heads, width, budget, ratio = (config.size(name) for name in INDEX)
    if kv_heads != 1 or not heads or not width or not ratio or not budget or budget % ratio:
        raise config.error(f"{', '.join(INDEX)}: wanted 1 head of keys, and a budget of whole groups")
    metadata = _delta_net.keys(config, attending=("full_attention", "indexed_attention"))
    if int(str(metadata["rope.dimension_count"])) > width:
        raise config.error(f"indexer_head_dim: wanted at least what rotates; got {width}")
    return {
        **metadata,
        **expert_keys(config),
        "expert_shared_feed_forward_length": config.size("expert_shared_feed_forward_length"),
        "hyper_connection.count": config.size("hc_count"),
        "attention.indexer.head_count": heads,
        "attention.indexer.key_length": width,
        "attention.indexer.top_k": budget,
        **_ngrams(config, int(str(metadata["block_count"]))),
    }


def _ngrams(config: HfConfig, count: int) -> dict[str, Value]:
    """Where rows of n-grams come in, if anywhere, and what their hashes are of; numbers are tensors."""
    layers = config.get("ple_layer_ids") or []
    size, each, n_conv = (
        config.size(name) for name in ("ngram_size", "heads_per_ngram", "ple_conv_kernel_size")
    )
    if not layers:
        return {}
    if not isinstance(layers, list) or len(set(layers)) != 1 or type(layers[0]) is not int:
        raise config.error(f"ple_layer_ids: wanted one layer, counted from 1; got {str(layers)[:60]}")
    if not 1 <= layers[0] <= count:
        raise config.error(f"ple_layer_ids: wanted 1 to {count}; got {layers[0]}")
    ends: Any = config.get("eos_token_id")
    end = ends[0] if isinstance(ends, list) and ends else ends
    if type(end) is not int or end < 0:
        raise config.error(f"eos_token_id: wanted an id, which ends n-grams; got {str(ends)[:60]}")
    return {
        "ple.layers": [layers[0] - 1],
        "ple.ngram_size": size,
        "ple.heads_per_ngram": each,
        "ple.conv_kernel": n_conv,
        "ple.eos_token_id": end,
    }


_MIX = {"hc_norm": "norm", "input_mix_weight_down": "down", "input_mix_weight_up": "up",
        "block_inject_weight": "inject"}  # fmt: skip


def _mixed(theirs: str, ours: str) -> Names:
    """What mixes the streams before a block, and shares out what it gives."""
    return {
        f"{theirs}.{name}": To(f"{ours}_norm", plus_one) if part == "norm" else f"{ours}_{part}"
        for name, part in _MIX.items()
    }


FAMILY = Family(
    model_types=("qwen4_exp_text",),
    architecture="qwen4exp",
    keys=keys,
    names={
        **qwen3_5.NAMES, **EXPERTS, **SHARED,
        **_mixed("hyper_connection_mixer", "output_hc"),
        **_mixed("layers.{}.attn_hyper_connection", "blk.{}.hc_attn"),
        **_mixed("layers.{}.mlp_hyper_connection", "blk.{}.hc_ffn"),
        "layers.{}.ple.key_proj": "blk.{}.ple_key",
        "layers.{}.ple.value_proj": "blk.{}.ple_value",
        "layers.{}.ple.conv1d": To("blk.{}.ple_conv1d", squeezed),
        **{
            f"layers.{{}}.ple.norm_{part}": To(f"blk.{{}}.ple_norm_{part}", plus_one)
            for part in ("key", "query", "conv")
        },
        f"{PLE}layer_multipliers": "blk.{}.ple_multipliers",
        f"{PLE}ngram_heads_vocab_sizes": "blk.{}.ple_sizes",
        f"{PLE}ngram_heads_offsets": "blk.{}.ple_offsets",
        f"{PLE}ngram_embedding": To("per_layer_token_embd", unchanged, by_rows=True),
        f"{PLE}ngram_embedding.shard_{{}}": To("per_layer_token_embd", unchanged, by_rows=True),
        # The context is no longer than the index would choose.
        **dict.fromkeys(
            (f"layers.{{}}.self_attn.indexer.{part}"
             for part in ("index_qk_proj", "q_layernorm", "k_layernorm")),
            None,
        ),
    },
    ignored=("make_ngram_vocab_size_divisible_by", "ngram_vocab_size_base", "ple_embed_dim", "seed",
             "hc_lowrank"),
    lists={
        "blk.{}.ple_multipliers": "ple.layer_multipliers",
        "blk.{}.ple_sizes": "ple.head_vocab_sizes",
        "blk.{}.ple_offsets": "ple.head_offsets",
    },
)  # fmt: skip
