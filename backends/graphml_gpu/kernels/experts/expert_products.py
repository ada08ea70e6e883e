"""Products with the matrices of chosen experts: pair by pair, or tile by tile of the pairs of one expert.

A pair is a token with one of the experts that it chose; pairs are numbered as the ids [tokens, used] lie.
For many pairs `expert_tiles` makes a list: which pairs are an expert's, in tiles of so many. Pairs of an
expert that there is not get zeros, from the first of a stack's dispatches. Knows nothing of graphs.
"""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.grid import group_number
from graphml_gpu.kernels.products.mat_mul import load_quad, load_weights, multiply, padded
from graphml_gpu.kernels.products.mat_vec_rows import Teams, first_row, float_products
from graphml_gpu.kernels.weight_rows import WeightRowFormat, row_bytes
from graphml_gpu.language import (
    Kernel,
    Read,
    Update,
    Write,
    atomic_add,
    barrier,
    f32,
    f32x4,
    group_id,
    i32,
    kernel,
    local_id,
    private_array,
    select,
    shared_array,
    u32,
    unroll,
)


def make_mat_vec_id(ELEMENT: Any) -> Kernel:
    """The kernel for activations in a buffer of f32 or, in rows of a multiple of four, of f32x4."""

    @kernel
    def mat_vec_id(
        w: Read[u32], table: Read[u32], x: Read[ELEMENT], ids: Read[i32], y: Write[f32],
        n: u32, k: u32, pairs: u32, per_x: u32, first: u32, count: u32, experts: u32,
        *, FORMAT: str, ALIGN: int, EVEN: bool = True, GROUP: int = 64, LANES: int = 64, ROWS: int = 1,
    ) -> None:  # fmt: skip
        """y [pairs, n] = the matrices of experts ids [pairs] times x [pairs / per_x, k]; a pair a place in z.

        w [count, n, k] are those of experts `first` and on, of so many; pairs of others are left alone.
        """
        form, teams = WeightRowFormat(FORMAT, ALIGN, EVEN), Teams(GROUP, LANES, ROWS, 1)
        row = first_row(group_number(), teams)
        pair = group_id(2)
        expert = u32(ids[pair]) - first
        begin = min(expert, count - 1) * n * row_bytes(k, FORMAT)
        sums = float_products(w, table, x, begin, row, pair // per_x, n, k, pairs, form, ELEMENT, teams)
        missing = first == 0 and expert >= experts
        if local_id(0) % LANES == 0 and (expert < count or missing):
            for r in unroll(ROWS):
                here = row + r * teams.count
                if here < n:
                    y[pair * n + here] = select(missing, 0.0, sums[r])

    return mat_vec_id


@kernel
def expert_tiles(
    ids: Read[i32], plan: Update[u32], pairs: u32, most_pairs: u32, tiles: u32,
    *, EXPERTS: int, TILE: int, GROUP: int = 256,
) -> None:  # fmt: skip
    """Sort pairs by expert and cut each expert's into tiles. One group.

    plan: the pairs, an expert's beside each other [most_pairs], then for each of the tiles its expert, and
    the first and the last + 1 of its pairs among these; a tile without pairs has 0 and 0. Pairs of an expert
    that there is not are those of number EXPERTS.
    """
    counts = shared_array(u32, EXPERTS + 1)
    me = local_id(0)
    for expert in range(me, EXPERTS + 1, GROUP):
        counts[expert] = 0
    barrier()
    for pair in range(me, pairs, GROUP):
        atomic_add(counts, min(u32(ids[pair]), EXPERTS), 1)
    barrier()
    if me == 0:
        begin = u32(0)
        slot = most_pairs
        for expert in range(0, EXPERTS + 1):
            end = begin + counts[expert]
            counts[expert] = begin
            for start in range(begin, end, TILE):
                plan[slot] = expert
                plan[slot + 1] = start
                plan[slot + 2] = min(start + TILE, end)
                slot += 3
            begin = end
        for rest in range(slot, most_pairs + 3 * tiles, 3):
            plan[rest] = 0
            plan[rest + 1] = 0
            plan[rest + 2] = 0
    barrier()
    for pair in range(me, pairs, GROUP):
        place = atomic_add(counts, min(u32(ids[pair]), EXPERTS), 1)
        plan[place] = pair


def make_mat_mul_id(ELEMENT: Any) -> Kernel:
    """The kernel for activations in a buffer of f32 or, in rows of a multiple of four, of f32x4."""

    @kernel
    def mat_mul_id(
        w: Read[u32], table: Read[u32], x: Read[ELEMENT], plan: Read[u32], y: Write[f32],
        n: u32, k: u32, most_pairs: u32, per_x: u32, first: u32, count: u32, experts: u32,
        *, FORMAT: str, ALIGN: int, EVEN: bool = True, GROUP: int = 64, ACROSS: int = 8, TILE_ROWS: int = 32,
        TILE_COLUMNS: int = 32, UNITS: int = 2,
    ) -> None:  # fmt: skip
        """As `mat_vec_id`, by the plan of `expert_tiles`. Groups: tiles of rows, tiles of pairs."""
        form = WeightRowFormat(FORMAT, ALIGN, EVEN)
        row, entry = group_id(0) * TILE_ROWS, most_pairs + 3 * group_id(1)
        expert, pair, end = plan[entry] - first, plan[entry + 1], plan[entry + 2]
        begin = min(expert, count - 1) * n * row_bytes(k, FORMAT)
        weights = shared_array(f32, UNITS * 16 * TILE_ROWS)
        stride_x = padded(TILE_COLUMNS)
        activations = shared_array(f32, UNITS * 16 * stride_x)
        tall, wide, down = TILE_ROWS // ACROSS, TILE_COLUMNS // (GROUP // ACROSS), GROUP // ACROSS
        sums = private_array(f32, tall * wide)
        for i in unroll(tall * wide):
            sums[i] = 0.0
        for unit in range(0, (k + 15) // 16, UNITS):
            load_weights(w, table, weights, begin, row, n, unit, k, form, GROUP, TILE_ROWS, UNITS)
            for task in range(local_id(0), TILE_COLUMNS * UNITS * 4, GROUP):
                slot, here = task % (UNITS * 4), task // (UNITS * 4)
                source = plan[min(pair + here, max(end, 1) - 1)] // per_x
                load_quad(x, activations, source * k, here, slot, unit, k, form, ELEMENT, stride_x)
            barrier()
            multiply(weights, activations, sums, UNITS * 16, GROUP, ACROSS, TILE_ROWS, TILE_COLUMNS)
            barrier()
        missing = first == 0 and expert >= experts
        for j in unroll(wide):
            for i in unroll(tall):
                here = row + local_id(0) % ACROSS + i * ACROSS
                there = pair + local_id(0) // ACROSS + j * down
                if here < n and there < end and (expert < count or missing):
                    y[plan[there] * n + here] = select(missing, 0.0, sums[j * tall + i])

    return mat_mul_id


MAT_VEC_ID = {True: make_mat_vec_id(f32x4), False: make_mat_vec_id(f32)}
MAT_MUL_ID = {True: make_mat_mul_id(f32x4), False: make_mat_mul_id(f32)}
"""By whether rows of activations are read as f32x4, that is, have a multiple of four elements."""
