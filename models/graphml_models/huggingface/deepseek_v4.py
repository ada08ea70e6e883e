"""DeepSeek-V4: `DeepseekV4ForCausalLM`; its rope pairs neighbours, as GGUF's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names, To, as_float32
from graphml.loading.huggingface.rope import scaled_rope, stated_rope
from graphml.weights import Tensor
from graphml.weights.deferred import DeferredTensor
from graphml_models.huggingface._names import TOP, expert_keys

GATING = {"softmax": 1, "sigmoid": 2, "sqrtsoftplus": 4}  # GGUF's numbers
SPARSE, HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
RATES, RATIOS = {SPARSE: 4, HEAVY: 128}, {0: "sliding_attention", 4: SPARSE, 128: HEAVY}
N_HASH = 3  # of the class, where nothing says it
LARGEST = 1 << 16


def keys(config: HfConfig) -> dict[str, Value]:
    """A window, groups of tokens by layer, mixed streams of residuals, and experts with limits."""
    config.activation("silu")
    config.only("expert_dtype", "fp4", "fp8")  # how experts are stored, which their tensors say
    experts = expert_keys(config)
    metadata = decoder_keys(config, width=int(str(experts["expert_feed_forward_length"])))
    count, limit = int(str(metadata["block_count"])), config.cap("swiglu_limit")
    config.only("scoring_func", *GATING)
    return {
        **metadata,
        **experts,
        **_rope(config, metadata),
        **{
            f"attention.indexer.{ours}": config.size(field)
            for ours, field in (("head_count", "index_n_heads"), ("key_length", "index_head_dim"),
                                ("top_k", "index_topk"))
        },
        "attention.head_count_kv": 1,
        "attention.q_lora_rank": config.size("q_lora_rank"),
        "attention.sliding_window": config.window(),
        "attention.compress_ratios": _ratios(config, count),
        "attention.output_group_count": config.size("o_groups"),
        "attention.output_lora_rank": config.size("o_lora_rank"),
        "hash_layer_count": _n_hash(config, count),
        **stream_keys(config),
        "expert_gating_func": GATING[config.get("scoring_func")],
        "expert_weights_norm": True,  # whatever norm_topk_prob says
        "expert_weights_scale": config.number("expert_weights_scale"),
        "swiglu_clamp_exp": limit,
        "swiglu_clamp_shexp": limit,
    }  # fmt: skip


def stream_keys(config: HfConfig) -> dict[str, Value]:
    """The number of streams of residuals, and how what mixes them is balanced."""
    return {
        "hyper_connection.count": config.size("hc_mult"),
        "hyper_connection.sinkhorn_iterations": config.size("hc_sinkhorn_iters"),
        "hyper_connection.epsilon": config.number("hc_eps"),
    }


def _ratios(config: HfConfig, count: int) -> list[int]:
    """Tokens of a group in each layer; 0: no groups."""
    rates = config.get("compress_rates") or RATES
    if not isinstance(rates, dict):
        raise config.error(f"compress_rates: wanted those of {SPARSE} and {HEAVY}; got {str(rates)[:60]}")
    rates = {**rates, SPARSE: config.get("compress_rate_csa") or rates.get(SPARSE),
             HEAVY: config.get("compress_rate_hca") or rates.get(HEAVY)}  # fmt: skip
    kinds, older = config.get("layer_types"), config.get("compress_ratios")
    if kinds is None and older is not None:
        kinds = [RATIOS.get(ratio) for ratio in older] if isinstance(older, list) else older
    if kinds is None:
        kinds = [HEAVY if i < 2 or i % 2 == 0 else SPARSE for i in range(count)]
    known = {"sliding_attention": 0, **{kind: rates[kind] for kind in (SPARSE, HEAVY)}}
    if not isinstance(kinds, list) or len(kinds) < count or any(kind not in known for kind in kinds):
        wanted = f"wanted {count} times {', '.join(known)}; got {str(kinds)[:80]}"
        raise config.error(f"layer_types or compress_ratios: {wanted}")
    for kind in (SPARSE, HEAVY):
        ratio = known[kind]
        if kind in kinds and not (type(ratio) is int and 2 <= ratio <= LARGEST):
            raise config.error(f"compress_rates of {kind}: wanted 2 to {LARGEST}; got {str(ratio)[:40]}")
    return [known[kind] for kind in kinds[:count]]


def _n_hash(config: HfConfig, count: int) -> int:
    """How many layers, the first, choose experts by the token."""
    hashed = config.layered("mlp_layer_types", {"hash_moe": True, "moe": False}, count)
    if hashed is None:
        return min(config.size("num_hash_layers", N_HASH), count)
    n_hash = hashed.count(True)
    if hashed != [i < n_hash for i in range(count)]:
        raise config.error("mlp_layer_types: wanted hash_moe before moe")
    return n_hash


def _rope(config: HfConfig, metadata: dict[str, Value]) -> dict[str, Value]:
    """Of layers without groups, plain, and of the others, perhaps by yarn without its factor of heads."""
    stated, width = stated_rope(config), int(str(metadata["attention.key_length"]))
    part, turned = config.get("partial_rotary_factor"), config.get("qk_rope_head_dim")
    if part is None:
        part = 64 / 512 if turned is None else turned / width
    near: dict[str, Any] = {"rope_theta": config.number("rope_theta"), "partial_rotary_factor": part}
    far = {**stated, "rope_theta": config.number("compress_rope_theta"), "partial_rotary_factor": part}
    if isinstance(stated.get("main"), dict) and isinstance(stated.get("compress"), dict):
        near, far = dict(stated["main"]), dict(stated["compress"])
    elif far.get("rope_type", far.get("type")) == "yarn":
        far.setdefault("attention_factor", 1.0)
    numbers = []
    for name, rope in (("main", near), ("compress", far)):
        share = config.checked_number("partial_rotary_factor", rope.pop("partial_rotary_factor", 1.0))
        base = config.checked_number(f"rope_theta of {name}", rope.pop("rope_theta", None))
        numbers.append((int(width * share), base))
    (n_rot, near_base), (far_n_rot, far_base) = numbers
    if n_rot != far_n_rot or not 2 <= n_rot <= width or n_rot % 2 or min(near_base, far_base) <= 0:
        raise config.error(
            "partial_rotary_factor and rope_theta: wanted one number of pairs of dimensions, and bases above "
            f"0; got {n_rot} and {far_n_rot} of {width} dimensions, bases {near_base} and {far_base}"
        )
    if near.pop("rope_type", "default") != "default" or near:
        raise config.error(f"rope_parameters of main: wanted none but a base; got {str(near)[:80]}")
    if far.get("rope_type", far.get("type")) == "yarn" and far.pop("attention_factor", None) != 1:
        raise config.error("attention_factor of yarn: wanted 1.0, as of DeepSeek-V4")
    scaling = scaled_rope(config, far, n_rot, far_base, int(str(metadata["context_length"])), by_kind=True)
    if config.tensors or scaling.get("rope.scaling.type", "linear") not in ("linear", "yarn"):
        raise config.error("rope_parameters: wanted default, linear, or yarn with rounded bounds")
    return {
        "rope.dimension_count": n_rot,
        "rope.freq_base": near_base,
        "attention.compress_rope_freq_base": far_base,
        **scaling,
    }


def _numbers_of_experts(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """As int32, of int64 in checkpoints."""
    count = config.size("expert_count")

    def compute() -> NDArray[np.uint8]:
        values = tensor.numpy()
        if values.size and not 0 <= values.min() <= values.max() < count:
            got = f"got {values.min()} to {values.max()}"
            raise config.error(f"{name}: wanted numbers of the {count} experts; {got}")
        return np.ascontiguousarray(values, np.int32).reshape(-1).view(np.uint8)

    if tensor.dtype not in ("i32", "i64"):
        raise config.error(f"{name}: wanted int64 or int32; got {tensor.dtype}")
    return DeferredTensor.of(name, "i32", tensor.shape, compute)


_COMPRESSOR = {
    "kv": ("wkv", "kv_proj"), "gate": ("wgate", "gate_proj"), "ape.weight": ("ape", "position_bias"),
    "norm": ("norm", "kv_norm"),
}  # fmt: skip
_ATTENTION = {
    "attn_q_a": ("wq_a", "q_a_proj"), "attn_q_a_norm": ("q_norm", "q_a_norm"), "attn_kv": ("wkv", "kv_proj"),
    "attn_q_b": ("wq_b", "q_b_proj"), "attn_kv_a_norm": ("norm", "kv_norm"),
    "attn_output_a": ("wo_a", "o_a_proj"), "attn_output_b": ("wo_b", "o_b_proj"),
    "attn_sinks.weight": ("attn_sink", "sinks"),
    "indexer.attn_q_b": ("indexer.wq_b", "compressor.indexer.q_b_proj"),
    "indexer.proj": ("indexer.weights_proj", "compressor.indexer.scorer.weights_proj"),
    **{
        f"{kind}_compressor_{part}": tuple(f"{place}.{name}" for place in places for name in names)
        for kind, places in (("attn", ("compressor",)),
                             ("indexer", ("indexer.compressor", "compressor.indexer")))
        for part, names in _COMPRESSOR.items()
    },
}  # fmt: skip
_PARTS = {"gate": ("w1", "gate_proj"), "down": ("w2", "down_proj"), "up": ("w3", "up_proj")}
STREAMS: Names = {
    f"layers.{{}}.{theirs}": f"blk.{{}}.hc_{block}_{part}.weight"
    for block in ("attn", "ffn") for part in ("fn", "base", "scale")
    for theirs in (f"hc_{block}_{part}", f"{block}_hc.{part}")
}  # fmt: skip
NAMES: Names = {
    **TOP, **STREAMS, "embed": "token_embd", "head": "output",
    **{
        theirs: f"output_hc_{part}.weight"
        for part in ("fn", "base", "scale") for theirs in (f"hc_head_{part}", f"hc_head.hc_{part}")
    },
    **dict.fromkeys(("layers.{}.attn_norm", "layers.{}.input_layernorm"), "blk.{}.attn_norm"),
    **dict.fromkeys(("layers.{}.ffn_norm", "layers.{}.post_attention_layernorm"), "blk.{}.ffn_norm"),
    **{
        f"layers.{{}}.{block}.{name}": f"blk.{{}}.{ours}"
        for block in ("attn", "self_attn") for ours, names in _ATTENTION.items() for name in names
    },
    **{
        f"layers.{{}}.{block}.{theirs}": place
        for block in ("ffn", "mlp")
        for theirs, place in (
            ("gate", To("blk.{}.ffn_gate_inp", as_float32)),
            ("gate.bias", To("blk.{}.exp_probs_b.bias", as_float32)),
            ("gate.e_score_correction_bias", To("blk.{}.exp_probs_b.bias", as_float32)),
            ("gate.tid2eid", To("blk.{}.ffn_gate_tid2eid.weight", _numbers_of_experts)),
            ("gate.bias_vl", None),  # of tokens of a picture
            ("experts.gate_up_proj", "blk.{}.ffn_gate_up_exps.weight"),
            ("experts.down_proj", "blk.{}.ffn_down_exps.weight"),
            *((f"shared_experts.{name}", f"blk.{{}}.ffn_{part}_shexp")
              for part, names in _PARTS.items() for name in names),
            *((f"experts.{{}}.{name}", f"blk.{{}}.ffn_{part}_exps")
              for part, names in _PARTS.items() for name in names),
        )
    },
}  # fmt: skip
"""As checkpoints have them, as transformers holds them, and as it saves them, which is both."""

FAMILY = Family(
    model_types=("deepseek_v4",),
    architecture="deepseek4",
    keys=keys,
    names=NAMES,
)
