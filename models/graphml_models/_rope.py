"""Rope settings as GGUF metadata states them, shared by every architecture with rotary positions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from graphml.ir.language import Builder
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, Tensors


@dataclass(frozen=True)
class Rope:
    """n_rot: dimensions that rotate; scaling: attributes of the `rope_table` op; long: see `table`."""

    n_rot: int
    scaling: dict[str, Any] = field(default_factory=dict)
    long: bool = False

    def table(self, g: Builder, weights: Tensors | Layer) -> Node:
        """The step's table, with the file's frequency factors where it has them.

        They are llama 3's, or LongRoPE's (Ding et al. 2024, arXiv:2402.13753), which has others where the
        context is `long`: longer than the model was first trained for.
        """
        both = [weights.get(f"rope_factors_{name}") for name in ("short", "long")]
        return g.rope_table(self.n_rot, weights.get("rope_freqs") or both[self.long], **self.scaling)


def read_sections(keys: Keys) -> bool:
    """Whether pairs of dimensions are shared out among the axes of a picture and time.

    For text all axes count the same but a fourth, which stays 0: a file whose pairs reach it is refused.
    """
    key = "rope.dimension_sections"
    sections = keys.integers(key, 4) if keys.has(key) else [0]
    if any(sections[3:]) and sum(sections[:3]) < keys.integer("rope.dimension_count") // 2:
        raise keys.unsupported(key, "no rotating pair in the fourth section")
    return any(sections)


def read_rope(keys: Keys, head_dim: int, n_ctx: int) -> Rope:
    """Base, scaling and number of rotating dimensions, as in llama.cpp, which has no `dynamic` scaling.

    That of transformers takes its base from the length of the text; here it is the one for texts as long as
    the context, so that a token turns the same whatever follows it.
    """
    kind, n_rot = keys.text("rope.scaling.type", "linear"), keys.integer("rope.dimension_count", head_dim)
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 0.0))
    original = keys.integer("rope.scaling.original_context_length", n_ctx)
    scaling: dict[str, Any] = {
        "freq_base": keys.number("rope.freq_base", 10000.0),
        "attn_factor": keys.number("rope.scaling.attn_factor", 1.0),
    }
    if kind not in ("none", "linear", "yarn", "longrope", "dynamic"):
        raise keys.unsupported("rope.scaling.type", "none, linear, yarn, longrope or dynamic")
    if factor < 0:
        raise keys.unsupported("rope.scaling.factor", "a number above 0, or 0 for none")
    if kind == "dynamic" and factor and 0 < original < n_ctx:
        scaling["freq_base"] = stretched_base(
            scaling["freq_base"], factor * n_ctx / original - (factor - 1.0), n_rot
        )
    elif kind in ("linear", "yarn", "longrope") and factor:
        scaling["freq_scale"] = 1.0 / factor
    extrapolated = keys.number("rope.scaling.yarn_ext_factor", -1.0)  # below 0: not said
    if extrapolated < 0.0:
        extrapolated = float(kind == "yarn")
    if extrapolated:
        scaling |= {
            "ext_factor": extrapolated,
            "n_ctx_orig": original,
            "beta_fast": keys.number("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": keys.number("rope.scaling.yarn_beta_slow", 1.0),
        }
    return Rope(n_rot, scaling, long=n_ctx > original)


def stretched_base(base: float, times: float, n_rot: int) -> float:
    """The base with which the slowest of n_rot / 2 pairs turns slower by `times` (NTK-aware scaling)."""
    return base * times ** (n_rot / (n_rot - 2)) if n_rot > 2 else base
