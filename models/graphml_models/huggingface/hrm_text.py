"""HRM-Text: `HrmTextForCausalLM`; all attention is causal, as its class has it without `token_type_ids`."""

from __future__ import annotations

from graphml.loading.huggingface.config import MOST_LAYERS, HfConfig, Value
from graphml.loading.huggingface.family import Change, Family, To, rows, unchanged
from graphml_models.huggingface._names import TOP, llama_keys


def keys(config: HfConfig) -> dict[str, Value]:
    """As of llama; a layer of either stack counts once for each time that a token goes through it."""
    stack, high, low = _stack(config), config.size("H_cycles"), config.size("L_cycles")
    total = stack * high * (low + 1)
    if not stack or not high or not low or total > MOST_LAYERS:
        wanted = f"wanted numbers above 0, and at most {MOST_LAYERS} layers; got {stack}, {high}, {low}"
        raise config.error(f"num_layers_per_stack, H_cycles, L_cycles: {wanted}")
    config.follows("num_layers_per_stack", stack)
    config.follows("num_hidden_layers", total)
    spread = config.number("initializer_range")
    scale = config.number("embedding_scale", 1 / spread if spread else 0.0)
    if scale == 0:
        raise config.error("embedding_scale: wanted a number, or initializer_range, whose inverse it is")
    metadata = llama_keys(config)
    return {
        **metadata,
        "attention.head_count_kv": metadata["attention.head_count"],
        "hrm.layers_per_stack": stack,
        "hrm.h_cycles": high,
        "hrm.l_cycles": low,
        "embedding_scale": scale,
    }


def _stack(config: HfConfig) -> int:
    """Layers of a stack, which older files have as the number of all."""
    return config.size("hrm.layers_per_stack", 0) or config.size("block_count")


def _both(theirs: str, *ours: tuple[str, Change]) -> dict[str, tuple[To, ...]]:
    """A tensor of layers of the low stack, and of the high one, which is behind it."""
    return {
        f"{module}_module.layers.{{}}.{theirs}": tuple(
            To(f"blk.{{}}.{name}", change, behind) for name, change in ours
        )
        for module, behind in (("L", None), ("H", _stack))
    }


def _parts(*ours: str) -> tuple[tuple[str, Change], ...]:
    """Equal parts of a matrix of several."""

    def at(i: int) -> Change:
        return rows(lambda _: (1, len(ours), i, i + 1))

    return tuple((name, at(i)) for i, name in enumerate(ours))


WHOLE = {
    "self_attn.gate_proj": "attn_gate", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
NAMES = {
    **_both("attn.gqkv_proj", *_parts("attn_gate", "attn_q", "attn_k", "attn_v")),
    **_both("mlp.gate_up_proj", *_parts("ffn_gate", "ffn_up")),
}
for theirs, ours in WHOLE.items():
    NAMES |= _both(theirs, (ours, unchanged))
FAMILY = Family(
    model_types=("hrm_text",),
    architecture="hrm_text",
    keys=keys,
    names={**TOP, **NAMES, "z_L_init": "hrm.z_l_init"},
    ignored=("L_bp_cycles", "prefix_lm"),
)
