"""Products of weights with few rows of activations: one matrix, several at once, a gate with its two.

GROUP, LANES, ROWS and COLUMNS are those of `mat_vec_rows.Teams`. Activations are float32, or of 8 bits as
`int8_rows` says. Knows nothing of graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from graphml_gpu.kernels.elementwise import formulas
from graphml_gpu.kernels.grid import group_number
from graphml_gpu.kernels.products.int8_rows import int8_products
from graphml_gpu.kernels.products.mat_vec_rows import Teams, first_row, float_products, store
from graphml_gpu.kernels.products.own_rows import OwnRow, row_of
from graphml_gpu.kernels.weight_rows import WeightRowFormat
from graphml_gpu.language import (
    Array,
    Kernel,
    Read,
    Update,
    Write,
    f32,
    f32x4,
    function,
    group_id,
    kernel,
    local_id,
    u32,
    u32x4,
    unroll,
)


@function
def products(
    w: Any, table: Read[u32], x: Any, row: u32, column: u32, n: u32, k: u32, columns: u32,
    FORMAT: WeightRowFormat, ELEMENT: Any, TEAMS: Teams, OWN: str,
) -> Array[f32]:  # fmt: skip
    """Rows of weights times those of `row_of`; ELEMENT: what the buffer of the activations holds."""
    if ELEMENT is u32 or OWN != "":
        return int8_products(w, table, x, u32(0), row, column, n, k, columns, FORMAT, TEAMS)
    return float_products(w, table, x, u32(0), row, column, n, k, columns, FORMAT, ELEMENT, TEAMS)


def make_mat_vec(ELEMENT: Any, WORD: Any = u32) -> Kernel:
    """The kernel for activations in a buffer of ELEMENT and weights in a buffer of WORD."""

    @kernel
    def mat_vec(
        w: Read[WORD], table: Read[u32], x: Read[ELEMENT], scale: Read[f32x4], shift: Read[f32x4],
        bias: Read[f32], residual: Read[f32], y: Write[f32],
        n: u32, k: u32, columns: u32, first: u32, stride: u32, eps: f32,
        *, FORMAT: str, ALIGN: int, EVEN: bool = True, GROUP: int = 64, LANES: int = 64, ROWS: int = 1,
        COLUMNS: int = 1, BIAS: bool = False, RESIDUAL: bool = False, OWN: str = "", SHIFTED: bool = False,
        K: int = 0, TURNS: int = 1,
    ) -> None:  # fmt: skip
        """Rows `first` and on of a matrix of `stride`, w [n, k]: y [columns, stride] = w x + bias + residual.

        x [columns, k], bias [stride], residual as y. COLUMNS columns for each group's place in z. OWN: what
        is made of the one row of x before (`own_rows.OwnRow`), with scale, shift and eps. TURNS: how often a
        workgroup multiplies, so that it makes its row once for so many rows of weights.
        """
        assert WORD is not None  # so that the annotations know it
        form, teams = WeightRowFormat(FORMAT, ALIGN, EVEN), Teams(GROUP, LANES, ROWS, COLUMNS)
        column = group_id(2) * COLUMNS
        rows = row_of(x, scale, shift, eps, OwnRow(OWN, SHIFTED, K), GROUP)
        for turn in range(0, TURNS):
            row = first_row(group_number() * TURNS + turn, teams)
            sums = products(w, table, rows, row, column, n, k, columns, form, ELEMENT, teams, OWN)
            store(
                sums, bias, residual, y, row, column, n, columns, first, first, stride, teams, BIAS, RESIDUAL
            )

    return mat_vec


@function
def product_of_several(
    w: Any, table: Read[u32], x: Any, bias: Read[f32], y: Any, group: u32, n: u32, k: u32, columns: u32,
    first: u32, begin: u32, FORMAT: WeightRowFormat, ELEMENT: Any, TEAMS: Teams, BIAS: bool, OWN: str,
) -> None:  # fmt: skip
    """One of the products of `mat_vecs`, of which this is group number `group`."""
    row, column = first_row(group, TEAMS), group_id(2) * TEAMS.columns
    sums = products(w, table, x, row, column, n, k, columns, FORMAT, ELEMENT, TEAMS, OWN)
    store(sums, bias, bias, y, row, column, n, columns, first, begin, n, TEAMS, BIAS, False)


@functools.cache
def mat_vecs_of(ELEMENT: Any, WORD_0: Any, WORD_1: Any, WORD_2: Any, WORD_3: Any) -> Kernel:
    """The same for two to four matrices of one width that meet the same activations."""

    @kernel
    def mat_vecs(
        w_0: Read[WORD_0], w_1: Read[WORD_1], w_2: Read[WORD_2], w_3: Read[WORD_3], table: Read[u32],
        x: Read[ELEMENT], scale: Read[f32x4], shift: Read[f32x4], bias: Read[f32], y: Write[f32],
        n_0: u32, n_1: u32, n_2: u32, n_3: u32, k: u32, columns: u32,
        begin_0: u32, begin_1: u32, begin_2: u32, begin_3: u32, eps: f32,
        *, FORMAT_0: str, FORMAT_1: str, FORMAT_2: str, FORMAT_3: str, ALIGN_0: int, ALIGN_1: int,
        ALIGN_2: int, ALIGN_3: int, EVEN: bool = True, GROUP: int = 64, LANES: int = 64, ROWS: int = 1,
        COLUMNS: int = 1, BIAS: bool = False, COUNT: int = 3, OWN: str = "", SHIFTED: bool = False,
        K: int = 0,
    ) -> None:  # fmt: skip
        """Results [columns, n_i] from elements begin_i of y on; bias: all of them in a row.

        The groups of the first matrix come first, then those of the next. COUNT: 2 to 4 matrices.
        """
        assert None not in (WORD_0, WORD_1, WORD_2, WORD_3)  # so that the annotations know them
        teams = Teams(GROUP, LANES, ROWS, COLUMNS)
        rows = row_of(x, scale, shift, eps, OwnRow(OWN, SHIFTED, K), GROUP)
        per_group = teams.count * ROWS
        group = group_number()
        end_0 = (n_0 + per_group - 1) // per_group
        end_1 = end_0 + (n_1 + per_group - 1) // per_group
        end_2 = end_1 + (n_2 + per_group - 1) // per_group
        if group < end_0:
            product_of_several(
                w_0, table, rows, bias, y, group, n_0, k, columns, u32(0), begin_0,
                WeightRowFormat(FORMAT_0, ALIGN_0, EVEN), ELEMENT, teams, BIAS, OWN,
            )  # fmt: skip
        elif COUNT == 2 or group < end_1:
            product_of_several(
                w_1, table, rows, bias, y, group - end_0, n_1, k, columns, n_0, begin_1,
                WeightRowFormat(FORMAT_1, ALIGN_1, EVEN), ELEMENT, teams, BIAS, OWN,
            )  # fmt: skip
        elif COUNT == 3 or group < end_2:
            product_of_several(
                w_2, table, rows, bias, y, group - end_1, n_2, k, columns, n_0 + n_1, begin_2,
                WeightRowFormat(FORMAT_2, ALIGN_2, EVEN), ELEMENT, teams, BIAS, OWN,
            )  # fmt: skip
        else:
            product_of_several(
                w_3, table, rows, bias, y, group - end_2, n_3, k, columns, n_0 + n_1 + n_2, begin_3,
                WeightRowFormat(FORMAT_3, ALIGN_3, EVEN), ELEMENT, teams, BIAS, OWN,
            )  # fmt: skip

    return mat_vecs


def make_mat_vec_glu(ELEMENT: Any, WORD: Any = u32) -> Kernel:
    """The same for a gate and its two products."""

    @kernel
    def mat_vec_glu(
        gate: Read[WORD], up: Read[WORD], table: Read[u32], x: Read[ELEMENT], scale: Read[f32x4],
        shift: Read[f32x4], gate_bias: Read[f32], up_bias: Read[f32], y: Update[f32],
        n: u32, k: u32, columns: u32, first: u32, stride: u32, eps: f32,
        *, GLU: str, GATE_FORMAT: str, UP_FORMAT: str, GATE_ALIGN: int, UP_ALIGN: int, EVEN: bool = True,
        GROUP: int = 64, LANES: int = 64, ROWS: int = 1, COLUMNS: int = 1, BIAS: bool = False,
        OWN: str = "", SHIFTED: bool = False, K: int = 0,
    ) -> None:  # fmt: skip
        """y [columns, stride] = activation(gate x + gate_bias) * (up x + up_bias), rows as in `mat_vec`."""
        assert WORD is not None
        teams = Teams(GROUP, LANES, ROWS, COLUMNS)
        row, column = first_row(group_number(), teams), group_id(2) * COLUMNS
        rows = row_of(x, scale, shift, eps, OwnRow(OWN, SHIFTED, K), GROUP)
        gates = products(
            gate, table, rows, row, column, n, k, columns,
            WeightRowFormat(GATE_FORMAT, GATE_ALIGN, EVEN), ELEMENT, teams, OWN,
        )  # fmt: skip
        ups = products(
            up, table, rows, row, column, n, k, columns,
            WeightRowFormat(UP_FORMAT, UP_ALIGN, EVEN), ELEMENT, teams, OWN,
        )  # fmt: skip
        if local_id(0) % LANES == 0:
            for r in unroll(ROWS):
                for c in unroll(COLUMNS):
                    here = row + r * teams.count
                    if here < n and column + c < columns:
                        one, other = gates[r * COLUMNS + c], ups[r * COLUMNS + c]
                        if BIAS:
                            one += gate_bias[first + here]
                            other += up_bias[first + here]
                        y[(column + c) * stride + first + here] = formulas.GLU[GLU](one, other)

    return mat_vec_glu


MOST_MATRICES = 4
"""Matrices that one dispatch multiplies the same activations with."""
_FORMS = {
    "f32x4": (f32x4, u32),
    "f32": (f32, u32),
    "int8": (u32, u32),
    "wide int8": (u32, u32x4),
    "own int8": (f32x4, u32),
    "wide own int8": (f32x4, u32x4),
}
MAT_VEC = {form: make_mat_vec(*types) for form, types in _FORMS.items()}
MAT_VEC_GLU = {form: make_mat_vec_glu(*types) for form, types in _FORMS.items()}
"""Form (`lowering.products.form_of`) -> kernel.

Activations are float32, read by fours where rows are a multiple of four long, or of 8 bits, in memory or made
by each workgroup (own); weights that meet those of 8 bits are read by words or by 16 bytes (wide).
"""


def mat_vecs(forms: Sequence[str]) -> Kernel:
    """The kernel for several matrices, each of the form given; forms differ only in how weights are read."""
    (element,) = {_FORMS[form][0] for form in forms}
    words = [_FORMS[form][1] for form in forms]
    return mat_vecs_of(element, *words, *[words[0]] * (MOST_MATRICES - len(words)))
