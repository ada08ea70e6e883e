"""The language model of GLM-5.3 Flash, on text alone: of `Glm5NextForConditionalGeneration`.

Texts are as long as the index chooses tokens, so that all are seen: its tensors are of no use here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names, To, rows
from graphml_models.huggingface import deepseek_v4, kimi_linear
from graphml_models.huggingface._names import ATTENTION, NORMS, TOP
from graphml_models.huggingface.deepseek_v3 import FAMILY as DEEPSEEK
from graphml_models.huggingface.glm4_moe import routing_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """Latent attention without positions and delta nets by turns, residual streams, DeepSeek-V3's experts."""
    config.activation("silu")
    config.only("qk_rope_head_dim", 0)
    config.only("index_kpool_always_select_tail", True)
    metadata = decoder_keys(config)
    count, rank = int(str(metadata["block_count"])), config.size("attention.kv_lora_rank")
    config.ignore("mlp_layer_types", "indexer_types", "index_topk_pattern")  # as the tensors are
    config.ignore(
        "index_topk_freq", "index_skip_topk_offset", "index_head_dim", "index_n_heads", "index_kpool"
    )
    kinds = {"linear_attention": False, "indexed_attention": True, "full_attention": True}
    attends = config.layered("layer_types", kinds, count)
    if attends is None:
        attends = [i % 4 == 3 for i in range(count)]
    return {
        **metadata,
        **routing_keys(config),
        **_linear_keys(config, int(str(metadata["attention.head_count"]))),
        "attention.head_count_kv": [int(attended) for attended in attends],
        "attention.key_length": rank,
        "attention.key_length_mla": config.size("qk_nope_head_dim"),
        "attention.value_length": rank,
        "attention.value_length_mla": config.size("v_head_dim"),
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": config.size("q_lora_rank"),
        "attention.indexer.top_k": config.size("index_topk"),
        "rope.dimension_count": 0,
        "swiglu_clamp_exp": config.cap("swiglu_limit"),
        **deepseek_v4.stream_keys(config),
    }


def _linear_keys(config: HfConfig, heads: int) -> dict[str, Value]:
    """Sizes of the delta nets, by fields or by those of `linear_attn_config`, which count."""
    older = config.get("linear_attn_config")
    stated: dict[str, Any] = older if isinstance(older, dict) else {}
    n_heads, bound = (
        stated.get(theirs, config.get(ours))
        for theirs, ours in (("num_heads", "linear_num_heads"), ("gate_lower_bound", "linear_lower_bound"))
    )
    head_dim, n_conv = (
        stated.get(theirs, config.size(ours))
        for theirs, ours in (("head_dim", "linear_head_dim"),
                             ("short_conv_kernel_size", "linear_conv_kernel_dim"))
    )  # fmt: skip
    if n_heads != heads:
        raise config.error(f"linear_num_heads: wanted {heads}, as many as attention has; got {n_heads}")
    if any(type(size) is not int or size < 1 for size in (head_dim, n_conv)):
        raise config.error(f"linear_attn_config: wanted sizes above 0; got {str(stated)[:60]}")
    if bound is None and older is not None and stated.get("safe_gate", True):
        bound = -5.0
    if bound is None:
        return {"kda.head_dim": head_dim, "ssm.conv_kernel": n_conv}
    bound = config.checked_number("linear_lower_bound", bound)
    if bound >= 0:
        raise config.error(f"linear_lower_bound: wanted null or a number below 0; got {bound}")
    return {"kda.head_dim": head_dim, "ssm.conv_kernel": n_conv, "kda.gate_lower_bound": bound}


def _third(i: int) -> Callable[[HfConfig], tuple[int, int, int, int]]:
    return lambda config: (1, 3, i, i + 1)


DELTA: Names = {
    **kimi_linear.DELTA,
    **{
        name.replace("self_attn.", "self_attn.forget_gate."): place
        for name, place in kimi_linear.DELTA.items()
        if name.rpartition(".")[2] in ("A_log", "dt_bias", "f_a_proj", "f_b_proj")
    },
    "layers.{}.self_attn.conv1d": tuple(
        To(f"blk.{{}}.ssm_conv1d_{part}", rows(_third(i))) for i, part in enumerate("qkv")
    ),
}
INDEXER: Names = {
    f"layers.{{}}.self_attn.indexer.{part}": None
    for part in ("wq_b", "wk", "k_norm", "weights_proj", "index_kpool_compress_ape",
                 "index_kpool_compress_gate")
}  # fmt: skip
FAMILY = Family(
    model_types=("glm5_next_text",),
    architecture="glm5-next",
    keys=keys,
    names={
        **TOP, **NORMS, **ATTENTION, **DEEPSEEK.names, **DELTA, **kimi_linear.MLP, **INDEXER,
        **deepseek_v4.STREAMS,
    },
    ignored=("head_dim", "num_key_value_heads"),
)  # fmt: skip
