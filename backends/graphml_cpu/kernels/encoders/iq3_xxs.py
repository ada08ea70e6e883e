"""IQ3_XXS: 8 groups of 32 with a scale of 4 bits, vectors of 4 with an index of 8 bits, 7 signs of two."""

from __future__ import annotations

from typing import Any

from graphml_quant.codebooks import iq3_xxs_codebook

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.encoders._codebook import index_of, make_codebook
from graphml_cpu.kernels.encoders._lanes import F32_BYTES, I32, LANES, U8, store_half
from graphml_cpu.kernels.encoders._packing import store_word
from graphml_cpu.kernels.encoders._signed_vectors import Groups, make_signed_vectors, word_of_signs
from graphml_cpu.kernels.share import Vector
from graphml_cpu.simd import convert, f32, load, store

HALVES = (0,)
_INDICES, _WORDS = 2, 66
# ggml's, for less error once the groups' scales are rounded
_SCALE_FACTOR = 1.0125


def make_encode(weighted: bool) -> Any:
    """See the package."""
    book = make_codebook(iq3_xxs_codebook(), shells=2)
    groups = Groups(32, tries=15, step=0.2, smallest=1e-8, even=True)
    search, scale_levels, signs, entries = make_signed_vectors(book, groups, weighted)

    @inline
    def encode(x: int, weights: int, row_mean: Vector, scratch: int, out: int) -> None:
        store_half(out, search(x, weights, scratch) * f32(_SCALE_FACTOR))
        for i in range(64):
            index = index_of(load(I32, scratch + entries + i * F32_BYTES))
            store(out + (_INDICES + i) * LANES, convert(U8, index))
        for group in range(8):
            scale_level = load(U8, scratch + scale_levels + group * LANES)
            word = word_of_signs(scratch + signs + group * 4 * LANES, scale_level)
            store_word(word, 4, out + (_WORDS + group * 4) * LANES)

    return encode
