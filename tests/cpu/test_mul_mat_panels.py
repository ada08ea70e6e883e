"""The product that works for every format against float64, for all shapes of tiles and shares."""

from __future__ import annotations

import numpy as np
import pytest
from graphml_cpu.layouts import PANEL_ELEMENTS, panel_scratch_bytes
from graphml_quant import formats

from graphml import settings
from tests.cpu.kernels.running import THREADS, kernel, run
from tests.cpu.weights import ordinary_weights
from tests.looped import looped

# One format per length of block, at other levels two; decoders are tested in test_format_kernels.
QUICK = ["f16", "q5_1"]
FORMATS = QUICK if settings.cpu_level() else [*QUICK, "f32", "nvfp4"]


class Product:
    """A product's operands and what float64 makes of them."""

    def __init__(self, name: str, n: int, k: int, rows: int) -> None:
        self.name, self.n, self.k, self.rows = name, n, k, rows
        format, random = formats()[name], np.random.default_rng(n * k + rows)
        self.w = ordinary_weights(format, n, k)
        self.x = random.standard_normal((rows, k + 3), np.float32)
        self.residual = random.standard_normal((rows, n + 5), np.float32)
        self.bias = random.standard_normal(n, np.float32)
        decoded = format.decode(self.w.reshape(-1, format.block_bytes)).reshape(n, k)
        self.exact = self.x[:, :k].astype(np.float64) @ decoded.astype(np.float64).T

    def run(
        self, nth: int = 1, residual: bool = False, bias: bool = False, in_place: bool = False
    ) -> np.ndarray:
        """[rows, n] from the kernel; what lies around the output and the scratch is not touched."""
        y = self.residual.copy() if in_place else np.full((self.rows, self.n + 5), 7, np.float32)
        scratch = np.full(panel_scratch_bytes(self.k) + 64, 0xFF, np.uint8)  # float32 NaNs
        added = y if in_place else self.residual
        run(kernel("products.mul_mat_panels", "make_mul_mat_panels", self.name), nth, w=self.w, x=self.x, y=y,
            residual=added if residual or in_place else 0, bias=self.bias if bias else 0, n=self.n, k=self.k,
            row_bytes=self.w.shape[1], x_stride=4 * (self.k + 3), y_stride=4 * (self.n + 5), scratch=scratch,
            rows=self.rows)  # fmt: skip
        np.testing.assert_array_equal(y[:, self.n :], self.residual[:, self.n :] if in_place else 7)
        assert (scratch[-64:] == 0xFF).all()
        return y[:, : self.n]


def error(got: np.ndarray, exact: np.ndarray) -> float:
    """Normalised mean squared error."""
    return float(((got - exact) ** 2).sum() / (exact**2).sum())


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("n", "blocks", "rows"), [(1, 1, 1), (5, 9, 2), (37, 2, 7), (35, 5, 67), (70, 1, 12)]
)
def test_product_is_float64s_within_rounding(name: str, n: int, blocks: int, rows: int) -> None:
    product = Product(name, n, blocks * max(formats()[name].block_elements, 32), rows)
    assert error(product.run(), product.exact) < 1e-12
    wanted = product.exact + product.bias + product.residual[:, :n]
    assert error(product.run(residual=True, bias=True), wanted) < 1e-12
    assert error(product.run(in_place=True), product.exact + product.residual[:, :n]) < 1e-12


@looped("name", [name for name in FORMATS if name.startswith("f")])
@looped("k", [1, 3, 17, 100, PANEL_ELEMENTS - 1, PANEL_ELEMENTS, PANEL_ELEMENTS + 1])
def test_any_length_of_rows_of_floats(name: str, k: int) -> None:
    for rows in (5, 12):
        product = Product(name, 6, k, rows)
        assert error(product.run(), product.exact) < 2e-12


@pytest.mark.parametrize("rows", [1, 5, 12])
@pytest.mark.parametrize("name", QUICK)
def test_rows_longer_than_several_tiles(name: str, rows: int) -> None:
    product = Product(name, 6, 32768, rows)
    wanted = product.exact + product.bias + product.residual[:, :6]
    assert error(product.run(residual=True, bias=True), wanted) < 1e-11
    assert error(product.run(in_place=True), product.exact + product.residual[:, :6]) < 1e-11


@pytest.mark.parametrize("name", QUICK)
def test_a_token_does_not_depend_on_its_batch_or_the_threads(name: str) -> None:
    product = Product(name, 71, PANEL_ELEMENTS + 64, 70)
    together = product.run(residual=True, bias=True)
    for nth in THREADS[1:]:
        np.testing.assert_array_equal(product.run(nth, residual=True, bias=True), together)
    for first, count in ((0, 9), (66, 4), (3, 20), (3, 3), (5, 1)):
        part = Product.__new__(Product)
        part.__dict__ = {**product.__dict__, "rows": count}
        part.x, part.residual = product.x[first : first + count], product.residual[first : first + count]
        got, wanted = part.run(residual=True, bias=True), together[first : first + count]
        if count > 8:
            np.testing.assert_array_equal(got, wanted)
        else:  # few tokens take another loop, which adds in another order
            assert error(got, wanted) < 4e-12


def test_more_threads_than_weight_rows() -> None:
    product = Product("f16", 3, 64, 2)
    np.testing.assert_array_equal(product.run(64), product.run())
