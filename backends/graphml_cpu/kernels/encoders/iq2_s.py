"""IQ2_S: 16 groups of 16 with a scale of 4 bits, vectors of 8 with an index of 10 bits and their signs."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_s_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._codebook import index_of, make_codebook
from graphml_cpu.kernels.encoders._lanes import F32_BYTES, I32, LANES, U8, store_half
from graphml_cpu.kernels.encoders._signed_vectors import (
    Groups,
    make_signed_vectors,
    store_nibbles,
    store_signs,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, f32, load, store, zero

HALVES = (0,)
_LOW, _SIGNS, _HIGH, _SCALES = 2, 34, 66, 74
# ggml's, for less error once the groups' scales are rounded
_SCALE_FACTOR = 0.9875


def make_encode(weighted: bool) -> Any:
    """See the package."""
    book = make_codebook(iq2_s_codebook(), shells=1)
    groups = Groups(16, tries=9, step=0.1, smallest=1e-8, even=False, mean_part=0.25)
    search, scale_levels, signs, entries = make_signed_vectors(book, groups, weighted)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        store_half(out, search(x, weights, scratch) * f32(_SCALE_FACTOR))
        for byte in range(8):
            high = zero(I32)
            for i in range(4):
                index = index_of(load(I32, scratch + entries + (byte * 4 + i) * F32_BYTES))
                store(out + (_LOW + byte * 4 + i) * LANES, convert(U8, index))
                high |= (index >> 8) << (2 * i)
            store(out + (_HIGH + byte) * LANES, convert(U8, high))
        store_signs(scratch + signs, out + _SIGNS * LANES)
        store_nibbles(scratch + scale_levels, 8, out + _SCALES * LANES)

    return encode
