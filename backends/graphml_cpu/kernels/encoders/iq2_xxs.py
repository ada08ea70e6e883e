"""IQ2_XXS: 8 groups of 32 with a scale of 4 bits, vectors of 8 with an index of 8 bits and 7 signs."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq2_xxs_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._codebook import index_of, make_codebook
from graphml_cpu.kernels.encoders._lanes import F32_BYTES, I32, LANES, SMALLEST, U8, store_half
from graphml_cpu.kernels.encoders._packing import store_word
from graphml_cpu.kernels.encoders._positive import make_search
from graphml_cpu.kernels.encoders._signed_vectors import Groups, make_signed_vectors, word_of_signs
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, load, store

HALVES = (0,)
_WORDS = 2


def make_encode(weighted: bool) -> Any:
    """See the package."""
    book = make_codebook(iq2_xxs_codebook(), shells=2)
    start = make_search(32, 4, wraps=True)
    groups = Groups(
        32, tries=6, step=0.1, smallest=SMALLEST, even=True, again=True, mean_factor=1.0, start=start
    )
    search, scale_levels, signs, entries = make_signed_vectors(book, groups, weighted)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        store_half(out, search(x, weights, scratch))
        for group in range(8):
            to = out + (_WORDS + group * 8) * LANES
            for i in range(4):
                index = index_of(load(I32, scratch + entries + (group * 4 + i) * F32_BYTES))
                store(to + i * LANES, convert(U8, index))
            scale_level = load(U8, scratch + scale_levels + group * LANES)
            word = word_of_signs(scratch + signs + group * 4 * LANES, scale_level)
            store_word(word, 4, to + 4 * LANES)

    return encode
