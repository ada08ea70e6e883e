"""Methods of positions: rotary embedding, and factors that grow with the position."""

from __future__ import annotations

from graphml.ir.argument_kinds import Count, Index, Positive, RopeMode
from graphml.ir.arguments import method
from graphml.ir.node import Node
from graphml.ir.ops import position as ops
from graphml.ir.step import StepBuilder


@method
def rope_table(
    g: StepBuilder,
    n_rot: Count,
    factors: Node | None = None,
    freq_base: Positive = 10000.0,
    freq_scale: Positive = 1.0,
    ext_factor: float = 0.0,
    attn_factor: float = 1.0,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    n_ctx_orig: Index = 0,
    positions: Node | None = None,
    name: str | None = None,
) -> Node:
    """Cosines and sines of this step's positions, f32 [T, n_rot / 2, 2], for `rope` (arXiv:2104.09864).

    Pair i rotates by position * freq_base ** (-2i / n_rot) * freq_scale. n_rot: how many dimensions of a head
    rotate, an even number. freq_base: theta, `rope_theta` in config.json. factors: f32 [n_rot / 2], divisors
    of the frequencies (Llama 3, LongRoPE). attn_factor: of cosines and sines alike.

    ext_factor above 0: YaRN (arXiv:2309.00071), the share of unscaled frequencies; beta_fast and beta_slow
    are its limits, in rotations within n_ctx_orig tokens. positions: others i32 [T] than the step's.

    >>> g.rope_table(16, freq_base=500000.0)
    %rope_table: f32[T<=8, 8, 2] = rope_table(%positions)
    """
    return g.record(
        ops.rope_table,
        *(node for node in (g.positions if positions is None else positions, factors) if node is not None),
        name=name,
        n_rot=n_rot,
        freq_base=freq_base,
        freq_scale=freq_scale,
        ext_factor=ext_factor,
        attn_factor=attn_factor,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        n_ctx_orig=n_ctx_orig,
    )


@method
def rope(g: StepBuilder, x: Node, table: Node, mode: RopeMode, name: str | None = None) -> Node:
    """x f32 [T, head, d] rotated by its positions; dimensions from n_rot on stay as they are.

    table: from `rope_table`, with n_rot of at most d. mode: `norm` rotates pairs of neighbours, `neox` pairs
    of halves. GGUF files of Llama are stored for `norm`, most others for `neox`.

    >>> g.rope(q, g.rope_table(16), "neox")
    %rope: f32[T<=8, 4, 16] = rope(%q, %rope_table)
    """
    return g.record(ops.rope, x, table, name=name, mode=mode)


@method
def position_scale(
    g: StepBuilder, factor: float, step: Count, offset: int = 0, name: str | None = None
) -> Node:
    """1 + factor * log(1 + (position + offset) // step) of this step's tokens, f32 [T, 1, 1].

    A factor of queries that grows with the text (arXiv:2501.19399, Llama 4).

    >>> g.mul(q, g.position_scale(0.1, 8192))
    %mul: f32[T<=8, 4, 16] = mul(%q, %position_scale)
    """
    return g.record(ops.position_scale, g.positions, name=name, factor=factor, step=step, offset=offset)
