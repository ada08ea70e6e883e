"""Norms and gates whose result goes straight into packed int8 activations (`graphml_cpu.packed`).

The numbers are those of the plain kernel followed by `quantize_q8`. Groups of 128 elements are shared among
the threads; a thread that begins inside a row takes the row's sum of squares for itself, which costs less
than a barrier. Knows nothing of weights.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu import packed
from graphml_cpu.compiler import Address, Dim, Float, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.formulas import GLU, pick
from graphml_cpu.kernels.norm import rms_factor
from graphml_cpu.kernels.quantize import F32x16, quantize_block
from graphml_cpu.kernels.share import Number, Vector, share
from graphml_cpu.simd import f32, load, load_partial

_HALF = packed.BLOCK // 2


@inline
def _load_some(address: int, count: int) -> Vector:
    """Up to 16 elements, zero in the lanes past `count`."""
    if count >= _HALF:
        return load(F32x16, address)
    return load_partial(F32x16, address, max(count, 0))


@inline
def _normed(x: int, weight: int, at: int, count: int, factor: Number) -> Vector:
    v = _load_some(x + at, count) * factor
    if weight != 0:
        v = v * _load_some(weight + at, count)
    return v


def make_rms_norm_quantize() -> Callable[..., None]:
    """out = packed int8 of x / sqrt(mean(x * x) + eps) * weight; the weight float32 [n] or address 0.

    x float32 [rows, n], rows `x_stride` bytes apart; out [rows, packed_bytes(n)].
    """

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
            for block in range(packed.GROUP // packed.BLOCK):
                i = first + block * packed.BLOCK
                low = _normed(source, weight, i * 4, n - i, factor)
                high = _normed(source, weight, (i + _HALF) * 4, n - i - _HALF, factor)
                quantize_block(low, high, out + unit * packed.GROUP_BYTES, block)

    return rms_norm_quantize


def make_glu_quantize(op: str) -> Callable[..., None]:
    """out = packed int8 of act(gate) * up, an op of `formulas.GLU`.

    gate and up float32 [rows, n], rows so many bytes apart; out [rows, packed_bytes(n)].
    """
    function = pick(GLU, op, "glu_quantize")

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
            for block in range(packed.GROUP // packed.BLOCK):
                i = first + block * packed.BLOCK
                low = function(_load_some(left + i * 4, n - i), _load_some(right + i * 4, n - i))
                i += _HALF
                high = function(_load_some(left + i * 4, n - i), _load_some(right + i * 4, n - i))
                quantize_block(low, high, out + unit * packed.GROUP_BYTES, block)

    return glu_quantize
