"""Products of weights with many rows of activations of 8 bits: tiles in shared memory, four products at once.

A workgroup makes TILE_ROWS x TILE_COLUMNS results. For UNITS groups of 32 at a time it unpacks the numbers of
its weights to shared memory, with those of the activations beside them, then each invocation multiplies its
rows and columns. Rows of activations are as `int8_rows` says. Knows nothing of graphs.
"""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels.formats import reader
from graphml_gpu.kernels.products.int8_rows import PLANES, group_product, scale_and_sum
from graphml_gpu.kernels.products.mat_mul import store_tile
from graphml_gpu.kernels.weight_rows import WeightRowFormat, row_bytes
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    Update,
    barrier,
    f32,
    function,
    group_id,
    kernel,
    local_id,
    private_array,
    shared_array,
    u32,
    u32x4,
    unroll,
)

FACTORS = 3
"""Numbers beside each group of weights: the scales of its halves and its offset."""


@function
def load_weights(
    w: Any, table: Read[u32], numbers: Array[u32x4], factors: Array[f32], row: u32, n: u32, group: u32,
    k: u32, FORMAT: WeightRowFormat, GROUP: int, TILE_ROWS: int, UNITS: int,
) -> None:  # fmt: skip
    """Groups `group` and on of rows `row` and on: numbers [2 * UNITS, TILE_ROWS], factors [3 * UNITS]."""
    integers = reader(FORMAT.name).integers
    assert integers is not None, FORMAT.name
    parts = reader(FORMAT.name).block_elements // (32 * integers.groups)
    last = k // (32 * integers.groups) - 1
    for task in range(local_id(0), TILE_ROWS * (UNITS // integers.groups), GROUP):
        here, which = task % TILE_ROWS, task // TILE_ROWS
        wanted = group // integers.groups + which
        unit = min(wanted, last)
        start = min(row + here, n - 1) * row_bytes(k, FORMAT.name)
        at = start + unit // parts * reader(FORMAT.name).block_bytes
        unpacked = integers.unpack(w, table, at, unit % parts, FORMAT.align)
        for g in unroll(integers.groups):
            slot = which * integers.groups + g
            for half in unroll(2):
                numbers[(2 * slot + half) * TILE_ROWS + here] = unpacked[5 * g + half]
            for i in unroll(FACTORS):
                factor = unpacked[5 * g + 2 + i]
                factors[(FACTORS * slot + i) * TILE_ROWS + here] = f32(0.0) if wanted > last else factor


@function
def load_activations(
    x: Read[u32], numbers: Array[u32x4], scales: Array[f32], column: u32, columns: u32, group: u32, k: u32,
    FORMAT: WeightRowFormat, GROUP: int, TILE_COLUMNS: int, UNITS: int,
) -> None:  # fmt: skip
    """The groups that those of the weights meet: numbers and scales with sums, [2 * UNITS, TILE_COLUMNS]."""
    integers = reader(FORMAT.name).integers
    assert integers is not None, FORMAT.name
    each = reader(FORMAT.name).block_elements // 32
    groups, per = k // 32, integers.groups
    for task in range(local_id(0), TILE_COLUMNS * UNITS, GROUP):
        slot, here = task % UNITS, task // UNITS
        unit = min(group // per + slot // per, groups // per - 1)
        parts = each // per
        place = min(column + here, columns - 1) * (PLANES * groups) + unit // parts * each
        place += integers.place(unit % parts, slot % per)
        numbers[2 * slot * TILE_COLUMNS + here] = u32x4(
            x[place], x[place + groups], x[place + 2 * groups], x[place + 3 * groups]
        )
        numbers[(2 * slot + 1) * TILE_COLUMNS + here] = u32x4(
            x[place + 4 * groups], x[place + 5 * groups], x[place + 6 * groups], x[place + 7 * groups]
        )
        d, total = scale_and_sum(x[place + 8 * groups])
        scales[2 * slot * TILE_COLUMNS + here] = d
        scales[(2 * slot + 1) * TILE_COLUMNS + here] = total


@function
def multiply(
    weights: Array[u32x4], factors: Array[f32], activations: Array[u32x4], scales: Array[f32],
    sums: Array[f32], HALVES: bool, GROUP: int, ACROSS: int, TILE_ROWS: int, TILE_COLUMNS: int, UNITS: int,
) -> None:  # fmt: skip
    """Add the tiles' product to an invocation's sums, ACROSS rows and GROUP // ACROSS columns apart."""
    down = GROUP // ACROSS
    tall = TILE_ROWS // ACROSS
    numbers = private_array(u32x4, 2 * tall)
    own = private_array(f32, FACTORS * tall)
    across, along = local_id(0) % ACROSS, local_id(0) // ACROSS
    for slot in range(0, UNITS):
        for i in unroll(tall):
            for half in unroll(2):
                numbers[2 * i + half] = weights[(2 * slot + half) * TILE_ROWS + across + i * ACROSS]
            for j in unroll(FACTORS):
                own[FACTORS * i + j] = factors[(FACTORS * slot + j) * TILE_ROWS + across + i * ACROSS]
        for j in unroll(TILE_COLUMNS // down):
            x_first = activations[2 * slot * TILE_COLUMNS + along + j * down]
            x_last = activations[(2 * slot + 1) * TILE_COLUMNS + along + j * down]
            d = scales[2 * slot * TILE_COLUMNS + along + j * down]
            total = scales[(2 * slot + 1) * TILE_COLUMNS + along + j * down]
            for i in unroll(tall):
                sums[j * tall + i] += group_product(
                    numbers[2 * i], numbers[2 * i + 1], own[FACTORS * i], own[FACTORS * i + 1],
                    own[FACTORS * i + 2], x_first, x_last, d, total, HALVES,
                )  # fmt: skip


def make_mat_mul_int8(WORD: Any) -> Kernel:
    """The kernel for weights in a buffer of u32 or, where blocks are whole units of 16 bytes, of u32x4."""

    @kernel
    def mat_mul_int8(
        w: Read[WORD], table: Read[u32], x: Read[u32], bias: Read[f32], residual: Read[f32],
        y: Update[f32], n: u32, k: u32, columns: u32, first: u32, stride: u32,
        *, FORMAT: str, ALIGN: int, EVEN: bool = True, GROUP: int = 128, ACROSS: int = 16,
        TILE_ROWS: int = 64, TILE_COLUMNS: int = 64, UNITS: int = 2, BIAS: bool = False,
        RESIDUAL: bool = False, GLU: str = "",
    ) -> None:  # fmt: skip
        """As `mat_mul`; UNITS: groups of 32 at a time, some times those that the format unpacks at once."""
        assert WORD is not None  # so that the annotations know it
        form = WeightRowFormat(FORMAT, ALIGN, EVEN)
        integers: Any = reader(FORMAT).integers
        row, column = group_id(0) * TILE_ROWS, group_id(1) * TILE_COLUMNS
        weights = shared_array(u32x4, 2 * UNITS * TILE_ROWS)
        factors = shared_array(f32, FACTORS * UNITS * TILE_ROWS)
        activations = shared_array(u32x4, 2 * UNITS * TILE_COLUMNS)
        scales = shared_array(f32, 2 * UNITS * TILE_COLUMNS)
        tall, wide = TILE_ROWS // ACROSS, TILE_COLUMNS // (GROUP // ACROSS)
        sums = private_array(f32, tall * wide)
        for i in unroll(tall * wide):
            sums[i] = 0.0
        for group in range(0, k // 32, UNITS):
            load_weights(w, table, weights, factors, row, n, group, k, form, GROUP, TILE_ROWS, UNITS)
            load_activations(
                x, activations, scales, column, columns, group, k, form, GROUP, TILE_COLUMNS, UNITS
            )
            barrier()
            multiply(
                weights, factors, activations, scales, sums,
                integers.halves, GROUP, ACROSS, TILE_ROWS, TILE_COLUMNS, UNITS,
            )  # fmt: skip
            barrier()
        store_tile(
            sums, bias, residual, y, row, column, n, columns, first, stride,
            GROUP, ACROSS, TILE_ROWS, TILE_COLUMNS, BIAS, RESIDUAL, GLU,
        )  # fmt: skip

    return mat_mul_int8


MAT_MUL_INT8 = {"int8": make_mat_mul_int8(u32), "wide int8": make_mat_mul_int8(u32x4)}
"""By how weights are read: see `mat_vec.MAT_VEC`."""
