"""Granite with windows and sinks: `GraniteSWAForCausalLM`."""

from __future__ import annotations

from graphml.loading.huggingface.config import HfConfig, Value
from graphml.loading.huggingface.family import Family, Names, To, as_float32
from graphml_models.huggingface import granite

SINKS: Names = {"layers.{}.self_attn.sinks": To("blk.{}.attn_sinks.weight", as_float32)}
KINDS = {"sliding_attention": True, "full_attention": False}


def keys(config: HfConfig) -> dict[str, Value]:
    """As of Granite; of layers, which have a window and which have positions, all on one base."""
    metadata = granite.keys(config)
    count = int(str(metadata["block_count"]))
    windowed = config.layered("layer_types", KINDS, count)
    windowed = [i % 4 != 0 for i in range(count)] if windowed is None else windowed
    window = config.window()
    if any(windowed) and not window:
        raise config.error("sliding_window: wanted a number of tokens for layers with a window; got null")
    bases = config.get("layer_rope_theta")
    bases = [metadata["rope.freq_base"]] * count if bases is None else bases
    if not isinstance(bases, list) or len(bases) != count:
        raise config.error(f"layer_rope_theta: wanted {count} numbers; got {str(bases)[:60]}")
    bases = [config.checked_number("layer_rope_theta", base) for base in bases]
    stated = {base for base in bases if base}
    if len(stated) > 1 or any(base < 0 for base in stated):
        raise config.error(f"layer_rope_theta: wanted one base above 0, and 0; got {sorted(stated)[:8]}")
    return {
        **metadata,
        **({"rope.freq_base": stated.pop()} if stated else {}),
        "attention.rope_pattern": [int(base != 0) for base in bases],
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [int(has_window) for has_window in windowed],
    }


FAMILY = Family(
    model_types=("granite_swa",),
    architecture="granite_swa",
    keys=keys,
    names={**granite.FAMILY.names, **SINKS},
    defaults={"tie_word_embeddings": True},
)  # fmt: skip
