"""What a token sees in a paged cache, and what the kernels of attention share: bounds, cells, biases, chunks.

Knows positions, sequences and block tables; knows nothing of queries, keys or softmax.
"""

from __future__ import annotations

import math

from graphml_cpu.frontend import inline
from graphml_cpu.kernels.share import Number, Vector
from graphml_cpu.simd import F32, exp, extract, f32, load_i32, splat, tanh

_SMALLEST_CHUNK = 64


@inline
def visible(
    row: int, positions: int, sequences: int, lengths: int, window: int, causal: int, n_sequences: int,
    room: int,
) -> tuple[int, int]:  # fmt: skip
    """The positions [first, end) that token `row` attends to, none for a sequence outside: int32 arrays.

    room: the positions that a row of the block table, of one of n_sequences, has cells for.
    window: the last so many, of which it is one, or unless `causal` half of them on either side of it; below
    0: those of its chunk of -window; 0: no limit.
    """
    position, sequence = load_i32(positions + row * 4), load_i32(sequences + row * 4)
    first, end = 0, position + 1
    if not 0 <= sequence < n_sequences:
        return 0, 0
    back = window - 1
    if causal == 0:
        end = load_i32(lengths + sequence * 4)
        back = window // 2
        if window > 0:
            end = min(end, position + back + 1)
    if window > 0:
        first = max(0, position - back)
    if window < 0:
        first = position - position % -window
    end = max(min(end, room), 0)
    return min(first, end), end


@inline
def log2_of(power: int) -> int:
    """The exponent of a power of two."""
    shift = 0
    while (1 << shift) < power:
        shift += 1
    return shift


@inline
def listed_cell(position: int, table: int, shift: int) -> int:
    """The cell of a position; `table` is the sequence's row of the block table, blocks of 2**shift cells."""
    block = load_i32(table + (position >> shift) * 4)
    return (block << shift) + (position & ((1 << shift) - 1))


@inline
def cell_of(position: int, table: int, shift: int, n_cells: int) -> int:
    """The cell of a position; for one that the cache does not have `n_cells`, a row of zeros."""
    cell = listed_cell(position, table, shift)
    if not 0 <= cell < n_cells:
        cell = n_cells
    return cell


@inline
def chunk_size(length: int, max_chunks: int) -> int:
    """Positions per chunk of a token that sees `length`: of the length alone, so threads change nothing."""
    size = _SMALLEST_CHUNK
    while size * max_chunks < length:
        size *= 2
    return size


@inline
def exp_of(x: Number) -> Number:
    """e**x of one number."""
    return extract(exp(splat(F32, x)), 0)


@inline
def slope_of(head: int, n_head: int, max_bias: Number) -> Number:
    """ALiBi's slope of a head, as ggml takes it from `max_bias`; 0 without."""
    if max_bias <= f32(0.0):
        return f32(0.0)
    power = 1
    while power * 2 <= n_head:
        power *= 2
    exponent = max_bias / f32(power) * f32(head + 1)
    if head >= power:
        exponent = max_bias / f32(power) * f32(0.5) * f32(2 * (head - power) + 1)
    return exp_of(exponent * f32(-math.log(2)))


@inline
def capped(scores: Vector, scale: Number, softcap: Number) -> Vector:
    """Scores times `scale`, bent below `softcap` unless that is 0."""
    scores = scores * scale
    if softcap > f32(0.0):
        scores = tanh(scores * (f32(1.0) / softcap)) * softcap
    return scores


@inline
def is_alone(row: int, rows: int, sequences: int) -> bool:
    """Whether the rows before and after it are of other sequences."""
    own = load_i32(sequences + row * 4)
    if row > 0 and load_i32(sequences + (row - 1) * 4) == own:
        return False
    return not (row + 1 < rows and load_i32(sequences + (row + 1) * 4) == own)


@inline
def takes(row: int, taken: int, alone: int, rows: int, sequences: int) -> bool:
    """Whether decoding computes a row: any (alone 0), or one of the first so many that stand alone."""
    return alone == 0 or (taken < alone and is_alone(row, rows, sequences))
