"""A residual sum and its root-mean-square norm in one: the sum goes to memory once and is normed while near.

x, y and `total` are float32 [rows, n], the weight float32 [n]. Rows are shared among the threads. The numbers
are those of `add` and then `rms_norm`, or `rms_norm_quantize`.
"""

from __future__ import annotations

from collections.abc import Callable

from graphml_cpu import packed
from graphml_cpu.compiler import Address, Dim, Float, Int
from graphml_cpu.frontend import inline
from graphml_cpu.kernels.norms.norm import rms_factor, write_normed
from graphml_cpu.kernels.products.quantize_fused import make_pack_normed
from graphml_cpu.kernels.share import share
from graphml_cpu.simd import F32, WIDTH, f32, load, load_partial, store, store_partial


@inline
def _add(x: int, y: int, total: int, n: int) -> None:
    whole = n - n % WIDTH
    for i in range(0, whole * 4, WIDTH * 4):
        store(total + i, load(F32, x + i) + load(F32, y + i))
    if whole < n:
        at, rest = whole * 4, n - whole
        store_partial(total + at, load_partial(F32, x + at, rest) + load_partial(F32, y + at, rest), rest)


def make_add_rms_norm() -> Callable[..., None]:
    """total = x + y; out = total / sqrt(mean(total * total) + eps) * weight, float32 [rows, n]."""

    def add_rms_norm(
        ith: Int, nth: Int, x: Address, y: Address, weight: Address, total: Address, out: Address, n: Int,
        eps: Float, rows: Dim,
    ) -> None:  # fmt: skip
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            at = row * n * 4
            _add(x + at, y + at, total + at, n)
            write_normed(out + at, n, total + at, weight, 0, f32(0.0), rms_factor(total + at, n, eps))

    return add_rms_norm


def make_add_rms_norm_quantize(layout: str) -> Callable[..., None]:
    """The same, but out [rows, packed_bytes(n)] is packed in one of `packed.LAYOUTS`."""
    pack_normed = make_pack_normed(layout)

    def add_rms_norm_quantize(
        ith: Int, nth: Int, x: Address, y: Address, weight: Address, total: Address, out: Address, n: Int,
        eps: Float, rows: Dim,
    ) -> None:  # fmt: skip
        groups = (n + packed.GROUP - 1) // packed.GROUP
        begin, end = share(ith, nth, rows)
        for row in range(begin, end):
            at = row * n * 4
            _add(x + at, y + at, total + at, n)
            factor = rms_factor(total + at, n, eps)
            for group in range(groups):
                to = out + (row * groups + group) * packed.GROUP_BYTES
                pack_normed(total + at, weight, group * packed.GROUP, n, factor, to)

    return add_rms_norm_quantize
