"""What the kernels of attention share: queries, cells, scores, and how the context is split.

Knows one position or one row at a time, no tiles.
"""

from __future__ import annotations

import math

from graphml_gpu.language import (
    Array,
    Read,
    Vector,
    Write,
    exp,
    exp2,
    f32,
    f32x4,
    function,
    i32,
    local_id,
    select,
    tanh,
    u32,
)


@function
def load_query(q: Read[f32], row: u32, four: u32, WIDTH: int) -> Vector[float]:
    """Elements 4 * four to 4 * four + 3 of a query; 0 behind its end."""
    at = row * WIDTH + four * 4
    if WIDTH % 4 == 0:
        return f32x4(q[at], q[at + 1], q[at + 2], q[at + 3])
    left = WIDTH - four * 4
    return f32x4(
        q[at],
        q[at + 1] if left > 1 else 0.0,
        q[at + 2] if left > 2 else 0.0,
        q[at + 3] if left > 3 else 0.0,
    )


@function
def store_four(out: Write[f32], start: u32, four: u32, values: Vector[float], WIDTH: int) -> None:
    """Store elements 4 * four to 4 * four + 3 of a row of WIDTH that begins at `start`."""
    at, left = start + four * 4, WIDTH - four * 4
    out[at] = values.x
    if left > 1:
        out[at + 1] = values.y
    if left > 2:
        out[at + 2] = values.z
    if left > 3:
        out[at + 3] = values.w


@function
def slope(head: u32, bias_step: f32, lower: u32) -> f32:
    """ALiBi's penalty per position (Press et al. 2021, arXiv:2108.12409).

    lower: the largest power of two up to the number of heads; bias_step: the largest bias / lower.
    """
    plain = exp2(-bias_step * f32(head + 1))
    return select(head < lower, plain, exp2(-0.5 * bias_step * f32(2 * (i32(head) - i32(lower)) + 1)))


@function
def finish_score(
    product: f32, scale: f32, softcap: f32, slope: f32, distance: f32, SOFTCAP: bool, ALIBI: bool
) -> f32:
    """A score of the product of query and key, which lie `distance` apart."""
    score = product * scale
    if SOFTCAP:
        score = softcap * tanh(score / softcap)
    if ALIBI:
        score = score - slope * abs(distance)
    return score


@function
def weight_of(score: f32, top: f32) -> f32:
    """exp(score - top); 0 where nothing was seen yet or nothing but minus infinity."""
    return select(top == -math.inf, 0.0, exp(score - top))


@function
def cell_of(table: Read[i32], row: u32, position: u32, n_cells: u32, BLOCK: int) -> u32:
    """The cell of a position of a sequence whose list of blocks begins at `row`.

    n_cells, where states have a row of zeros, for a cell that the cache does not have.
    """
    block = min(u32(table[row + position // BLOCK]), n_cells // BLOCK + 1)
    return min(block * BLOCK + position % BLOCK, n_cells)


@function
def find_cells(
    cells: Array[u32], table: Read[i32], row: u32, start: u32, end: u32, n_cells: u32,
    BLOCK: int, TILE: int, GROUP: int,
) -> None:  # fmt: skip
    """The cells of positions from start on, of a sequence whose list of blocks begins at `row`."""
    for i in range(local_id(0), TILE, GROUP):
        cells[i] = cell_of(table, row, min(start + i, end - 1), n_cells, BLOCK)


@function
def list_number(sequences: Read[i32], token: u32, n_sequences: u32) -> u32:
    """Which row of the block table is a token's: the first for a sequence outside, which sees nothing."""
    sequence = u32(sequences[token])
    return select(sequence < n_sequences, sequence, 0)


@function
def split_size(length: u32, splits: u32, LEAST: int) -> u32:
    """Positions that each of some workgroups takes, but for the last ones."""
    return max((length + splits - 1) // splits, LEAST)


@function
def seen(
    sequences: Read[i32], lengths: Read[i32], token: u32, place: i32, window: u32, n_sequences: u32,
    room: u32, WINDOW: bool, CHUNK: bool, CAUSAL: bool,
) -> tuple[u32, u32]:  # fmt: skip
    """The first position that a token at `place` sees and the one after the last.

    room: the positions that a row of the block table, of one of n_sequences, has cells for; a token of
    another sequence sees none. WINDOW: of the last `window`, or unless CAUSAL of half as many on either side;
    CHUNK: of its chunk of so many.
    """
    back = window - 1 if CAUSAL else window // 2
    position = u32(max(place, 0))
    first, end = u32(0), select(place < 0, 0, position + 1)
    if not CAUSAL:
        end = u32(max(lengths[list_number(sequences, token, n_sequences)], 0))
        if WINDOW:
            reached = max(min(place, 0x3FFFFFFF), -0x3FFFFFFF) + i32(back) + 1
            end = min(end, u32(max(reached, 0)))
    if CHUNK:
        first = position - position % window
    if WINDOW:
        first = select(position > back, position - back, 0)
    end = select(u32(sequences[token]) < n_sequences, min(end, room), 0)
    return min(first, end), end


@function
def one_for_none(first: u32, end: u32) -> f32:
    """1 where no position is seen, else 0: what a sum of weights needs so that zeros can be divided by it."""
    return select(first < end, f32(0.0), f32(1.0))
