"""Indices that a table, a state or a step does not have: they read as zeros, and are not written to."""

from __future__ import annotations

import numpy as np
import pytest

from graphml.ir.op import Array, Sample
from graphml.ir.ops import table
from graphml.ir.ops.recurrent import SAMPLE_SEQUENCES
from graphml.ir.ops.rows_by_number import rows_at, written
from graphml.ir.shape import Symbol, resolve
from tests.ir.meanings import normal, run

OUTSIDE = np.array([-1, -5, 5, 1 << 24, -(1 << 31), (1 << 31) - 1], np.int32)


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


@pytest.mark.parametrize("stored", ["f32", "f16", "q8_0", "q4_0", "iq4_nl"])
def test_a_row_outside_reads_as_zeros(stored: str) -> None:
    """Of formats too, of which a block of zero bytes is one of -0."""
    x = normal(5, 64)
    rows = (
        x.astype(np.float16)
        if stored == "f16"
        else x
        if stored == "f32"
        else run("quantize", x, dtype=stored)
    )
    got = run("get_rows", rows, OUTSIDE, from_dtype=stored)
    assert got.dtype == np.float32
    assert not got.view(np.uint32).any()
    mixed = run("get_rows", rows, ints(4, -1), from_dtype=stored)
    np.testing.assert_array_equal(mixed[0], run("get_rows", rows, ints(4), from_dtype=stored)[0])


def test_a_write_outside_is_left_out() -> None:
    state = np.zeros((5, 3), np.float32)
    run("set_rows", state, normal(6, 3), OUTSIDE)
    assert not state.any()
    run("set_rows", state, np.ones((2, 3), np.float32), ints(-1, 4))
    np.testing.assert_array_equal(state, [[0] * 3] * 4 + [[1] * 3])


def test_a_row_that_is_left_out_need_not_fit_the_format() -> None:
    state, x = np.zeros((4, 34), np.uint8), normal(2, 32)
    x[0] = np.nan
    run("set_rows", state, x, ints(4, 1), to_dtype="q8_0")
    assert state[1].any()


def test_of_equal_rows_the_last_is_written() -> None:
    state, x = np.zeros((4, 2), np.float32), np.repeat(np.arange(6, dtype=np.float32), 2).reshape(6, 2)
    run("set_rows", state, x, ints(1, 3, 1, -1, 3, 1))
    np.testing.assert_array_equal(state[:, 0], [0, 5, 0, 4])


def test_which_rows_are_written() -> None:
    np.testing.assert_array_equal(written(ints(1, 3, 1, -1, 4, 0), 4), [1, 2, 5])
    assert not len(written(OUTSIDE, 5))
    assert not len(written(ints(), 5))
    assert not rows_at(np.zeros((0, 3)), ints(0, 1))[1].any()


def test_an_element_outside_is_zero() -> None:
    x, ids = normal(2, 5), ints(0, 5, -1, 4, 2, -(1 << 31)).reshape(2, 3)
    np.testing.assert_array_equal(run("gather", x, ids), [[x[0, 0], 0, 0], [x[1, 4], x[1, 2], 0]])


def test_an_expert_outside_makes_zeros() -> None:
    weight, x = normal(4, 3, 5), normal(2, 5)
    got = run("mul_mat_id", weight, x, ints(1, 4, -1, 0).reshape(2, 2))
    assert not got[0, 1].any()
    assert not got[1, 0].any()
    np.testing.assert_allclose(got[1, 1], weight[0] @ x[1], rtol=1e-5)


def test_a_mean_leaves_out_rows_that_belong_nowhere() -> None:
    x, rows, sequences = normal(4, 2), ints(0, 3, -1, 1), ints(0, 2, 0)
    got = run("mean_rows", x, rows, sequences, ints(1, 1))
    np.testing.assert_allclose(got, [x[0], [0, 0]])


STATEFUL = [name for name, op in table().items() if op.recurrent]
ATTENTION = [name for name, op in table().items() if "block_size" in op.attributes]


def operands(sample: Sample, tokens: int = 4) -> list[Array]:
    generator = np.random.default_rng(0)
    dims = {dim.name: tokens for kind in sample.inputs for dim in kind.shape if isinstance(dim, Symbol)}
    shapes = [resolve(kind.shape, dims) for kind in sample.inputs]
    made = [sample.fill.get(i, lambda g, s: g.standard_normal(s)) for i in range(len(shapes))]
    return [
        np.asarray(fill(generator, shape), kind.dtype.numpy)
        for fill, shape, kind in zip(made, shapes, sample.inputs, strict=True)
    ]


@pytest.mark.parametrize("name", STATEFUL)
def test_a_token_of_no_sequence_has_zeros_and_changes_no_state(name: str) -> None:
    sample = table()[name].samples()[0]
    values = operands(sample)
    place = next(i for i, kind in enumerate(sample.inputs) if kind.dtype.name == "i32")
    place += name == "ngram_rows"  # whose first whole numbers are the tokens
    values[place] = ints(SAMPLE_SEQUENCES, -1, -(1 << 31), (1 << 31) - 1)
    before = values[0].copy()
    assert not run(name, *values, **sample.attributes).any()
    np.testing.assert_array_equal(values[0], before)


@pytest.mark.parametrize("name", [name for name in ATTENTION if not name.startswith("select_")])
def test_a_token_of_no_sequence_sees_nothing(name: str) -> None:
    sample = next(one for one in table()[name].samples() if one.attributes.get("causal", True))
    values = operands(sample)
    values[4] = ints(2, -1, -(1 << 31), (1 << 31) - 1)
    assert not run(name, *values, **sample.attributes).any()


def test_a_cell_outside_is_a_key_and_a_value_of_zeros() -> None:
    """Two positions, of which one has no cell: its score is 0, and so is its value."""
    q, k, v = normal(1, 1, 4), normal(8, 1, 4), normal(8, 1, 4)
    step = ints(1), ints(0)
    got = run("attention", q, k, v, *step, ints(3, 1 << 24).reshape(1, 2), scale=0.5, block_size=1)
    score = np.exp(q[0, 0] @ k[3, 0] * 0.5)
    np.testing.assert_allclose(got[0, 0], score / (score + 1) * v[3, 0], rtol=1e-5)


def test_positions_end_where_the_block_table_does() -> None:
    q, k, v = normal(1, 1, 4), normal(8, 1, 4), normal(8, 1, 4)
    table_row = ints(3, 2).reshape(1, 2)
    got = [
        run("attention", q, k, v, ints(at), ints(0), table_row, scale=0.5, block_size=1)
        for at in (1, 2, (1 << 31) - 1)
    ]
    np.testing.assert_array_equal(got[0], got[1])
    np.testing.assert_array_equal(got[0], got[2])
    assert not run("attention", q, k, v, ints(-3), ints(0), table_row, scale=0.5, block_size=1).any()
