"""MiniMax-01: `MiniMaxForCausalLM`, lightning attention and experts."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family
from graphml_models._hybrid import RECURRENT
from graphml_models.huggingface import mixtral
from graphml_models.huggingface._names import ATTENTION, expert_counts, llama_keys, no_window
from graphml_models.minimax_01 import MEMORY_EPS

KINDS = {"full_attention": False, "linear_attention": True}
PARTS = ("full_attn", "linear_attn", "mlp")


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama, with one factor of all residuals; layers with lightning attention by `layer_types`."""
    metadata = llama_keys(config)
    no_window(config, metadata) if config.get("sliding_window") is not None else None
    config.only("rotary_dim", metadata["attention.key_length"])  # of the authors' own code
    config.ignore("block_size")  # of the computation
    scale = config.number("full_attn_alpha_factor", 1.0)
    for part in PARTS:
        config.only(f"{part}_alpha_factor", scale)
        config.only(f"{part}_beta_factor", 1)
    count = int(str(metadata["block_count"]))
    linear = config.layered("layer_types", KINDS, count) or [bool(i % 2) for i in range(count)]
    memory: dict[str, Value] = {RECURRENT: linear, MEMORY_EPS: 1e-6}
    return {**metadata, **expert_counts(config), "residual_scale": scale, **memory}


FAMILY = Family(
    model_types=("minimax",),
    architecture="minimax-01",
    keys=keys,
    names={
        **mixtral.FAMILY.names,
        **ATTENTION,
        "layers.{}.self_attn.qkv_proj": "blk.{}.attn_qkv",
        "layers.{}.self_attn.output_gate": "blk.{}.attn_gate",
        "layers.{}.self_attn.norm": "blk.{}.attn_norm_2",
        "layers.{}.self_attn.out_proj": "blk.{}.attn_output",
        **dict.fromkeys(
            f"layers.{{}}.self_attn.{buffer}"
             for buffer in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
        ),
    },
    defaults={"rope_theta": 1e6},
)  # fmt: skip
