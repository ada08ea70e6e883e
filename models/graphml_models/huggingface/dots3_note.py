"""dots3.note, its language model: `Dots3NoteForCausalLM`; its rope pairs neighbours, as GGUF's.

GGUF's index rotates halves, and its norms have the factors of the latents.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, To, calculated, paired
from graphml.weights import Tensor
from graphml_models.huggingface.deepseek_v3 import FAMILY as DEEPSEEK
from graphml_models.huggingface.deepseek_v3 import LatentSizes, half, sizes_of_all
from graphml_models.huggingface.glm4_moe import routing_keys

LOCAL, WHOLE = "sliding_attention", "indexed_attention"
GEOMETRY = {"num_attention_heads": 64, "kv_lora_rank": 1024, "qk_nope_head_dim": 192, "v_head_dim": 128}
"""Of layers with a window, where nothing says it."""
THETA, LOCAL_THETA = 8e7, 5e4
OLDER = tuple(f"swa_{name}" for name in (*GEOMETRY, "q_lora_rank", "head_dim", "qk_rope_head_dim",
                                         "num_key_value_heads", "rope_theta"))  # fmt: skip
"""Fields of layers with a window in older files, which transformers does not read."""


def keys(config: HfConfig) -> dict[str, Value]:
    """Heads, widths and ropes of two kinds of layers, an index in those that see all, grouped experts."""
    config.activation("silu")
    metadata = decoder_keys(config)
    count, rotated = int(str(metadata["block_count"])), config.size("qk_rope_head_dim")
    windowed = _windowed(config, count)
    heads, _, _, rank = sizes_of_all(config, "")
    local = int(_local(config)["num_attention_heads"])
    config.layered("mlp_layer_types", {"dense": True, "sparse": False}, count)  # as the tensors are
    size = config.get("sliding_window", "sliding_window_size")
    size = 512 if size is None else size
    if any(windowed) and (type(size) is not int or size < 1):
        raise config.error(f"sliding_window: wanted a number of tokens; got {str(size)[:40]}")
    return {
        **metadata,
        **routing_keys(config),
        **_bases(config),
        "attention.head_count": [local if is_local else heads for is_local in windowed],
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.q_lora_rank": config.size("q_lora_rank"),
        "attention.key_length": rank + rotated,
        "attention.value_length": rank,
        "rope.dimension_count": rotated,
        "attention.sliding_window": size if any(windowed) else 0,
        "attention.sliding_window_pattern": windowed,
        "attention.indexer.head_count": config.size("index_n_heads"),
        "attention.indexer.key_length": config.size("index_head_dim"),
        "attention.indexer.top_k": config.size("index_topk"),
    }


def _windowed(config: HfConfig, count: int) -> list[bool]:
    """Which layers have a window; the others have an index, which older files call full attention."""
    config.only("use_dsa", True)
    older = config.get("use_dsa") is not None or config.get("per_layer_config") is None
    kinds = {LOCAL: True, WHOLE: False, **({"full_attention": False} if older else {})}
    listed = config.layered("layer_types", kinds, count)
    if listed is None:
        used = config.flag("use_sliding_window", True)
        listed = [used and i >= 2 and i % 4 != 1 for i in range(count)]
    return listed


def _local(config: HfConfig) -> Mapping[str, Any]:
    """Heads and widths of layers with a window."""
    rotated, by_layer = config.size("qk_rope_head_dim"), config.get("per_layer_config")
    older = {name: config.get(f"swa_{name}") for name in (*GEOMETRY, "q_lora_rank", "head_dim")}
    turned, kv_heads = config.get("swa_qk_rope_head_dim"), config.get("swa_num_key_value_heads")
    if by_layer is None:
        known = {**GEOMETRY, **{name: value for name, value in older.items() if value is not None}}
        width = known.get("head_dim", 256)
        turned = width - known["qk_nope_head_dim"] if turned is None else turned
        local = {**known, "head_dim": width, "qk_rope_head_dim": turned}
        local["num_key_value_heads"] = 64 if kv_heads is None else kv_heads
    else:
        layers = list(by_layer.values()) if isinstance(by_layer, dict) else [by_layer]
        windowed = _windowed(config, config.size("block_count"))
        kept = sorted(map(str, by_layer)) if isinstance(by_layer, dict) else None
        wanted = sorted(str(i) for i, is_local in enumerate(windowed) if is_local)
        if any(not isinstance(layer, dict) or layer != layers[0] for layer in layers) or kept != wanted:
            raise config.error("per_layer_config: wanted the same fields for all layers with a window")
        names = {*GEOMETRY, "head_dim", "num_key_value_heads", "qk_rope_head_dim", "q_lora_rank"}
        if layers and set(layers[0]) - names:
            raise config.error(f"per_layer_config: wanted heads and widths alone; got {sorted(layers[0])}")
        own = {name: config.get(name) for name in names}
        local = {**own, **(layers[0] if layers else {})}
    if any(type(local[name]) is not int or local[name] < 1 for name in GEOMETRY):
        raise config.error(f"layers with a window: wanted heads and widths; got {str(local)[:120]}")
    if local["qk_rope_head_dim"] != rotated:
        got = f"{rotated} and {local['qk_rope_head_dim']}"
        raise config.error(f"qk_rope_head_dim: wanted one number for all layers; got {got}")
    return local


def _bases(config: HfConfig) -> dict[str, Value]:
    """Bases of both ropes, which nothing scales; how much of a head rotates follows from its widths."""
    config.only("rope_scaling")
    stated = config.get("rope_parameters")
    whole, local = config.get("rope_theta"), config.get("swa_rope_theta")
    whole = THETA if whole is None else whole
    local = whole if stated is not None else LOCAL_THETA if local is None else local
    bases = {WHOLE: whole, LOCAL: local}
    kinds = (WHOLE, LOCAL, "full_attention")
    if stated is None:
        ropes: dict[str, Any] = {kind: {} for kind in bases}
    elif isinstance(stated, dict) and any(kind in stated for kind in kinds):
        ropes = {WHOLE: stated.get(WHOLE) or stated.get("full_attention"), LOCAL: stated.get(LOCAL)}
    else:
        ropes = dict.fromkeys(bases, stated)
    for kind, rope in ropes.items():
        left = dict(rope) if isinstance(rope, dict) else {}
        left.pop("partial_rotary_factor", None)
        base = left.pop("rope_theta", bases[kind])
        if left.pop("rope_type", "default") != "default" or left:
            raise config.error(f"rope_parameters of {kind}: wanted none but a base; got {str(rope)[:80]}")
        bases[kind] = config.checked_number(f"rope_theta of {kind}", base)
    return {"rope.freq_base": bases[WHOLE], "rope.freq_base_swa": bases[LOCAL]}


def _sizes(config: HfConfig, name: str) -> LatentSizes:
    """Those of the layer that our name of a tensor says."""
    windowed = _windowed(config, config.size("block_count"))
    index = int(name.split(".")[1])
    if index >= len(windowed) or not windowed[index]:
        return sizes_of_all(config, name)
    local = _local(config)
    return LatentSizes(
        local["num_attention_heads"], local["qk_nope_head_dim"], local["v_head_dim"], local["kv_lora_rank"]
    )


def _rescaled(config: HfConfig, name: str, tensor: Tensor) -> Tensor:
    """Times what the class multiplies the normed latent with."""
    factor = sqrt(config.size("embedding_length") / max(tensor.n_elements, 1))
    return calculated(tensor, name, lambda values: values * type(values[0])(factor))


def _first(config: HfConfig, width: int) -> tuple[int, int]:
    """The first dimensions of a head rotate."""
    return 0, config.size("qk_rope_head_dim")


FAMILY = Family(
    model_types=("dots3_note_text",),
    architecture="dots3note",
    keys=keys,
    names={
        **DEEPSEEK.names,
        "layers.{}.self_attn.q_a_layernorm": To("blk.{}.attn_q_a_norm", _rescaled),
        "layers.{}.self_attn.kv_a_layernorm": To("blk.{}.attn_kv_a_norm", _rescaled),
        "layers.{}.self_attn.k_rope_only_layernorm": "blk.{}.attn_k_norm",
        "layers.{}.self_attn.g_proj": "blk.{}.attn_gate",
        "layers.{}.self_attn.kv_b_proj": (
            To("blk.{}.attn_k_b", half(keys_of_heads=True, sizes=_sizes)),
            To("blk.{}.attn_v_b", half(keys_of_heads=False, sizes=_sizes)),
        ),
        "layers.{}.self_attn.indexer.wq_b": To(
            "blk.{}.indexer.attn_q_b", paired("index_n_heads", _first, back=True)
        ),
        "layers.{}.self_attn.indexer.wk": To("blk.{}.indexer.attn_k", paired("", _first, back=True)),
        "layers.{}.self_attn.indexer.k_norm": To("blk.{}.indexer.k_norm", paired("", _first, back=True)),
        "layers.{}.self_attn.indexer.weights_proj": "blk.{}.indexer.proj",
    },
    ignored=("head_dim", "num_key_value_heads", "shared_experts_intermediate_size",
             "moe_shared_expert_intermediate_size", "first_k_dense_replace", "moe_layer_freq"),
    defaults=dict.fromkeys((*OLDER, "use_dsa", "sliding_window_size")),
)  # fmt: skip
