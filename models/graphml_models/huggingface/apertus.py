"""Apertus and its 1.5: `ApertusForCausalLM`, whose checkpoints have the numbers of xIELU as tensors."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value, decoder_keys
from graphml.loading.huggingface.family import Family
from graphml.loading.huggingface.rope import required_rope, rope_keys
from graphml_models.apertus import NUMBERS, PREFIX
from graphml_models.huggingface._names import ATTENTION, HEAD_NORMS, TOP


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with another activation and no gates."""
    config.activation("xielu")
    required_rope(config)
    metadata = decoder_keys(config)
    config.only("output_vocab_size", metadata["vocab_size"])  # of 1.5, whose logits may be of fewer tokens
    return metadata | rope_keys(config, metadata, base=12000000.0)


FAMILY = Family(
    model_types=("apertus", "apertus1p5_text"),
    architecture="apertus",
    keys=keys,
    names={
        **TOP, **ATTENTION, **HEAD_NORMS,
        "layers.{}.attention_layernorm": "blk.{}.attn_norm",
        "layers.{}.feedforward_layernorm": "blk.{}.ffn_norm",
        "layers.{}.mlp.up_proj": "blk.{}.ffn_up",
        "layers.{}.mlp.down_proj": "blk.{}.ffn_down",
        **{f"layers.{{}}.mlp.act_fn.{name}": f"blk.{{}}.{PREFIX}.{name}" for name in NUMBERS},
    },
    numbers={f"blk.{{}}.{PREFIX}.{name}": f"{PREFIX}.{name}" for name in NUMBERS},
)  # fmt: skip
