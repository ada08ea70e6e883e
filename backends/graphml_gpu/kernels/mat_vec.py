"""Products of weights with few rows of activations: each weight is unpacked once, in registers.

A workgroup has GROUP invocations; LANES of them share a row of weights, unit by unit, and sum up at the end
(one lane: no exchange at all, which suits devices that are processors). Each such team works at ROWS rows,
GROUP // LANES rows apart, and at COLUMNS rows of activations, so that both are read once for all of these.
Knows nothing of graphs.
"""

from __future__ import annotations

from typing import Any

from graphml_gpu.kernels import formulas
from graphml_gpu.kernels.rows import place, quad_of, row_bytes, unpacked
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    Update,
    Write,
    barrier,
    cluster_sum,
    dot,
    f32,
    f32x4,
    function,
    group_id,
    has_subgroups,
    kernel,
    local_id,
    num_groups,
    private_array,
    shared_array,
    subgroup_id,
    subgroup_lane,
    subgroup_size,
    subgroup_size_min,
    subgroup_sum,
    u32,
    unroll,
)
from graphml_gpu.language.helpers import halves


@function
def products(
    w: Read[u32],
    table: Read[u32],
    x: Any,
    begin: u32,
    row: u32,
    column: u32,
    n: u32,
    k: u32,
    columns: u32,
    FORMAT: str,
    ALIGN: int,
    EVEN: bool,
    ELEMENT: Any,
    GROUP: int,
    LANES: int,
    ROWS: int,
    COLUMNS: int,
) -> Array[f32]:
    """Rows `row` + r * teams of w [n, k] times rows `column` + c of x [columns, k]: [ROWS * COLUMNS].

    All lanes of a team get them. Rows and columns beyond the last stand for the last. begin: w's byte.
    """
    teams = GROUP // LANES
    sums = private_array(f32, ROWS * COLUMNS)
    for i in unroll(ROWS * COLUMNS):
        sums[i] = 0.0
    values = private_array(f32x4, ROWS * 4)
    for unit in range(local_id(0) % LANES, (k + 15) // 16, LANES):
        for r in unroll(ROWS):
            start = begin + min(row + r * teams, n - 1) * row_bytes(k, FORMAT)
            quads = unpacked(w, table, start, unit, k, FORMAT, ALIGN, EVEN)
            for quad in unroll(4):
                values[4 * r + quad] = quads[quad]
        for c in unroll(COLUMNS):
            start = min(column + c, columns - 1) * k
            for quad in unroll(4):
                four = quad_of(x, start, place(unit, quad, FORMAT), k, EVEN, ELEMENT)
                for r in unroll(ROWS):
                    sums[r * COLUMNS + c] += dot(values[4 * r + quad], four)
    sum_over_lanes(sums, GROUP, LANES, ROWS * COLUMNS)
    return sums


@function
def sum_over_lanes(sums: Array[f32], GROUP: int, LANES: int, COUNT: int) -> None:
    """Give all lanes of a team the sums of theirs: all COUNT of them between the same barriers."""
    if LANES == 1 or (has_subgroups() and subgroup_size_min() >= LANES):
        for i in unroll(COUNT):
            sums[i] = cluster_sum(sums[i], LANES)
    elif has_subgroups() and LANES == GROUP:
        most = GROUP // subgroup_size_min()
        partial = shared_array(f32, COUNT * most)
        for i in unroll(COUNT):
            one = subgroup_sum(sums[i])
            if subgroup_lane() == 0:
                partial[i * most + subgroup_id()] = one
        barrier()
        subgroups = (GROUP + subgroup_size() - 1) // subgroup_size()
        for i in unroll(COUNT):
            total = partial[i * most]
            for other in range(1, subgroups):
                total += partial[i * most + other]
            sums[i] = total
        barrier()
    else:
        everyone = shared_array(f32, COUNT * GROUP)
        me = local_id(0)
        for i in unroll(COUNT):
            everyone[i * GROUP + me] = sums[i]
        barrier()
        for step in unroll(halves(LANES)):
            if me % LANES < step:
                for i in unroll(COUNT):
                    everyone[i * GROUP + me] += everyone[i * GROUP + me + step]
            barrier()
        for i in unroll(COUNT):
            sums[i] = everyone[i * GROUP + me // LANES * LANES]
        barrier()


@function
def group_number() -> u32:
    """The group's place in a grid that is folded where it is long."""
    return group_id(0) + group_id(1) * num_groups(0)


@function
def store(
    sums: Array[f32],
    bias: Read[f32],
    residual: Read[f32],
    y: Any,
    row: u32,
    column: u32,
    n: u32,
    columns: u32,
    first: u32,
    begin: u32,
    stride: u32,
    GROUP: int,
    LANES: int,
    ROWS: int,
    COLUMNS: int,
    BIAS: bool,
    RESIDUAL: bool,
) -> None:
    """y[begin + column * stride + row] = sum + bias[first + row] + residual; one lane a team does it."""
    if local_id(0) % LANES == 0:
        for r in unroll(ROWS):
            for c in unroll(COLUMNS):
                here = row + r * (GROUP // LANES)
                if here < n and column + c < columns:
                    at = begin + (column + c) * stride + here
                    total = sums[r * COLUMNS + c]
                    if BIAS:
                        total += bias[first + here]
                    if RESIDUAL:
                        total += residual[at]
                    y[at] = total


def make_mat_vec(ELEMENT: Any) -> Kernel:
    """The kernel for activations in a buffer of f32 or, in rows of a multiple of four, of f32x4."""

    @kernel
    def mat_vec(
        w: Read[u32],
        table: Read[u32],
        x: Read[ELEMENT],
        bias: Read[f32],
        residual: Read[f32],
        y: Write[f32],
        n: u32,
        k: u32,
        columns: u32,
        first: u32,
        stride: u32,
        *,
        FORMAT: str,
        ALIGN: int,
        EVEN: bool = True,
        GROUP: int = 64,
        LANES: int = 64,
        ROWS: int = 1,
        COLUMNS: int = 1,
        BIAS: bool = False,
        RESIDUAL: bool = False,
    ) -> None:
        """Rows `first` and on of a matrix of `stride`, w [n, k]: y [columns, stride] = w x + bias + residual.

        x [columns, k], bias [stride], residual as y. COLUMNS columns for each group's place in z.
        """
        row = group_number() * (GROUP // LANES * ROWS) + local_id(0) // LANES
        column = group_id(2) * COLUMNS
        sums = products(
            w, table, x, u32(0), row, column, n, k, columns,
            FORMAT, ALIGN, EVEN, ELEMENT, GROUP, LANES, ROWS, COLUMNS,
        )  # fmt: skip
        store(
            sums, bias, residual, y, row, column, n, columns, first, first, stride,
            GROUP, LANES, ROWS, COLUMNS, BIAS, RESIDUAL,
        )  # fmt: skip

    return mat_vec


@function
def product_of_several(
    w: Read[u32],
    table: Read[u32],
    x: Any,
    bias: Read[f32],
    y: Any,
    group: u32,
    n: u32,
    k: u32,
    columns: u32,
    first: u32,
    begin: u32,
    FORMAT: str,
    ALIGN: int,
    EVEN: bool,
    ELEMENT: Any,
    GROUP: int,
    LANES: int,
    ROWS: int,
    COLUMNS: int,
    BIAS: bool,
) -> None:
    """One of the products of `mat_vecs`, of which this is group number `group`."""
    row = group * (GROUP // LANES * ROWS) + local_id(0) // LANES
    column = group_id(2) * COLUMNS
    sums = products(
        w, table, x, u32(0), row, column, n, k, columns,
        FORMAT, ALIGN, EVEN, ELEMENT, GROUP, LANES, ROWS, COLUMNS,
    )  # fmt: skip
    store(
        sums, bias, bias, y, row, column, n, columns, first, begin, n,
        GROUP, LANES, ROWS, COLUMNS, BIAS, False,
    )  # fmt: skip


def make_mat_vecs(ELEMENT: Any) -> Kernel:
    """The same for two or three matrices of one width that meet the same activations."""

    @kernel
    def mat_vecs(
        w_0: Read[u32],
        w_1: Read[u32],
        w_2: Read[u32],
        table: Read[u32],
        x: Read[ELEMENT],
        bias: Read[f32],
        y: Write[f32],
        n_0: u32,
        n_1: u32,
        n_2: u32,
        k: u32,
        columns: u32,
        begin_0: u32,
        begin_1: u32,
        begin_2: u32,
        *,
        FORMAT_0: str,
        FORMAT_1: str,
        FORMAT_2: str,
        ALIGN_0: int,
        ALIGN_1: int,
        ALIGN_2: int,
        EVEN: bool = True,
        GROUP: int = 64,
        LANES: int = 64,
        ROWS: int = 1,
        COLUMNS: int = 1,
        BIAS: bool = False,
        COUNT: int = 3,
    ) -> None:
        """Results [columns, n_i] from elements begin_i of y on; bias: all of them in a row.

        The groups of the first matrix come first, then those of the next. COUNT: 2 or 3 matrices.
        """
        per_group = GROUP // LANES * ROWS
        group = group_number()
        end_0 = (n_0 + per_group - 1) // per_group
        end_1 = end_0 + (n_1 + per_group - 1) // per_group
        if group < end_0:
            product_of_several(
                w_0, table, x, bias, y, group, n_0, k, columns, u32(0), begin_0,
                FORMAT_0, ALIGN_0, EVEN, ELEMENT, GROUP, LANES, ROWS, COLUMNS, BIAS,
            )  # fmt: skip
        elif COUNT == 2 or group < end_1:
            product_of_several(
                w_1, table, x, bias, y, group - end_0, n_1, k, columns, n_0, begin_1,
                FORMAT_1, ALIGN_1, EVEN, ELEMENT, GROUP, LANES, ROWS, COLUMNS, BIAS,
            )  # fmt: skip
        else:
            product_of_several(
                w_2, table, x, bias, y, group - end_1, n_2, k, columns, n_0 + n_1, begin_2,
                FORMAT_2, ALIGN_2, EVEN, ELEMENT, GROUP, LANES, ROWS, COLUMNS, BIAS,
            )  # fmt: skip

    return mat_vecs


def make_mat_vec_glu(ELEMENT: Any) -> Kernel:
    """The same for a gate and its two products."""

    @kernel
    def mat_vec_glu(
        gate: Read[u32],
        up: Read[u32],
        table: Read[u32],
        x: Read[ELEMENT],
        gate_bias: Read[f32],
        up_bias: Read[f32],
        y: Update[f32],
        n: u32,
        k: u32,
        columns: u32,
        first: u32,
        stride: u32,
        *,
        GLU: str,
        GATE_FORMAT: str,
        UP_FORMAT: str,
        GATE_ALIGN: int,
        UP_ALIGN: int,
        EVEN: bool = True,
        GROUP: int = 64,
        LANES: int = 64,
        ROWS: int = 1,
        COLUMNS: int = 1,
        BIAS: bool = False,
    ) -> None:
        """y [columns, stride] = activation(gate x + gate_bias) * (up x + up_bias), rows as in `mat_vec`."""
        row = group_number() * (GROUP // LANES * ROWS) + local_id(0) // LANES
        column = group_id(2) * COLUMNS
        gates = products(
            gate, table, x, u32(0), row, column, n, k, columns,
            GATE_FORMAT, GATE_ALIGN, EVEN, ELEMENT, GROUP, LANES, ROWS, COLUMNS,
        )  # fmt: skip
        ups = products(
            up, table, x, u32(0), row, column, n, k, columns,
            UP_FORMAT, UP_ALIGN, EVEN, ELEMENT, GROUP, LANES, ROWS, COLUMNS,
        )  # fmt: skip
        if local_id(0) % LANES == 0:
            for r in unroll(ROWS):
                for c in unroll(COLUMNS):
                    here = row + r * (GROUP // LANES)
                    if here < n and column + c < columns:
                        one, other = gates[r * COLUMNS + c], ups[r * COLUMNS + c]
                        if BIAS:
                            one += gate_bias[first + here]
                            other += up_bias[first + here]
                        y[(column + c) * stride + first + here] = formulas.GLU[GLU](one, other)

    return mat_vec_glu


MAT_VEC = {True: make_mat_vec(f32x4), False: make_mat_vec(f32)}
MAT_VECS = {True: make_mat_vecs(f32x4), False: make_mat_vecs(f32)}
MAT_VEC_GLU = {True: make_mat_vec_glu(f32x4), False: make_mat_vec_glu(f32)}
"""By whether rows of activations are read as f32x4, that is, have a multiple of four elements."""
