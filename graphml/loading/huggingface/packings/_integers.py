"""Matrices of whole numbers q with a zero z and a scale s for each group of inputs: s (q - z).

That is Q4_0 where all q - z are -8 to 7, else Q8_0, both exact and without more memory than needed, as long
as a block of 32 inputs is in one group and float16 holds the scales; float32 otherwise. Knows whole numbers;
nothing of how a packing stores them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphml.loading.huggingface.packed_matrix import PackedMatrix
from graphml.loading.huggingface.packings._parts import Floats, StoredParts
from graphml.weights import Tensor
from graphml.weights.filemap import Bytes

Whole = NDArray[np.integer[Any]]
BLOCK = 32
HALF = 8  # added to what a block of Q4_0 holds
WORD = 32  # bits


def grouped(
    parts: StoredParts,
    numbers: Callable[[], Whole],
    extremes: tuple[int, int],
    zeros: Whole,
    scales: Floats,
    groups: NDArray[np.intp],
) -> Tensor:
    """The matrix [out, in].

    numbers: computes q [out, in], of which extremes are the least and the most; zeros, scales: [out, groups];
    groups: the group of each input, [in].
    """
    shape = (len(scales), len(groups))
    blocks = groups[: shape[1] // BLOCK * BLOCK].reshape(-1, BLOCK)
    in_blocks = shape[1] % BLOCK == 0 and bool((blocks == blocks[:, :1]).all())
    least, most = extremes[0] - int(zeros.max()), extremes[1] - int(zeros.min())
    if not in_blocks or not _is_half(scales) or least < -128 or most > 127:
        dtype = "f32"
    else:
        dtype = "q4_0" if least >= -HALF and most < HALF else "q8_0"

    def compute() -> Bytes:
        differences = numbers().astype(np.int16) - zeros.astype(np.int16)[:, groups]
        if dtype == "f32":
            return (scales[:, groups] * differences.astype(np.float32)).reshape(-1).view(np.uint8)
        return _blocks(differences, scales[:, groups[::BLOCK]], dtype)

    return PackedMatrix.of(parts.name, dtype, shape, compute)


def bit_numbers(words: NDArray[np.int32], bits: int, straddles: bool = True) -> NDArray[np.uint8]:
    """The numbers in rows of words, [rows, words] to [rows, numbers], lowest bits first.

    straddles: a number may begin in one word and end in the next; else the upper bits of a word are unused.
    """
    common = math.gcd(bits, WORD) if straddles else bits
    period, count = (bits // common, WORD // common) if straddles else (1, WORD // bits)
    rows, n_word = words.shape
    padded = np.zeros((rows, -(-n_word // period) * period), np.uint32)
    padded[:, :n_word] = words.view(np.uint32)
    grouped_words = padded.reshape(rows, -1, period)
    numbers = np.empty((*grouped_words.shape[:2], count), np.uint8)
    for i in range(count):
        word, shift = divmod(i * bits, WORD)
        number = grouped_words[:, :, word] >> np.uint32(shift)
        if shift + bits > WORD:
            number |= grouped_words[:, :, word + 1] << np.uint32(WORD - shift)
        numbers[:, :, i] = number & np.uint32((1 << bits) - 1)
    return numbers.reshape(rows, -1)[:, : n_word * WORD // bits if straddles else n_word * count]


def in_order(parts: StoredParts, end: str, n_in: int, n_group: int) -> NDArray[np.intp]:
    """The group of each input as a part has them, checked."""
    groups = parts.whole_numbers(end, ("I32", "I64"), (n_in,)).astype(np.intp)
    if n_in and not 0 <= int(groups.min()) <= int(groups.max()) < n_group:
        raise parts.wrong(end, f"groups 0 to {n_group - 1}", f"{groups.min()} to {groups.max()}")
    return groups


def _is_half(scales: Floats) -> bool:
    """Whether float16 holds them exactly, as blocks need."""
    with np.errstate(over="ignore"):
        return bool((scales.astype(np.float16) == scales).all())


def _blocks(differences: NDArray[np.int16], scales: Floats, dtype: str) -> Bytes:
    """Rows of Q4_0 or Q8_0 blocks: a float16 scale, then 32 numbers."""
    n_out = len(differences)
    head = np.ascontiguousarray(scales.astype("<f2")).view(np.uint8).reshape(n_out, -1, 2)
    if dtype == "q8_0":
        body = differences.astype(np.int8).view(np.uint8).reshape(n_out, -1, BLOCK)
    else:  # the lower bits of 16 bytes are the first half of a block
        halves = (differences + HALF).astype(np.uint8).reshape(n_out, -1, 2, BLOCK // 2)
        body = np.bitwise_or(halves[:, :, 0], np.left_shift(halves[:, :, 1], 4), dtype=np.uint8)
    return np.concatenate([head, body], axis=2).reshape(-1)
