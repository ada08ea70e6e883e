"""The rope's fields of config.json, as an imported file reads them.

Knows config.json and a writer's tables; nothing of names of tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from graphml.authoring.importing.writing import Writer
from graphml.loading.huggingface.config_names import SIZES
from graphml.loading.huggingface.rope import KNOWN, LAYER_KINDS, PART

ROPE_FIELDS = (
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_emb_base",
    "rope_base",
    "rope_local_base_freq",
    "original_max_position_embeddings",
)


def computes_with_positions(writer: Writer) -> bool:
    """Whether numbers of positions are values of the file, besides ropes and tables."""
    everything = [*writer.found.before, *(expr for layer in writer.found.layers for expr in layer)]
    return any(expr.op == "positions" for expr in everything)


def other_rope_fields(writer: Writer) -> tuple[str, ...]:
    """Numbers beside the rope's that the model itself reads, as for scores that grow with the position."""
    config = writer.description.config
    if not computes_with_positions(writer):
        return ()
    ropes = (config.get("rope_scaling"), config.get("rope_parameters"))
    rope = next((fields for fields in ropes if isinstance(fields, dict) and fields), {})
    return tuple(name for name, value in rope.items() if name not in KNOWN and isinstance(value, int | float))


def of_positions(writer: Writer) -> dict[str, Any]:
    """Numbers of the rope that a file may hold that computes with positions: of far ones nothing is seen."""
    config = writer.description.config
    name = next(
        (name for name in ("rope_scaling", "rope_parameters") if isinstance(config.get(name), dict)), ""
    )
    if not name or not computes_with_positions(writer):
        return {}
    numbers = {key: value for key, value in config[name].items() if type(value) in (int, float)}
    return {f"{name}.{key}": value for key, value in numbers.items() if key != "rope_theta"}


def rope_text(writer: Writer) -> tuple[str, str]:
    """The function that reads the rope's fields, and its call."""
    config = writer.description.config
    kinds = config.get("rope_parameters")
    near = kinds.get(LAYER_KINDS[1]) if isinstance(kinds, dict) else None
    by_kind = len(writer.tables) > 1 and isinstance(near, dict) and PART in near
    if by_kind or len({n_rot for n_rot, _, _ in writer.tables}) > 1:
        widths = f", widths={writer.rope_widths}" if writer.rope_widths else ""
        return "ropes_by_kind", f"ropes_by_kind(config, found, {{}}{widths})"
    others = other_rope_fields(writer)
    known = f", known={others!r}".replace("'", '"') if others else ""
    return "rope_keys", f"rope_keys(config, found{known})"


def rotating(writer: Writer) -> list[str]:
    """How many dimensions rotate, where no part of the heads says it."""
    config, n_rot = writer.description.config, writer.tables[0][0]
    if len({table[0] for table in writer.tables}) > 1:
        return []
    configs = [config, *(rope for name in ROPE_FIELDS if isinstance(rope := config.get(name), dict))]
    parts = [
        keys[name] for keys in configs for name in ("partial_rotary_factor", "rotary_pct") if keys.get(name)
    ]
    if parts or n_rot == writer.sizes[2]:
        return []
    name = next((name for name in SIZES["rope.dimension_count"] if config.get(name) == n_rot), "")
    read = f'config.size("{name}")' if name else str(n_rot)
    return [f'found["rope.dimension_count"] = {read}']


def base_by_layer(writer: Writer) -> list[str]:
    """The rope's base, where a list of config.json has it for each layer, and 0 for those without a rope."""
    if len(writer.tables) != 1 or len(writer.tables[0][2]) < 2:
        return []
    frequencies = writer.tables[0][2]
    turning = [any(expr.op == "rope" for expr in layer) for layer in writer.found.layers]
    for name, listed in writer.fields.config.items():
        numbers = isinstance(listed, list) and all(type(value) in (int, float) for value in listed)
        if numbers and "theta" in name and [bool(value) for value in listed] == turning:
            powers = [value ** (-1.0 / len(frequencies)) for value in listed if value]
            if np.allclose(powers, abs(frequencies[1]), rtol=1e-5, atol=0):
                return [f'found["rope.freq_base"] = config.single("{name}")']
    return []
