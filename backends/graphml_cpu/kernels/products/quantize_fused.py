"""Norms and gates whose result goes straight into packed activations (`graphml_cpu.packed`).

The numbers are those of the plain kernel followed by `quantize`. Groups of 128 elements are shared among
the threads; a thread that begins inside a row takes the row's sum of squares for itself, which costs less
than a barrier. Knows nothing of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphml_cpu import packed
from graphml_cpu.compiler import Address, Dim, Float, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.elementwise.formulas import GLU, pick
from graphml_cpu.kernels.norms.norm import rms_factor
from graphml_cpu.kernels.products.quantize import HALF, load_some, make_pack_group
from graphml_cpu.kernels.share import Number, Vector, share
from graphml_cpu.simd import f32


@inline
def _normed(x: int, weight: int, first: int, n: int, half: int, factor: Number) -> Vector:
    """Half `half` of the group from element `first` on."""
    at = first + half * HALF
    v = load_some(x + at * 4, n - at) * factor
    if weight != 0:
        v = v * load_some(weight + at * 4, n - at)
    return v


def make_pack_normed(layout: str) -> Callable[..., Any]:
    """An inline function `pack(x, weight, first, n, factor, out)`: one group of a normed row.

    It is the group of row x from element `first` on, times factor and weight (0: none), packed at `out`.
    """
    pack_group = make_pack_group(layout)

    @inline
    def pack_normed(x: int, weight: int, first: int, n: int, factor: Number, out: int) -> None:
        pack_group(
            _normed(x, weight, first, n, 0, factor),
            _normed(x, weight, first, n, 1, factor),
            _normed(x, weight, first, n, 2, factor),
            _normed(x, weight, first, n, 3, factor),
            _normed(x, weight, first, n, 4, factor),
            _normed(x, weight, first, n, 5, factor),
            _normed(x, weight, first, n, 6, factor),
            _normed(x, weight, first, n, 7, factor),
            out,
        )

    return pack_normed


def make_rms_norm_quantize(layout: str) -> Callable[..., None]:
    """out = x / sqrt(mean(x * x) + eps) * weight, packed; the weight float32 [n] or address 0.

    x float32 [rows, n], rows `x_stride` bytes apart; out [rows, packed_bytes(n)].
    """
    pack_normed = make_pack_normed(layout)

    def rms_norm_quantize(
        ith: Int, nth: Int, x: Address, weight: Address, out: Address, n: Int, eps: Float, x_stride: Int,
        rows: Dim,
    ) -> None:  # fmt: skip
        groups = (n + packed.GROUP - 1) // packed.GROUP
        begin, end = share(ith, nth, rows * groups)
        done = -1
        factor: Number = f32(0.0)
        for unit in range(begin, end):
            row = unit // groups
            first = (unit - row * groups) * packed.GROUP
            source = x + row * x_stride
            if row != done:
                factor = rms_factor(source, n, eps)
                done = row
            pack_normed(source, weight, first, n, factor, out + unit * packed.GROUP_BYTES)

    return rms_norm_quantize


def make_glu_quantize(op: str, layout: str) -> Callable[..., None]:
    """out = act(gate) * up, packed; an op of `formulas.GLU`.

    gate and up float32 [rows, n], rows so many bytes apart; out [rows, packed_bytes(n)].
    """
    function, pack_group = pick(GLU, op, "glu_quantize"), make_pack_group(layout)

    @inline
    def gated(gate: int, up: int, first: int, n: int, half: int) -> Vector:
        at = first + half * HALF
        return function(load_some(gate + at * 4, n - at), load_some(up + at * 4, n - at))

    def glu_quantize(
        ith: Int, nth: Int, gate: Address, up: Address, out: Address, n: Int, gate_stride: Int,
        up_stride: Int, rows: Dim,
    ) -> None:  # fmt: skip
        groups = (n + packed.GROUP - 1) // packed.GROUP
        begin, end = share(ith, nth, rows * groups)
        for unit in range(begin, end):
            row = unit // groups
            first = (unit - row * groups) * packed.GROUP
            left, right = gate + row * gate_stride, up + row * up_stride
            pack_group(
                gated(left, right, first, n, 0),
                gated(left, right, first, n, 1),
                gated(left, right, first, n, 2),
                gated(left, right, first, n, 3),
                gated(left, right, first, n, 4),
                gated(left, right, first, n, 5),
                gated(left, right, first, n, 6),
                gated(left, right, first, n, 7),
                out + unit * packed.GROUP_BYTES,
            )

    return glu_quantize
