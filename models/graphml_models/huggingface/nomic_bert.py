"""Nomic Embed 1 and 1.5: `NomicBertModel`; fields of its own code on the hub, and of transformers 5."""

from __future__ import annotations

from graphml.loading.huggingface.config import LAYER_EPS, HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family, Names
from graphml.loading.huggingface.rope import rope_keys
from graphml_models.huggingface import bert

LAYERS: Names = {
    **{name: place for name, place in bert.EMBEDDINGS.items() if "position_embeddings" not in name},
    "emb_ln": "token_embd_norm",
    "encoder.layers.{}.norm1": "blk.{}.attn_output_norm",
    "encoder.layers.{}.norm2": "blk.{}.layer_output_norm",
    "encoder.layers.{}.mlp.fc2": "blk.{}.ffn_down",
}
"""What Jina Embeddings 3 shares, too."""


def keys(config: HfConfig) -> dict[str, Value]:
    """A rope of halves, no biases."""
    if config.activation("silu") != "silu":
        raise config.error("hidden_act: wanted silu")
    for name, wanted in (("rotary_emb_fraction", 1.0), ("rotary_emb_interleaved", False), ("causal", False),
                         ("prenorm", False), ("moe_every_n_layers", 0), ("rotary_scaling_factor", None),
                         ("rotary_emb_scale_base", None), ("parallel_block", False),
                         ("use_rms_norm", False), ("qkv_proj_bias", False),
                         ("mlp_fc1_bias", False), ("mlp_fc2_bias", False)):  # fmt: skip
        config.only(name, wanted)
    config.size("type_vocab_size")  # the tensor has the rows
    metadata = decoder_keys(config, eps=LAYER_EPS)
    return metadata | rope_keys(config, metadata, base=config.number("rotary_emb_base", 1000.0))


FAMILY = Family(
    model_types=("nomic_bert",),
    architecture="nomic-bert",
    keys=keys,
    names={
        **LAYERS, **bert.POOLER, **bert.MASKED,
        "encoder.layers.{}.attn.Wqkv": "blk.{}.attn_qkv",
        "encoder.layers.{}.attn.out_proj": "blk.{}.attn_output",
        "encoder.layers.{}.mlp.fc11": "blk.{}.ffn_up",
        "encoder.layers.{}.mlp.fc12": "blk.{}.ffn_gate",
        "layers.{}.self_attn.q_proj": "blk.{}.attn_q",
        "layers.{}.self_attn.k_proj": "blk.{}.attn_k",
        "layers.{}.self_attn.v_proj": "blk.{}.attn_v",
        "layers.{}.self_attn.o_proj": "blk.{}.attn_output",
        "layers.{}.post_attention_layernorm": "blk.{}.attn_output_norm",
        "layers.{}.mlp.gate_proj": "blk.{}.ffn_gate",
        "layers.{}.mlp.up_proj": "blk.{}.ffn_up",
        "layers.{}.mlp.down_proj": "blk.{}.ffn_down",
        "layers.{}.post_mlp_layernorm": "blk.{}.layer_output_norm",
    },
    logits=False,
)  # fmt: skip
