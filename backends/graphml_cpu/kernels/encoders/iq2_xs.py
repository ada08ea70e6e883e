"""IQ2_XS: 16 groups of 16 with a scale of 4 bits, vectors of 8 with an index of 9 bits and 7 signs."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_xs_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._codebook import index_of, make_codebook
from graphml_cpu.kernels.encoders._lanes import F32_BYTES, I32, LANES, SMALLEST, U8, store_half
from graphml_cpu.kernels.encoders._packing import pack_neighbours, store_word
from graphml_cpu.kernels.encoders._signed_vectors import Groups, make_signed_vectors
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, load

HALVES = (0,)
_WORDS, _SCALES = 2, 66


def make_encode(weighted: bool) -> Any:
    """See the package."""
    book = make_codebook(iq2_xs_codebook(), shells=2)
    groups = Groups(16, tries=9, step=0.1, smallest=SMALLEST, even=True, mean_factor=1.0)
    search, scale_levels, signs, entries = make_signed_vectors(book, groups, weighted)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        store_half(out, search(x, weights, scratch))
        for i in range(32):
            index = index_of(load(I32, scratch + entries + i * F32_BYTES))
            word = index | ((convert(I32, load(U8, scratch + signs + i * LANES)) & 127) << 9)
            store_word(word, 2, out + (_WORDS + 2 * i) * LANES)
        pack_neighbours(scratch + scale_levels, 8, out + _SCALES * LANES)

    return encode
