"""IQ3_S: 8 groups of 32 with a scale of 4 bits, vectors of 4 with an index of 9 bits and their signs."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq3_s_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._codebook import make_codebook
from graphml_cpu.kernels.encoders._lanes import LANES, store_half
from graphml_cpu.kernels.encoders._packing import pack_neighbours
from graphml_cpu.kernels.encoders._signed_vectors import (
    Groups,
    make_signed_vectors,
    store_indices,
    store_signs,
)
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import f32

HALVES = (0,)
_LOW, _NINTH, _SIGNS, _SCALES = 2, 66, 74, 106
# ggml's, for less error once the groups' scales are rounded
_SCALE_FACTOR = 1.033


def make_encode(weighted: bool) -> Any:
    """See the package."""
    book = make_codebook(iq3_s_codebook(), shells=3)
    groups = Groups(32, tries=9, step=0.2, smallest=0.0, even=False, again=True)
    search, scale_levels, signs, entries = make_signed_vectors(book, groups, weighted)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        store_half(out, search(x, weights, scratch) * f32(_SCALE_FACTOR))
        store_indices(scratch + entries, 1, out + _LOW * LANES, out + _NINTH * LANES)
        store_signs(scratch + signs, out + _SIGNS * LANES)
        pack_neighbours(scratch + scale_levels, 4, out + _SCALES * LANES)

    return encode
