"""Hunyuan dense: `HunYuanDenseV1ForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names
from graphml.loading.huggingface.rope import rope_keys, stated_rope
from graphml_models._rope import stretched_base
from graphml_models.huggingface._names import LLAMA

HEAD_NORMS: Names = {
    "layers.{}.self_attn.query_layernorm": "blk.{}.attn_q_norm",
    "layers.{}.self_attn.key_layernorm": "blk.{}.attn_k_norm",
}


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with norms of heads behind the rope, whose base an `alpha` stretches."""
    config.activation("silu")
    for name in ("use_cla", "position_embedding_xdrope", "use_mla"):
        config.only(name, False)
    for name in ("use_qk_norm", "use_rotary_pos_emb"):
        config.only(name, True)
    metadata = decoder_keys(config)
    rope = stated_rope(config)
    if rope.get("alpha") is None:
        return metadata | rope_keys(config, metadata)
    kind = rope.get("rope_type", rope.get("type"))
    if kind not in ("dynamic", "xdrope"):  # of HunyuanOCR, older
        raise config.error(f"rope: wanted alpha with the type dynamic; got {str(kind)[:40]!r}")
    base = rope.get("rope_theta", config.get("rope_theta"))
    alpha = config.checked_number("rope alpha", rope["alpha"])
    if alpha <= 0:
        raise config.error(f"rope alpha: wanted a number above 0; got {alpha}")
    n_rot = int(str(metadata["attention.key_length"]))
    base = config.checked_number("rope_theta", 10000.0 if base is None else base)
    stretched = stretched_base(base, alpha, n_rot)  # as GGUF files of experts have it: no key of alpha
    return {**metadata, "rope.dimension_count": n_rot, "rope.freq_base": stretched}


FAMILY = Family(
    model_types=("hunyuan_v1_dense",),
    architecture="hunyuan-dense",
    keys=keys,
    names={**LLAMA, **HEAD_NORMS},
)
