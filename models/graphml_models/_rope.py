"""Rope settings as GGUF metadata states them, shared by every architecture with rotary positions."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphml.ir.language import Builder
from graphml.ir.long_texts import LongerThan, long_rows
from graphml.ir.node import Node
from graphml.loading.architecture import Keys, Layer, Tensors


@dataclass(frozen=True)
class Rope:
    """Arguments of `Builder.rope_table`; n_rot: dimensions that rotate.

    scaled: whether the table is, and not of n_rot and freq_base alone, without factors; first_factors:
    whether of the file's factors the first n_rot / 2 alone are read, where it has more; plain: whether
    `rope_freqs` are passed over; long: what has
    LongRoPE's factors for long texts: texts, or contexts, of more than so many tokens; None: nothing has.
    """

    n_rot: int
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_ctx_orig: int = 0
    scaled: bool = True
    first_factors: bool = False
    plain: bool = False
    long: LongerThan | None = None

    def table(self, g: Builder, weights: Tensors | Layer | None = None) -> Node:
        """The step's table, with the frequency factors of `weights` where the file has them.

        They are llama 3's, or LongRoPE's (Ding et al. 2024, arXiv:2402.13753), which has others for the rows
        of what is `long`.
        """
        if weights is None or not self.scaled:
            return self._table(g, None)
        short, long = (weights.get(f"rope_factors_{name}") for name in ("short", "long"))
        common = None if self.plain else weights.get("rope_freqs")
        if common is not None or self.long is None or short is None or long is None:
            return self._table(g, short if common is None else common)
        rows_T11, short_table = long_rows(g, *self.long), self._table(g, short)
        further = g.mul(g.sub(self._table(g, long, "rope_table_long"), short_table), rows_T11)
        return g.add(short_table, further, "rope_table_mixed")

    def at(self, g: Builder, positions: Node, name: str, factors: Node | None = None) -> Node:
        """The table of other positions, i32 [T]; factors: of the frequencies."""
        return self._table(g, factors, name, positions)

    def _table(
        self, g: Builder, factors: Node | None, name: str | None = None, positions: Node | None = None
    ) -> Node:
        rope = self if self.scaled else Rope(self.n_rot, self.freq_base)
        if factors is not None and self.first_factors:
            factors = g.columns(factors, 0, self.n_rot // 2)
        return g.rope_table(
            rope.n_rot,
            factors,
            freq_base=rope.freq_base,
            freq_scale=rope.freq_scale,
            ext_factor=rope.ext_factor,
            attn_factor=rope.attn_factor,
            beta_fast=rope.beta_fast,
            beta_slow=rope.beta_slow,
            n_ctx_orig=rope.n_ctx_orig,
            positions=positions,
            name=name,
        )


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
    by_text = keys.boolean("rope.scaling.by_text", False)
    rope = Rope(
        n_rot,
        freq_base=keys.number("rope.freq_base", 10000.0),
        attn_factor=keys.number("rope.scaling.attn_factor", 1.0),
        long=LongerThan("text" if by_text else "context", original) if n_ctx > original else None,
    )
    if kind not in ("none", "linear", "yarn", "longrope", "dynamic"):
        raise keys.unsupported("rope.scaling.type", "none, linear, yarn, longrope or dynamic")
    if factor < 0:
        raise keys.unsupported("rope.scaling.factor", "a number above 0, or 0 for none")
    if kind == "dynamic" and factor and 0 < original < n_ctx:
        times = factor * n_ctx / original - (factor - 1.0)
        rope = replace(rope, freq_base=stretched_base(rope.freq_base, times, n_rot))
    elif kind in ("linear", "yarn", "longrope") and factor:
        rope = replace(rope, freq_scale=1.0 / factor)
    extrapolated = keys.number("rope.scaling.yarn_ext_factor", -1.0)  # below 0: not said
    if extrapolated < 0.0:
        extrapolated = float(kind == "yarn")
    if not extrapolated:
        return rope
    return replace(
        rope,
        ext_factor=extrapolated,
        n_ctx_orig=original,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def read_rounded(keys: Keys, rope: Rope) -> Rope:
    """The rope, or that of a folder whose yarn has exact bounds with rounded ones, as GGUF files have it.

    Where its `rope.scaling.rounded` is overridden, as `graphml convert` proposes.
    """
    factor, original, attention, fast, slow = keys.numbers("rope.scaling.rounded_yarn", 5, 0.0)
    if not keys.boolean("rope.scaling.rounded", False):
        return rope
    return replace(
        rope, freq_scale=1.0 / factor, ext_factor=1.0, attn_factor=attention, beta_fast=fast, beta_slow=slow,
        n_ctx_orig=int(original), plain=True,
    )  # fmt: skip


def stretched_base(base: float, times: float, n_rot: int) -> float:
    """The base with which the slowest of n_rot / 2 pairs turns slower by `times` (NTK-aware scaling)."""
    return base * times ** (n_rot / (n_rot - 2)) if n_rot > 2 else base
