"""IQ2_S: 16 groups of 16 with a scale of 4 bits, vectors of 8 with an index of 10 bits and their signs."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_s_codebook

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
        store_indices(scratch + entries, 2, out + _LOW * LANES, out + _HIGH * LANES)
        store_signs(scratch + signs, out + _SIGNS * LANES)
        pack_neighbours(scratch + scale_levels, 8, out + _SCALES * LANES)

    return encode
