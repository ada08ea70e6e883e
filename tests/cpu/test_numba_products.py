"""The numba backend: formats are decoded exactly, a sum does not depend on the rows beside its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import graphml_quant
import numpy as np
import pytest
from graphml_numba.backend import FUSED

from graphml.ir.op import Array
from graphml.passes.fusion import all_ops
from graphml.weights.random_blocks import formats

numba = pytest.importorskip("numba")
from graphml_numba.kernels import table  # noqa: E402
from graphml_numba.kernels.formats import SCRATCH, has_format, row_format  # noqa: E402
from graphml_numba.kernels.products import linear, linear_id  # noqa: E402

K = 1280  # more than the columns of one tile
NO_BIAS, NO_RESIDUAL = np.zeros(1, np.float32), np.zeros((1, 1), np.float32)


def compiled(kernel: Any) -> Any:
    return numba.njit(error_model="numpy")(kernel)


def random_bytes(name: str, rows: int) -> Array:
    """Rows of a format, of any bytes."""
    n_bytes = graphml_quant.by_name(name).bytes_for(K)
    return np.random.default_rng(0).integers(0, 256, (rows, n_bytes), np.uint8)


def random_weight(name: str, *lead: int) -> Array:
    """Weights in a format, made of decoded bytes of Q8_0 where the format is plain."""
    values = np.random.default_rng(1).standard_normal((*lead, K)).astype(np.float32)
    if name == "f32":
        return values
    return graphml_quant.quantize(graphml_quant.by_name(name), values)


@pytest.mark.parametrize("name", formats())
def test_numba_decodes_any_bytes_of_a_format_exactly(name: str) -> None:
    assert has_format(name)
    form, stored = row_format(name), random_bytes(name, 3)
    decode = form.decode

    def decode_all(rows: Array, out: Array, s: Array) -> None:
        for row in range(rows.shape[0]):
            decode(rows[row], out[row], s)

    out = np.empty((3, K), np.float32)
    compiled(decode_all)(stored.view(form.word), out, np.empty(SCRATCH, np.float32))
    np.testing.assert_array_equal(
        out, graphml_quant.dequantize(graphml_quant.by_name(name), stored, out.shape)
    )


@pytest.mark.parametrize("name", ["f32", "q8_0"])
def test_sums_of_a_row_have_the_same_bits_whatever_rows_are_beside_it(name: str) -> None:
    weight = random_weight(name, 39)
    x = np.random.default_rng(2).standard_normal((37, K)).astype(np.float32)
    product = compiled(linear(row_format(name), False, False))

    def multiplied(rows: Array, begin: int, end: int) -> Array:
        out = np.full((len(rows), 39), np.nan, np.float32)
        product(out, weight, rows, NO_BIAS, NO_RESIDUAL, begin, end)
        return out[:, begin:end]

    every = multiplied(x, 0, 39)
    for t in range(len(x)):
        np.testing.assert_array_equal(multiplied(x[t : t + 1], 0, 39)[0], every[t])
    for first, n in ((0, 2), (3, 3), (1, 4), (6, 5), (20, 17)):
        np.testing.assert_array_equal(multiplied(x[first : first + n], 0, 39), every[first : first + n])
    for begin, end in ((0, 1), (5, 12), (38, 39), (3, 36)):
        np.testing.assert_array_equal(multiplied(x, begin, end), every[:, begin:end])


def test_products_of_experts_have_the_bits_of_a_product_with_their_matrix() -> None:
    weight = random_weight("q8_0", 4, 10)
    x = np.random.default_rng(3).standard_normal((9, K)).astype(np.float32)
    ids = np.random.default_rng(4).integers(0, 4, 18).astype(np.int32)
    out = np.empty((18, 10), np.float32)
    compiled(linear_id(row_format("q8_0")))(out, weight, x, ids, 0, 10)
    product = compiled(linear(row_format("q8_0"), False, False))
    for pair, expert in enumerate(ids):
        alone = np.empty((1, 10), np.float32)
        product(alone, weight[expert], x[pair // 2 : pair // 2 + 1], NO_BIAS, NO_RESIDUAL, 0, 10)
        np.testing.assert_array_equal(out[pair], alone[0])


def test_nan_and_infinity_stay_in_their_row() -> None:
    weight = random_weight("f32", 8)
    x = np.random.default_rng(5).standard_normal((3, K)).astype(np.float32)
    x[0, 7], x[1, 9] = np.nan, np.inf
    out = np.empty((3, 8), np.float32)
    compiled(linear(row_format("f32"), False, False))(out, weight, x, NO_BIAS, NO_RESIDUAL, 0, 8)
    assert np.isnan(out[0]).all()
    assert np.isinf(out[1]).all()
    np.testing.assert_allclose(out[2], weight @ x[2], rtol=1e-4)


def test_fused_ops_of_the_backend_are_those_in_its_table() -> None:
    assert {name for name in table() if all_ops()[name].decompose is not None} == FUSED


def test_the_backend_is_listed_without_importing_numba() -> None:
    code = "import sys, graphml_numba; graphml_numba.BACKEND.unavailable(); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
